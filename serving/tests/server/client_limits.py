"""A client beyond its limit, by tritonclient: HTTP-PORT GRPC-PORT. The server allows one request."""
import queue
import sys

import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException

client = grpc.InferenceServerClient(f"127.0.0.1:{sys.argv[2]}")
image = grpc.InferInput("image", [1, 1, 8, 8], "FP32")
image.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
answers = queue.Queue()
client.start_stream(lambda result, error: answers.put((result, error)))
for _ in range(2):
    client.async_stream_infer("digits", [image])
first, second = (answers.get(timeout=30) for _ in range(2))
assert first[1] is None and "requests a second" in str(second[1]), (first, second)
client.stop_stream()
try:
    client.infer("digits", [image])
except InferenceServerException as error:
    assert "RESOURCE_EXHAUSTED" in str(error.status()), error
else:
    raise AssertionError("not refused")
assert client.is_server_live()
print("all calls passed")
