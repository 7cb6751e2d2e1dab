#!/usr/bin/env python3
"""Measures `of-opt serve` with a plan: the time from the start of the process to its readiness, and how many requests it answers over gRPC
in comparison with `of-opt bench`, which runs the plan in its own process on the same core. Needs tritonclient[grpc]; clients have another core.
"""

import argparse
import json
import os
import pathlib
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
    """Requests a second, and milliseconds of the processor for each, in a process of its own."""
    command = [PROGRAM, "bench", options.plan, "--threads", "1", "--iters", "1000000", "--max-seconds", str(options.seconds)]
    out = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=on(SERVER_CORE)).stdout
    found = json.loads(out)
    return found["requests_per_s"], found["cpu_ms"]


def cpu_ms(process):
    """Milliseconds of the processor that a process has taken."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def served(options, server):
    """As in_process, over gRPC, with so many requests on their way that the server never waits."""
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
    begun, cpu = time.perf_counter(), cpu_ms(server.process)
    while time.perf_counter() - begun < options.seconds:
        ask()
        answered()
        count += 1
    taken, cpu = time.perf_counter() - begun, cpu_ms(server.process) - cpu
    for _ in range(2):
        answered()
    return count / taken, cpu / count


def throughput(options):
    os.sched_setaffinity(0, {SERVER_CORE})
    server = Server(options.plan, "--no-batching")
    os.sched_setaffinity(0, {CLIENT_CORE})
    rates, costs = [], []
    for number in range(options.rounds):
        # The order changes, so that neither is always the first.
        measured = {}
        for name in ("process", "served") if number % 2 else ("served", "process"):
            measured[name] = in_process(options) if name == "process" else served(options, server)
        (alone, alone_cpu), (over, over_cpu) = measured["process"], measured["served"]
        rates.append(over / alone)
        costs.append(alone_cpu / over_cpu)
        print(f"in process {alone:.2f}/s, {alone_cpu:.2f} ms of the processor; over gRPC {over:.2f}/s, {over_cpu:.2f} ms")
    server.terminate()
    print(f"over gRPC to in process, median of {options.rounds}: rate {statistics.median(rates):.3f}, by processor time {statistics.median(costs):.3f}")


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
