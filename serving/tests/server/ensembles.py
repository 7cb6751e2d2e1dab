"""An ensemble by tritonclient, over HTTP and gRPC: HTTP-PORT GRPC-PORT. The server has the models double, digits and negate, and their chain."""
import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http

HTTP, GRPC = (f"127.0.0.1:{port}" for port in sys.argv[1:3])
IMAGES = (np.arange(3 * 64).reshape(3, 1, 8, 8) % 9).astype(np.float32) / 2


def run(module, client, model, name, value, output):
    tensor = module.InferInput(name, list(value.shape), "FP32")
    tensor.set_data_from_numpy(value)
    return client.infer(model, [tensor]).as_numpy(output)


for module, address in ((http, HTTP), (grpc, GRPC)):
    client = module.InferenceServerClient(address)
    doubled = run(module, client, "double", "raw", IMAGES, "doubled")
    expected = run(module, client, "negate", "in", run(module, client, "digits", "image", doubled, "probability"), "out")
    scores = run(module, client, "chain", "image", IMAGES, "scores")
    assert scores.shape == (3, 10) and np.allclose(scores, expected, atol=1e-5), scores - expected
steps = http.InferenceServerClient(HTTP).get_model_config("chain")["ensemble_scheduling"]["step"]
assert [step["model_name"] for step in steps] == ["negate", "double", "digits"], steps
config = grpc.InferenceServerClient(GRPC).get_model_config("chain").config
assert config.platform == "ensemble" and config.ensemble_scheduling.step[1].output_map["doubled"] == "prepared", config
print("all calls passed")
