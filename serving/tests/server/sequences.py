"""Sequences by tritonclient, over HTTP, gRPC and a stream of gRPC: HTTP-PORT GRPC-PORT. The server has the models state and variable, which sum up."""
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

HTTP, GRPC = (f"127.0.0.1:{port}" for port in sys.argv[1:3])


def inputs(module, x):
    tensor = module.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[x, 2 * x]], np.float32))
    return [tensor]


def refused(call, what):
    try:
        call()
    except InferenceServerException as error:
        assert what in str(error), error
    else:
        raise AssertionError(f"not refused: {what}")


def one_by_one(module, client, model):
    def step(x, **sequence):
        return float(-client.infer(model, inputs(module, x), **sequence).as_numpy("y")[0, 0])

    for number in (7, "seven"):
        assert step(1, sequence_id=number, sequence_start=True) == 1
        assert step(2, sequence_id=number) == 3
        assert step(3, sequence_id=number, sequence_end=True) == 6
        refused(lambda: step(1, sequence_id=number), "is not in progress")
    refused(lambda: step(1), "needs a sequence_id")
    refused(lambda: client.infer("digits", inputs(module, 1), sequence_id=7), "no input 'x'")


def streamed(model):
    answers = queue.Queue()
    client = grpc.InferenceServerClient(GRPC)
    client.start_stream(lambda result, error: answers.put((result, error)))
    steps = 40
    for step in range(steps):
        for number in (101, "text"):
            client.async_stream_infer(model, inputs(grpc, step + 1), request_id=f"{number}", sequence_id=number,
                                      sequence_start=step == 0, sequence_end=step == steps - 1)
    sums = {"101": [], "text": []}
    for _ in range(2 * steps):
        result, error = answers.get(timeout=60)
        assert error is None, error
        sums[result.get_response().id].append(float(-result.as_numpy("y")[0, 0]))
    expected = list(np.cumsum(np.arange(1, steps + 1)))
    assert sums["101"] == expected and sums["text"] == expected, sums
    client.async_stream_infer(model, inputs(grpc, 1), sequence_id=101)
    result, error = answers.get(timeout=60)
    assert "is not in progress" in str(error), error
    client.stop_stream()


for model in ("state", "variable"):
    one_by_one(http, http.InferenceServerClient(HTTP), model)
    one_by_one(grpc, grpc.InferenceServerClient(GRPC), model)
    streamed(model)
config = http.InferenceServerClient(HTTP).get_model_config("state")["sequence_batching"]
assert config["state"][0]["input_name"] == "past" and config["oldest"]["max_candidate_sequences"] == 3, config
config = grpc.InferenceServerClient(GRPC).get_model_config("state").config.sequence_batching
assert config.state[0].output_name == "present" and config.oldest.max_candidate_sequences == 3, config
print("all calls passed")
