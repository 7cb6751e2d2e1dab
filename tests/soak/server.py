#!/usr/bin/env python3
"""Soak tests of `of-opt serve` over the loopback interface.

`clients`: honest load together with clients that stall, give wrong lengths and vanish. No honest request is lost, the memory of the server stays the
same, and no connection stays open. `swaps`: models that replace one another at full load. `ends`: servers that get SIGTERM at full load. Both
expect that no request of all is lost.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = str(pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release/of-opt")
EXAMPLES = ROOT / "examples/digits"
CONNECTIONS = 16
BODY = json.dumps({"inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.5] * 64}]}).encode()


class Server:
    """A server on free ports."""

    def __init__(self, repository, *flags):
        ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--threads", "1"]
        self.process = subprocess.Popen([PROGRAM, "serve", repository, *ports, *flags], stdout=subprocess.PIPE, text=True)
        lines = [self.process.stdout.readline().strip().removesuffix("/metrics") for _ in range(3)]
        self.http, self.grpc, self.metrics = (int(line.rsplit(":", 1)[1]) for line in lines)
        while not self.is_ready():
            time.sleep(0.01)

    def is_ready(self):
        try:
            return bool(self.get(self.http, "/v2/health/ready"))
        except urllib.error.HTTPError:
            return False

    @staticmethod
    def get(port, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.read().decode()

    def resident(self):
        """Bytes in memory."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the server has no memory")

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


def load(server, rate, seconds):
    """Starts load; its standard output is a report in JSON."""
    flags = ["--rate", str(rate), "--duration", f"{seconds:.3f}s", "--connections", str(CONNECTIONS), "--json"]
    return subprocess.Popen([PROGRAM, "load", "digits", "--http-port", str(server.http), *flags], stdout=subprocess.PIPE, text=True)


def report(process):
    out, _ = process.communicate()
    found = json.loads(out)
    if found["lost"] or found["refused"]:
        sys.exit(f"requests were lost or refused: {found}")
    return found


def request(body, length=None):
    length = len(body) if length is None else length
    return b"POST /v2/models/digits/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length + body


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def end_writing(client):
    try:
        client.shutdown(socket.SHUT_WR)
    except OSError:
        # The server has closed already.
        pass


def until_closed(client):
    """Waits until the server closes a connection."""
    client.settimeout(30)
    try:
        while client.recv(65536):
            pass
    except ConnectionError:
        pass


def stalls_in_the_head(server):
    with connect(server.http) as client:
        client.sendall(b"POST /v2/models/digits/infer HT")
        until_closed(client)


def stalls_in_the_body(server):
    with connect(server.http) as client:
        client.sendall(request(BODY[:100], len(BODY)))
        until_closed(client)


def announces_too_much(server):
    with connect(server.http) as client:
        client.sendall(request(BODY, len(BODY) + random.choice([1, 1000, 200 << 20])))
        end_writing(client)
        until_closed(client)


def announces_too_little(server):
    with connect(server.http) as client:
        client.sendall(request(BODY, random.randrange(len(BODY))))
        until_closed(client)


def vanishes(server):
    for _ in range(50):
        client = connect(server.http)
        client.sendall(request(BODY)[: random.choice([20, 200, 10000])])
        # Closing sends a reset.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()


def reads_nothing(server):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.http))
        client.settimeout(5)
        try:
            for _ in range(20000):
                client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        except OSError:
            pass


def damages_http2(server):
    for length in (0, 5, 16384, (1 << 24) - 1):
        with connect(server.grpc) as client:
            client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            client.sendall(length.to_bytes(3, "big") + bytes([random.randrange(12), random.randrange(256)]) + b"\0\0\0\1" + random.randbytes(40))
            end_writing(client)
            until_closed(client)


def sends_noise(server):
    for port in (server.http, server.grpc):
        with connect(port) as client:
            client.sendall(random.randbytes(random.randrange(1, 5000)))
            end_writing(client)
            until_closed(client)


BAD = [stalls_in_the_head, stalls_in_the_body, announces_too_much, announces_too_little, vanishes, reads_nothing, damages_http2, sends_noise]


def clients(options):
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(EXAMPLES, f"{folder}/models", ignore=lambda _, names: [n for n in names if n != "digits.onnx"])
        server = Server(f"{folder}/models", "--request-timeout", "2s", "--max-connections", "256")
        end = time.time() + options.minutes * 60
        counts, failures = dict.fromkeys((bad.__name__ for bad in BAD), 0), []

        def misbehave(bad):
            while time.time() < end:
                try:
                    bad(server)
                except (TimeoutError, OSError) as error:
                    failures.append(f"{bad.__name__}: {error!r}")
                counts[bad.__name__] += 1

        threads = [threading.Thread(target=misbehave, args=(bad,)) for bad in BAD for _ in range(2)]
        for thread in threads:
            thread.start()
        honest, samples = load(server, options.rate, options.minutes * 60), []
        while time.time() < end:
            samples.append(server.resident())
            time.sleep(1)
        for thread in threads:
            thread.join()
        found = report(honest)
        time.sleep(3)
        lines = server.get(server.metrics, "/metrics").splitlines()
        # The connection that asks is one.
        connections = int(next(line for line in lines if line.startswith("of_connections ")).split()[1]) - 1
        code = server.terminate()
        # Caches fill in the first quarter.
        quarter = len(samples) // 4
        early, late = max(samples[quarter : 2 * quarter]), max(samples[-quarter:])
        print(f"{found['answered']} honest requests, p99 {found['latency_ms']['p99']:.2f} ms; bad clients: {counts}")
        print(f"resident memory: at most {early / 2**20:.1f} MiB in the second quarter, {late / 2**20:.1f} MiB in the last")
        if failures:
            sys.exit(f"{len(failures)} bad clients were not dealt with: {failures[:5]}")
        if connections or code:
            sys.exit(f"{connections} connections stayed open, exit code {code}")
        if late > early * 1.02 + (1 << 20):
            sys.exit("the memory of the server grew")


def plans(folder):
    """Two plans for the same input with outputs of other names."""
    for name in ("digits", "untrained"):
        subprocess.run([PROGRAM, "compile", EXAMPLES / f"{name}.onnx", "-q", "-o", f"{folder}/{name}.plan"], check=True)
    return [f"{folder}/{name}.plan" for name in ("digits", "untrained")]


def swaps(options):
    with tempfile.TemporaryDirectory() as folder:
        first, second = plans(folder)
        models = pathlib.Path(f"{folder}/models/digits")
        (models / "1").mkdir(parents=True)
        shutil.copy(first, models / "1/model.plan")
        server = Server(f"{folder}/models", "--model-control-mode", "poll", "--repository-poll-secs", "0")
        answered = count = 0
        while answered < options.requests:
            process = load(server, options.rate, 10)
            while process.poll() is None:
                (models / "2").mkdir()
                shutil.copy(second, models / "2/part")
                os.rename(models / "2/part", models / "2/model.plan")
                time.sleep(0.1)
                shutil.rmtree(models / "2")
                time.sleep(0.1)
                count += 2
            found = report(process)
            answered += found["answered"]
        loaded = server.get(server.http, "/v2/models/digits")
        code = server.terminate()
        print(f"{answered} requests answered while models replaced one another {count} times, none lost; p99 {found['latency_ms']['p99']:.2f} ms")
        if '"versions":["1"]' not in loaded or code:
            sys.exit(f"exit code {code}, in the end {loaded}")


def ends(options):
    with tempfile.TemporaryDirectory() as folder:
        plan = plans(folder)[0]
        answered = count = 0
        while answered < options.requests:
            server = Server(plan)
            process = load(server, options.rate, 4)
            time.sleep(random.uniform(1, 3))
            code = server.terminate()
            found = report(process)
            answered, count = answered + found["answered"], count + 1
            if code or not found["not_sent"]:
                sys.exit(f"exit code {code}: {found}")
        print(f"{answered} requests answered by {count} servers that got SIGTERM, none lost")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    for command in (clients, swaps, ends):
        sub = commands.add_parser(command.__name__)
        sub.set_defaults(run=command)
        if command is clients:
            sub.add_argument("--minutes", type=float, default=30)
            sub.add_argument("--rate", type=float, default=500)
        else:
            sub.add_argument("--requests", type=int, default=100_000)
            sub.add_argument("--rate", type=float, default=4000)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
