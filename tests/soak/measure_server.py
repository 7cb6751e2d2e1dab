#!/usr/bin/env python3
"""Measures `of-opt serve` with a plan: the time from the start of the process to its readiness, and how many requests it answers over gRPC
in comparison with `of-opt bench`, which runs the plan in its own process on the same core. Needs tritonclient[grpc]; clients have another core.
"""

import argparse
import json
import os
import queue
import statistics
import subprocess
import time

import numpy as np
import tritonclient.grpc as grpc

from server import PROGRAM, Server

SERVER_CORE, CLIENT_CORE = 0, 1


def on(core):
    return lambda: os.sched_setaffinity(0, {core})


def start(options):
    times = []
    for _ in range(options.rounds):
        begun = time.perf_counter()
        server = Server(options.plan)
        times.append(1000 * (time.perf_counter() - begun))
        server.terminate()
    print(f"start to ready: median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms of {options.rounds}")


def in_process(options):
    """Requests a second in a process of its own."""
    command = [PROGRAM, "bench", options.plan, "--threads", "1", "--iters", "1000000", "--max-seconds", str(options.seconds)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=on(SERVER_CORE)).stdout
    return json.loads(out)["requests_per_s"]


def served(options, server):
    """Requests a second over gRPC, with so many on their way that the server never waits."""
    client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc}")
    metadata = client.get_model_repository_index().models[0].name
    inputs = []
    for tensor in client.get_model_metadata(metadata).inputs:
        shape = [1 if extent < 0 else extent for extent in tensor.shape]
        given = grpc.InferInput(tensor.name, shape, tensor.datatype)
        given.set_data_from_numpy(np.ones(shape, np.float32))
        inputs.append(given)
    answers, count = queue.Queue(), 0

    def ask():
        client.async_infer(metadata, inputs, lambda result, error: answers.put(error))

    def answered():
        if error := answers.get(timeout=60):
            raise error

    for _ in range(2):
        client.infer(metadata, inputs)
    for _ in range(3):
        ask()
    answered()
    begun = time.perf_counter()
    while time.perf_counter() - begun < options.seconds:
        ask()
        answered()
        count += 1
    taken = time.perf_counter() - begun
    for _ in range(2):
        answered()
    return count / taken


def throughput(options):
    os.sched_setaffinity(0, {SERVER_CORE})
    server = Server(options.plan, "--no-batching")
    os.sched_setaffinity(0, {CLIENT_CORE})
    ratios = []
    for number in range(options.rounds):
        # The order changes, so that neither is always the first.
        measured = {}
        for name in ("process", "served") if number % 2 else ("served", "process"):
            measured[name] = in_process(options) if name == "process" else served(options, server)
        ratios.append(measured["served"] / measured["process"])
        print(f"in process {measured['process']:.2f}/s, over gRPC {measured['served']:.2f}/s, ratio {ratios[-1]:.3f}")
    server.terminate()
    print(f"ratio over gRPC to in process: median {statistics.median(ratios):.3f} of {options.rounds}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", help="a plan that takes floats")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    start(options)
    throughput(options)


if __name__ == "__main__":
    main()
