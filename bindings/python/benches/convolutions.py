"""Convolutions of random geometry next to OpenVINO (oneDNN) and onnxruntime, on one thread.

    PYTHONPATH=target/wheels/installed python3 bindings/python/benches/convolutions.py --seed 1 --count 100

Needs onnx, openvino and onnxruntime. The classes are those of real networks: windows of few channels, depthwise and grouped ones, one and
three dimensions, dilated ones. Each model runs in turn in each tool, and the fastest round counts. Printed are the ratios of our time to
OpenVINO's and to the better peer's: the deciles, and the slowest geometries.
"""

import argparse
import random
import statistics
import time

import numpy as np
import onnx
import onnxruntime
import openvino
from onnx import TensorProto, helper, numpy_helper

import of_opt

ROUNDS, SECONDS = 5, 0.04


def geometry(r):
    """The class of a convolution, the extents of its input, its output channels, window, strides, dilations and groups."""
    kind = r.choice(["few channels", "long window", "depthwise", "grouped", "1-D", "3-D", "dilated", "3x3", "1x1"])
    side, channels, out, group, dilation, stride = r.choice([14, 28, 56, 112]), r.choice([16, 32, 64, 96, 128]), r.choice([16, 32, 64, 128]), 1, 1, r.choice([1, 1, 2])
    window = [3, 3]
    if kind == "few channels":
        channels, out = r.choice([(1, 32), (3, 64), (8, 8), (8, 1), (32, 1), (2, 4), (1, 8)])
        window = r.choice([[3, 3], [5, 5], [7, 7], [7, 3], [3, 15]])
    elif kind == "long window":
        length = r.choice([4000, 8000, 16000])
        window, stride = [r.choice([10, 64, 256])], r.choice([2, 5, 64])
        return kind, [1, r.choice([1, 2]), length], r.choice([32, 129, 258]), window, [stride], [1], 1
    elif kind == "depthwise":
        channels = out = group = r.choice([24, 64, 96, 144, 240, 384])
        window = r.choice([[3, 3], [5, 5], [7, 7]])
    elif kind == "grouped":
        width, group = r.choice([4, 8, 16, 64]), r.choice([8, 32])
        channels, side = width * group, r.choice([7, 14, 28])
        out = channels
    elif kind == "1-D":
        channels = r.choice([32, 64, 256])
        return kind, [1, channels, r.choice([50, 200, 1000])], r.choice([64, 256]), [r.choice([3, 5, 9])], [stride], [1], 1
    elif kind == "3-D":
        side, channels = r.choice([7, 14, 28]), r.choice([3, 16, 64])
        return kind, [1, channels, 8, side, side], out, r.choice([[3, 3, 3], [1, 3, 3], [3, 1, 1]]), [1, stride, stride], [1, 1, 1], 1
    elif kind == "dilated":
        dilation, stride = r.choice([2, 3, 6]), 1
    elif kind == "1x1":
        window = [1, 1]
    return kind, [1, channels, side, side], out, window, [stride] * 2, [dilation] * 2, group


def model(dims, out, window, strides, dilations, group, numbers):
    """The bytes of an ONNX model of one convolution with a bias."""
    pads = [(w - 1) * d // 2 for w, d in zip(window, dilations)]
    weights = numbers.standard_normal([out, dims[1] // group, *window], dtype=np.float32)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], strides=strides, dilations=dilations, group=group, pads=pads * 2)
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(numbers.standard_normal(out, dtype=np.float32), "b")]
    value = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    graph = helper.make_graph([node], "conv", [value("x", dims)], [value("y", None)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def calls(text, x):
    """For each tool a function that runs the model, and its result."""
    session = of_opt.Session(of_opt.compile(text, threads=1), threads=1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    ort = onnxruntime.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    core = openvino.Core()
    limits = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(core.read_model(text), "CPU", limits).create_infer_request()
    request.set_input_tensor(openvino.Tensor(x))
    return {
        "of-opt": (lambda: session.run({"x": x}), lambda: session.run({"x": x})["y"]),
        "openvino": (request.infer, lambda: request.get_output_tensor(0).data),
        "onnxruntime": (lambda: ort.run(None, {"x": x}), lambda: ort.run(None, {"x": x})[0]),
    }


def measure(tools):
    """For each tool the seconds of a run in its fastest round."""
    best = dict.fromkeys(tools, float("inf"))
    for _ in range(ROUNDS):
        for name, (call, _) in tools.items():
            call()
            count, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < SECONDS:
                call()
                count += 1
            best[name] = min(best[name], passed / max(count, 1))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    r, rows = random.Random(args.seed), []
    for number in range(args.count):
        kind, *shape = geometry(r)
        numbers = np.random.default_rng(number)
        x = numbers.standard_normal(shape[0], dtype=np.float32)
        tools = calls(model(*shape, numbers), x)
        results = {name: result() for name, (call, result) in tools.items() if call() is not None or True}
        most = np.abs(results["onnxruntime"]).max()
        apart = np.abs(results["of-opt"] - results["onnxruntime"]).max() / most
        assert apart < 1e-4, (kind, shape, apart)
        times = measure(tools)
        rows.append((times["of-opt"] / times["openvino"], times["of-opt"] / min(times["openvino"], times["onnxruntime"]), kind, shape, times["of-opt"]))
    for at, title in ((0, "OpenVINO"), (1, "the better peer")):
        ratios = sorted(row[at] for row in rows)
        deciles = " ".join(f"{d:.2f}" for d in statistics.quantiles(ratios, n=10))
        print(f"our time / that of {title}: geometric mean {statistics.geometric_mean(ratios):.3f}, deciles {deciles}, most {ratios[-1]:.2f}")
    for ratio, better, kind, shape, seconds in sorted(rows, key=lambda row: -row[0])[: max(5, args.count // 10)]:
        print(f"{ratio:.2f} ({better:.2f} of the better) {kind}: {shape}, {1e6 * seconds:.0f} us")


if __name__ == "__main__":
    main()
