"""What a call costs in Python in addition to one in C, and what the import costs in addition to NumPy's.

    cargo build --release -p of-runtime-c && cargo xtask wheel --test
    PYTHONPATH=target/wheels/installed python3 bindings/python/benches/overhead.py target/release/libof_runtime.so

Both run the model of examples/digits on one image and one thread, in turn, and the fastest round of each counts.
"""

import ctypes
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import of_opt

CALLS, ROUNDS = 200, 300
DIGITS = Path(__file__).resolve().parents[3] / "examples/digits/digits.onnx"


class Tensor(ctypes.Structure):
    _fields_ = [
        ("dtype", ctypes.c_uint32),
        ("rank", ctypes.c_uint32),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
    ]


def fastest(calls):
    """For each function the nanoseconds of a call in its fastest round."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for i, call in enumerate(calls):
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            best[i] = min(best[i], (time.perf_counter_ns() - start) / CALLS)
    return best


def c_session(library, plan, image, result):
    """A session of the C interface."""
    data, opened, session = plan.to_bytes(), ctypes.c_void_p(), ctypes.c_void_p()
    assert library.of_plan_open_memory(data, ctypes.c_size_t(len(data)), ctypes.byref(opened)) == 0
    assert library.of_session_new(opened, None, ctypes.byref(session)) == 0
    dims = (ctypes.c_int64 * 4)(*image.shape)
    tensor = Tensor(2, 4, dims, image.ctypes.data, image.nbytes)
    assert library.of_session_set_input(session, ctypes.c_size_t(0), ctypes.byref(tensor)) == 0
    room = (session, ctypes.c_size_t(0), ctypes.c_void_p(result.ctypes.data), ctypes.c_size_t(result.nbytes))
    assert library.of_session_set_output(*room) == 0
    return session


def main():
    library = ctypes.CDLL(sys.argv[1])
    plan = of_opt.compile(DIGITS, shapes={"N": 1}, threads=1)
    image, result = np.full((1, 1, 8, 8), 0.5, np.float32), np.zeros((1, 10), np.float32)
    session, c = of_opt.Session(plan), c_session(library, plan, image, result)
    inputs, outputs = {"image": image}, {"probability": result}
    run, version = library.of_session_run, library.of_runtime_abi_version
    python, into, c_run, call = fastest(
        [lambda: session.run(inputs), lambda: session.run(inputs, outputs), lambda: run(c), lambda: version(c)]
    )
    c_run -= call
    print(f"C, of_session_run                 {c_run:8.0f} ns   (without {call:.0f} ns of ctypes)")
    print(f"Python, run(inputs)               {python:8.0f} ns   {python - c_run:+.0f} ns")
    print(f"Python, run(inputs, outputs)      {into:8.0f} ns   {into - c_run:+.0f} ns")

    script = "import numpy, time; start = time.perf_counter(); import of_opt; print(time.perf_counter() - start)"
    imports = [float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(20)]
    print(f"import of_opt after numpy         {min(imports) * 1e3:8.1f} ms")


main()
