"""A suite for tests of the pack on the emulated GPU, without torch: small functions as IR text, and numbers made here."""

import math
import os
import pathlib
import struct
import time

ROWS, COLUMNS = 4, 8


def cases():
    def case(name, **more):
        return {"name": name, "group": "elementwise", "kind": "kernel", "dtype": "f32", "small": True, "variants": {"ours": ""}, "peers": ["torch"], **more}

    found = [case("tanh"), case("neg", kind="model"), case("wrong"), case("hangs"), case("refused", variants={"ours": "", "ours+tf32": "+nothing"})]
    return found + ([case("late")] if os.environ.get("SUITE_LATE") else [])


FUNCTIONS = {"tanh": math.tanh, "neg": lambda x: -x, "wrong": lambda x: x, "hangs": abs, "refused": abs, "late": abs}


def facts():
    return {"torch": "none"}


def numbers():
    return [i / 16 - 1 for i in range(ROWS * COLUMNS)]


def prepare(case, folder, machine):
    (folder / "inputs").mkdir()
    (folder / "expected").mkdir()
    save(folder / "inputs" / "input_0.npy", numbers())
    save(folder / "expected" / "output_0.npy", [FUNCTIONS[case["name"]](x) for x in numbers()])
    op = case["name"] if case["name"] in ("tanh", "neg") else "abs"
    kind, file = f"tensor<{ROWS}x{COLUMNS}xf32>", folder / "model.of"
    file.write_text(f"func @main(%x: {kind}) -> ({kind}) {{\n  %y = of.{op} %x : ({kind}) -> {kind}\n  of.return %y : ({kind}) -> ()\n}}\n")
    return file


def save(file, values):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({ROWS}, {COLUMNS}), }}"
    header = header.ljust(117) + "\n"
    file.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(values)}f", *values))


def load(file):
    return struct.unpack(f"<{ROWS * COLUMNS}f", file.read_bytes()[-4 * ROWS * COLUMNS :])


def compare(case, variant, expected, got):
    pairs = zip(load(expected / "output_0.npy"), load(got / "output_0.npy"))
    worst = max(abs(a - b) for a, b in pairs)
    return {"ok": worst < 1e-6, "error": worst, **({} if worst < 1e-6 else {"why": f"the error is {worst:.3g}"})}


def peer(case, name, folder, seconds):
    note = pathlib.Path(os.environ["SUITE_NOTES"])
    with open(note, "a") as f:
        f.write(f"{case['name']}\n")
    if case["name"] == "hangs":
        # A process of the case that would outlive it.
        if os.fork() == 0:
            time.sleep(float(os.environ.get("SUITE_HANG", "6")))
            with open(note, "a") as f:
                f.write("outlived\n")
            os._exit(0)
        time.sleep(60)
    if case["name"] == "wrong":
        os.kill(os.getpid(), 9)
    return {"device_ms": 0.5, "device_min_ms": 0.4, "median_ms": 1.0, "min_ms": 0.9, "runs": 3}
