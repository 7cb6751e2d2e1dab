"""What a call costs in Python in addition to one in C, and what the import costs in addition to NumPy's.

    cargo build --release -p of-runtime-c && cargo xtask wheel --test
    PYTHONPATH=target/wheels/installed python3 bindings/python/benches/overhead.py target/release/libof_runtime.so

Both run the model of examples/digits on one image and one thread, in turn, and the fastest round of each counts. Where onnxruntime is
installed, it takes part, and so does its interface in this package.
"""

import ctypes
import importlib
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


def onnxruntime_calls(package, inputs, result):
    """The calls of a package with onnxruntime's interface: with arrays, and with bound memory."""
    try:
        ort = importlib.import_module(package)
    except ImportError:
        print(f"{package} is not installed, and left out")
        return {}
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(str(DIGITS), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    (name,), (output,) = inputs, session.get_outputs()
    binding.bind_cpu_input(name, inputs[name])
    binding.bind_output(output.name, "cpu", 0, result.dtype.type, result.shape, result.ctypes.data)
    return {
        f"{package}, run(None, inputs)": lambda: session.run(None, inputs),
        f"{package}, run_with_iobinding": lambda: session.run_with_iobinding(binding),
    }


def main():
    library = ctypes.CDLL(sys.argv[1])
    plan = of_opt.compile(DIGITS, shapes={"N": 1}, threads=1)
    image, result = np.full((1, 1, 8, 8), 0.5, np.float32), np.zeros((1, 10), np.float32)
    session, c = of_opt.Session(plan), c_session(library, plan, image, result)
    inputs, outputs = {"image": image}, {"probability": result}
    run, version = library.of_session_run, library.of_runtime_abi_version
    calls = {
        "of_opt, run(inputs)": lambda: session.run(inputs),
        "of_opt, run(inputs, outputs)": lambda: session.run(inputs, outputs),
        "C, of_session_run": lambda: run(c),
        "ctypes": lambda: version(c),
        **onnxruntime_calls("of_opt.onnxruntime", inputs, result),
        **onnxruntime_calls("onnxruntime", inputs, result),
    }
    times = dict(zip(calls, fastest(list(calls.values()))))
    call = times.pop("ctypes")
    c_run = times.pop("C, of_session_run") - call
    print(f"{'C, of_session_run':44} {c_run:8.0f} ns   (without {call:.0f} ns of ctypes)")
    for name, ns in times.items():
        print(f"{name:44} {ns:8.0f} ns   {ns - c_run:+.0f} ns")

    script = "import numpy, time; start = time.perf_counter(); import of_opt; print(time.perf_counter() - start)"
    imports = [float(subprocess.check_output([sys.executable, "-c", script])) for _ in range(20)]
    print(f"import of_opt after numpy         {min(imports) * 1e3:8.1f} ms")


main()
