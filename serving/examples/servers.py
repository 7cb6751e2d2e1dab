"""The model server next to MLServer and Triton: a model that returns its input, the same client, requests in turn.

    python3 serving/examples/servers.py --program target/release/of-opt --mlserver VENV/bin/mlserver --triton FOLDER

Needs grpcio, numpy, onnx and tritonclient here, mlserver in another environment, and the wheel nvidia-pytriton unpacked in FOLDER (it contains
tritonserver; `pip download --no-deps nvidia-pytriton`). A server that is not named is not measured. Requests are bytes that were made before: over gRPC
with raw tensors, and over HTTP with binary tensors (not in MLServer 1.7.1) and with JSON. The model takes no time, so the latency of one client is what a server adds, and what
the client and the loopback interface take, which is the same for all. Triton runs the model as a backend in C, without Python. Throughput is that of 8
connections of this program. The best of the rounds counts for each number.

At the end, `of-opt load` asks for binary tensors as fast as it can from the second core, where all servers have the first one: answers in a second.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import time

import grpc
import numpy as np
import onnx
import tritonclient.http
from onnx import TensorProto, helper
from tritonclient.grpc import service_pb2

RUNTIME = """
from mlserver import MLModel
from mlserver.types import InferenceResponse, ResponseOutput


class Identity(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        x = payload.inputs[0]
        output = ResponseOutput(name="y", datatype=x.datatype, shape=x.shape, data=x.data)
        return InferenceResponse(model_name=self.name, outputs=[output])
"""
# The declarations are those of Triton's backend API, version 1.
BACKEND = """
#include <stdint.h>
#include <string.h>
typedef struct Error Error; typedef struct Request Request; typedef struct Response Response;
typedef struct Input Input; typedef struct Output Output; typedef struct Instance Instance;
Error *TRITONBACKEND_RequestInputByIndex(Request *, uint32_t, Input **);
Error *TRITONBACKEND_InputProperties(Input *, const char **, int *, const int64_t **, uint32_t *, uint64_t *, uint32_t *);
Error *TRITONBACKEND_InputBuffer(Input *, uint32_t, const void **, uint64_t *, int *, int64_t *);
Error *TRITONBACKEND_ResponseNew(Response **, Request *);
Error *TRITONBACKEND_ResponseOutput(Response *, Output **, const char *, int, const int64_t *, uint32_t);
Error *TRITONBACKEND_OutputBuffer(Output *, void **, uint64_t, int *, int64_t *);
Error *TRITONBACKEND_ResponseSend(Response *, uint32_t, Error *);
Error *TRITONBACKEND_RequestRelease(Request *, uint32_t);

static Error *answer(Request *request) {
    Error *error;
    Input *input; Response *response; Output *output;
    const char *name; const int64_t *shape; const void *from; void *to;
    int type, memory = 0; uint32_t dims, buffers; uint64_t bytes, size, done = 0; int64_t id = 0;
    if ((error = TRITONBACKEND_RequestInputByIndex(request, 0, &input))) return error;
    if ((error = TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &bytes, &buffers))) return error;
    if ((error = TRITONBACKEND_ResponseNew(&response, request))) return error;
    if ((error = TRITONBACKEND_ResponseOutput(response, &output, "y", type, shape, dims))) return error;
    if ((error = TRITONBACKEND_OutputBuffer(output, &to, bytes, &memory, &id))) return error;
    for (uint32_t i = 0; i < buffers; i++, done += size) {
        if ((error = TRITONBACKEND_InputBuffer(input, i, &from, &size, &memory, &id))) return error;
        memcpy((char *)to + done, from, size);
    }
    return TRITONBACKEND_ResponseSend(response, 1, 0);
}

Error *TRITONBACKEND_ModelInstanceExecute(Instance *instance, Request **requests, const uint32_t count) {
    Error *error = 0;
    for (uint32_t i = 0; i < count && !error; i++) {
        error = answer(requests[i]);
        if (!error) error = TRITONBACKEND_RequestRelease(requests[i], 1);
    }
    return error;
}
"""
CONFIG = """
name: "identity"
backend: "identity"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
ELEMENTS = (256, 150_528)
CONNECTIONS = 8
METHOD = "/inference.GRPCInferenceService/ModelInfer"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    [s.close() for s in sockets]
    return ports


def wait(port):
    end = time.time() + 120
    while time.time() < end:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/v2/models/identity/ready")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"no server answers at port {port}")


def start_ours(program, folder):
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", "M"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "identity", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "identity.onnx")
    ports = free_ports(3)
    flags = [text for name, port in zip(("http", "grpc", "metrics"), ports) for text in (f"--{name}-port", str(port))]
    command = [program, "serve", folder / "identity.onnx", "--no-batching", "--threads", "1", *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL), ports


def start_mlserver(program, folder):
    folder = folder / "mlserver"
    folder.mkdir()
    ports = free_ports(3)
    settings = {"parallel_workers": 0, "http_port": ports[0], "grpc_port": ports[1], "metrics_port": ports[2], "debug": False,
                "host": "127.0.0.1", "grpc_max_message_length": 1 << 28}
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps({"name": "identity", "implementation": "identity_runtime.Identity"}))
    (folder / "identity_runtime.py").write_text(RUNTIME)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.Popen([program, "start", str(folder)], env=environment, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL), ports


def start_triton(wheel, folder):
    wheel, ports = wheel.resolve(), free_ports(3)
    backend, model = folder / "backends" / "identity", folder / "triton" / "identity"
    backend.mkdir(parents=True)
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    (backend / "identity.c").write_text(BACKEND)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", backend / "libtriton_identity.so", backend / "identity.c"], check=True)
    flags = {"model-repository": folder / "triton", "backend-directory": folder / "backends", "http-port": ports[0], "grpc-port": ports[1],
             "metrics-port": ports[2]}
    program = wheel / "pytriton" / "tritonserver" / "bin" / "tritonserver"
    program.chmod(0o755)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(wheel / "nvidia_pytriton.libs")}
    return subprocess.Popen([program, *(f"--{flag}={value}" for flag, value in flags.items())], env=environment, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL), ports


def over_grpc(port, elements):
    request = service_pb2.ModelInferRequest(model_name="identity")
    request.inputs.add(name="x", datatype="FP32", shape=[1, elements])
    request.raw_input_contents.append(np.ones(elements, np.float32).tobytes())
    body = request.SerializeToString()
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    call = grpc.insecure_channel(f"127.0.0.1:{port}", options).unary_unary(METHOD)
    assert len(call(body)) >= 4 * elements
    return lambda: call(body)


def over_http(port, body, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask():
        connection.request("POST", "/v2/models/identity/infer", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, text
        return text

    return ask


def over_json(port, elements):
    data = np.ones(elements, np.float32).tolist()
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, elements], "data": data}]}).encode()
    ask = over_http(port, body, {"content-type": "application/json"})
    assert len(json.loads(ask())["outputs"][0]["data"]) == elements
    return ask


def over_binary(port, elements):
    x = tritonclient.http.InferInput("x", [1, elements], "FP32")
    x.set_data_from_numpy(np.ones((1, elements), np.float32))
    body, length = tritonclient.http.InferenceServerClient.generate_request_body([x])
    ask = over_http(port, body, {"Inference-Header-Content-Length": str(length)})
    assert len(ask()) >= 4 * elements
    return ask


def latencies(ask, seconds):
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return np.percentile(times, [50, 99]) * 1e6


def throughput(connect, port, elements, seconds):
    asks = [connect(port, elements) for _ in range(CONNECTIONS)]
    end = time.perf_counter() + seconds

    def run(ask):
        count = 0
        while time.perf_counter() < end:
            ask()
            count += 1
        return count

    with concurrent.futures.ThreadPoolExecutor(CONNECTIONS) as pool:
        return sum(pool.map(run, asks)) / seconds


def rate_of_load(program, server, port, elements, connections, seconds):
    """Answers in a second to more requests than the server can answer."""
    os.sched_setaffinity(server.pid, {0})
    for thread in os.listdir(f"/proc/{server.pid}/task"):
        os.sched_setaffinity(int(thread), {0})
    due = 3_000_000_000 // (50_000 + 4 * elements)
    command = [program, "load", "identity", "--json", "--http-port", str(port), "--shape", f"x=1x{elements}", "--rate", str(due / seconds),
               "--duration", f"{seconds}s", "--connections", str(connections)]
    answer = subprocess.run(command, check=True, capture_output=True, preexec_fn=lambda: os.sched_setaffinity(0, {1}))
    answer = json.loads(answer.stdout)
    return answer["answered"] / answer["seconds"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--mlserver", help="MLServer's program")
    parser.add_argument("--triton", type=pathlib.Path, help="the folder of the unpacked wheel nvidia-pytriton")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        servers = {"of-opt": start_ours(options.program, folder)}
        try:
            if options.mlserver:
                servers["MLServer"] = start_mlserver(options.mlserver, folder)
            if options.triton:
                servers["Triton"] = start_triton(options.triton, folder)
            for _, ports in servers.values():
                wait(ports[0])
            print(f"{'':34} {'p50 us':>9} {'p99 us':>9} {'requests/s':>11}")
            for elements in ELEMENTS:
                for name, connect, number in (("gRPC", over_grpc, 1), ("HTTP, binary", over_binary, 0), ("HTTP, JSON", over_json, 0)):
                    found = {server: [] for server in servers if (server, connect) != ("MLServer", over_binary)}
                    for _ in range(options.rounds):
                        for server in found:
                            ports = servers[server][1]
                            p50, p99 = latencies(connect(ports[number], elements), options.seconds)
                            rate = throughput(connect, ports[number], elements, options.seconds)
                            found[server].append((p50, p99, rate))
                    for server, rounds in found.items():
                        p50, p99, rate = (pick(column) for pick, column in zip((min, min, max), zip(*rounds)))
                        print(f"{name:12} {4 * elements:8} B {server:>10} {p50:9.0f} {p99:9.0f} {rate:11.0f}", flush=True)
            print(f"{'of-opt load':34} " + " ".join(f"{n:>8} conn." for n in (1, 8, 64)))
            for elements in ELEMENTS:
                for server, (process, ports) in servers.items():
                    if server == "MLServer":
                        continue
                    rates = (rate_of_load(options.program, process, ports[0], elements, n, options.seconds) for n in (1, 8, 64))
                    print(f"{'':12} {4 * elements:8} B {server:>10} " + " ".join(f"{rate:12.0f}/s" for rate in rates), flush=True)
        finally:
            for process, _ in servers.values():
                process.terminate()


main()
