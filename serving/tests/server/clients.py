"""Calls everything of tritonclient, over HTTP and gRPC: HTTP-PORT GRPC-PORT. The server has the model digits and loads models for clients."""
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.http as http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

HTTP, GRPC = (f"127.0.0.1:{port}" for port in sys.argv[1:3])
IMAGES = (np.arange(3 * 64).reshape(3, 1, 8, 8) % 17).astype(np.float32)


def refused(call, what):
    try:
        call()
    except InferenceServerException as error:
        assert what in str(error), error
    else:
        raise AssertionError(f"not refused: {what}")


def inputs(module, images, **options):
    tensor = module.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images, **options)
    return [tensor]


def describe(client):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("digits", "1")
    assert not client.is_model_ready("none")
    client.get_server_metadata(), client.get_model_metadata("digits", "1"), client.get_model_config("digits")
    client.get_inference_statistics("digits"), client.get_inference_statistics()
    client.get_trace_settings("digits"), client.get_log_settings(), client.get_cuda_shared_memory_status()
    traces(client)
    client.unload_model("digits")
    assert not client.is_model_ready("digits")
    client.get_model_repository_index()
    client.load_model("digits")
    assert client.is_model_ready("digits")
    refused(lambda: client.load_model("none"), "no model 'none'")


def traces(client):
    def read(settings):
        if isinstance(settings, dict):
            return {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
        return {name: list(setting.value) for name, setting in settings.settings.items()}

    before = read(client.get_trace_settings())
    assert before["trace_level"] == ["TIMESTAMPS"] and before["trace_mode"] == ["opentelemetry"], before
    after = read(client.update_trace_settings("digits", {"trace_level": ["OFF"], "trace_rate": "3", "trace_count": "7"}))
    assert (after["trace_level"], after["trace_rate"], after["trace_count"]) == (["OFF"], ["3"], ["7"]), after
    assert read(client.get_trace_settings()) == before
    cleared = client.update_trace_settings("digits", {"trace_level": None, "trace_rate": None, "trace_count": None})
    assert read(cleared) == before, cleared
    refused(lambda: client.update_trace_settings(settings={"trace_level": ["TENSORS"]}), "no tensors")
    refused(lambda: client.update_trace_settings(settings={"trace_file": "x.json"}), "to no file")
    refused(lambda: client.get_trace_settings("none"), "no model 'none'")


def infer(module, client):
    results = [client.infer("digits", inputs(module, IMAGES), request_id="x", priority=1, timeout=10_000_000)]
    assert results[0].get_response()["id"] == "x" if module is http else results[0].get_response().id == "x"
    results.append(client.infer("digits", inputs(module, IMAGES), outputs=[module.InferRequestedOutput("probability")]))
    classes = client.infer("digits", inputs(module, IMAGES), outputs=[module.InferRequestedOutput("probability", class_count=2)])
    values = [result.as_numpy("probability") for result in results]
    assert values[0].shape == (3, 10) and (values[0] == values[1]).all()
    best = [int(text[0].decode().split(":")[1]) for text in classes.as_numpy("probability")]
    assert best == list(values[0].argmax(axis=1)), best
    refused(lambda: client.infer("digits", inputs(module, IMAGES), outputs=[module.InferRequestedOutput("y")]), "no output 'y'")
    refused(lambda: client.infer("digits", inputs(module, IMAGES[:, :, :4])), "dimension 2")
    return values[0]


def shared_memory(module, client, expected):
    into = shm.create_shared_memory_region("in", "/of-serving-in", IMAGES.nbytes)
    out = shm.create_shared_memory_region("out", "/of-serving-out", expected.nbytes)
    try:
        shm.set_shared_memory_region(into, [IMAGES])
        client.register_system_shared_memory("in", "/of-serving-in", IMAGES.nbytes)
        client.register_system_shared_memory("out", "/of-serving-out", expected.nbytes)
        client.get_system_shared_memory_status()
        tensor = module.InferInput("image", list(IMAGES.shape), "FP32")
        tensor.set_shared_memory("in", IMAGES.nbytes)
        output = module.InferRequestedOutput("probability")
        output.set_shared_memory("out", expected.nbytes)
        client.infer("digits", [tensor], outputs=[output])
        assert (shm.get_contents_as_numpy(out, np.float32, expected.shape) == expected).all()
        client.unregister_system_shared_memory("in")
        client.unregister_system_shared_memory()
    finally:
        shm.destroy_shared_memory_region(into)
        shm.destroy_shared_memory_region(out)


def over_http():
    client = http.InferenceServerClient(HTTP, concurrency=4)
    describe(client)
    expected = infer(http, client)
    as_json = client.infer("digits", inputs(http, IMAGES, binary_data=False),
                           outputs=[http.InferRequestedOutput("probability", binary_data=False)])
    assert (as_json.as_numpy("probability") == expected).all()
    for algorithm in ("gzip", "deflate"):
        packed = client.infer("digits", inputs(http, IMAGES), request_compression_algorithm=algorithm,
                              response_compression_algorithm=algorithm)
        assert (packed.as_numpy("probability") == expected).all()
    running = [client.async_infer("digits", inputs(http, IMAGES)) for _ in range(8)]
    assert all((result.get_result().as_numpy("probability") == expected).all() for result in running)
    shared_memory(http, client, expected)
    return expected


def over_grpc():
    client = grpc.InferenceServerClient(GRPC)
    describe(client)
    expected = infer(grpc, client)
    refused(lambda: client.infer("digits", inputs(grpc, IMAGES), sequence_id=7), "keeps no state")
    answers = queue.Queue()
    client.async_infer("digits", inputs(grpc, IMAGES), lambda result, error: answers.put((result, error)))
    client.start_stream(lambda result, error: answers.put((result, error)))
    for number in range(8):
        client.async_stream_infer("digits", inputs(grpc, IMAGES), request_id=str(number))
    for _ in range(9):
        result, error = answers.get(timeout=30)
        assert error is None and (result.as_numpy("probability") == expected).all()
    client.stop_stream()
    shared_memory(grpc, client, expected)
    return expected


assert (over_http() == over_grpc()).all()
print("all calls passed")
