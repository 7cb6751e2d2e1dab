"""Compares the models that `of-fuzz --onnx DIR` writes with onnxruntime.

python compare_models.py DIR [SEED ...]

Each model must pass onnx.checker, and onnxruntime must compute what the interpreter did, as far as rounding errors
allow. What onnxruntime has no kernel for is counted as refused; what it is known to compute otherwise is in KNOWN, and
counted with its reason. Needs the packages onnx, numpy and onnxruntime.
"""

import collections
import pathlib
import sys

import numpy as np
import onnx
from onnx import helper, numpy_helper

from runtime import outcomes, read, session

LONGEST = 60  # seconds a model
# How far results may differ: so many times the noise that was measured, and so many last places of the largest number
# of a result, as sums that cancel have the errors of their terms.
NOISE, PLACES = 16, 32
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Node:
    """A node, with what is known of its inputs: shapes that are declared, values of constants and of the model's inputs."""

    def __init__(self, node, shapes, values):
        self.op, self.inputs = node.op_type, list(node.input)
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        self.shapes, self.values = shapes, values

    def has(self, i):
        return i < len(self.inputs) and self.inputs[i] != ""

    def shape(self, i):
        return self.shapes.get(self.inputs[i])

    def value(self, i):
        return self.values.get(self.inputs[i]) if self.has(i) else None

    def empty(self, i):
        return 0 in (self.shape(i) or ())

    def text(self, name):
        return self.attributes.get(name, b"").decode()


def without_steps(node):
    lengths = node.value(4)
    return node.has(4) and (lengths is None or 0 in lengths)


def keeps_an_extent(node):
    """Whether a Resize has a scale other than 1 that leaves the extent of its axis as it is."""
    shape, scales = node.shape(0), node.value(2)
    if shape is None or scales is None:
        return node.has(2)
    axes = node.attributes.get("axes") or range(len(shape))
    return any(s != 1 and int(shape[a] * s) == shape[a] for a, s in zip(axes, scales))


def has_exact_products_of_bytes():
    """Whether the processor adds products of bytes without saturation; other processors than those of x86-64 do."""
    try:
        flags = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return True
    return "avx2" not in flags or "avx512_vnni" in flags or "avx_vnni" in flags


EXACT_BYTES = has_exact_products_of_bytes()

# Where onnxruntime computes something else: which nodes, and why. Whatever depends on such a node may differ. Most were
# set against ONNX's text and its reference implementation; "suspected" marks an explanation that no small model has
# shown yet.
KNOWN = [
    ("NonZero of a number gives (0, N) says ONNX, onnxruntime gives (1, N)",
     lambda n: n.op == "NonZero" and n.shape(0) == ()),
    ("StringSplit: a delimiter splits '' into one piece, onnxruntime counts none", lambda n: n.op == "StringSplit"),
    ("what the final state of a sequence without steps is, ONNX does not say: the initial one, or onnxruntime's zero",
     lambda n: n.op in ("RNN", "GRU", "LSTM") and without_steps(n)),
    ("Resize: an extent that is computed from a scale is fractional in coordinates, onnxruntime cuts it off",
     lambda n: n.op == "Resize" and n.text("coordinate_transformation_mode") == "align_corners"),
    ("suspected: Resize: the same in pytorch_half_pixel, where the result has one element",
     lambda n: n.op == "Resize" and n.text("coordinate_transformation_mode") == "pytorch_half_pixel"),
    ("Resize: onnxruntime rounds the weights of the widened cubic filter to few digits",
     lambda n: n.op == "Resize" and n.attributes.get("antialias") and n.text("mode") == "cubic"),
    ("Resize: with antialias onnxruntime skips an axis whose extent stays the same, ONNX's reference resamples it",
     lambda n: n.op == "Resize" and n.attributes.get("antialias") and keeps_an_extent(n)),
    ("MeanVarianceNormalization: onnxruntime does not add ONNX's 1e-9 to the deviation, and divides by zero",
     lambda n: n.op == "MeanVarianceNormalization"),
    ("InstanceNormalization: onnxruntime crashes without elements",
     lambda n: n.op == "InstanceNormalization" and n.empty(0)),
    ("suspected: InstanceNormalization computes x s + (b - mean s), in onnxruntime, which cancels; groups go the same way",
     lambda n: n.op in ("InstanceNormalization", "GroupNormalization")),
    ("GridSample: cubic, outside: ONNX's reference moves the point to the border, onnxruntime its neighbours",
     lambda n: n.op == "GridSample" and n.text("mode") in ("cubic", "bicubic") and n.text("padding_mode") not in ("", "zeros")),
    ("Expand: onnxruntime takes an extent of 0 for 1",
     lambda n: n.op == "Expand" and (n.value(1) is None or 0 in n.value(1))),
    ("MaxUnpool: indices count in the result without output_shape, onnxruntime has them count in the given shape",
     lambda n: n.op == "MaxUnpool" and n.has(2)),
    ("reductions without keepdims of nothing keep their axes in onnxruntime",
     lambda n: n.op.startswith("Reduce") and n.attributes.get("keepdims") == 0 and n.empty(0)),
    ("suspected: QLinearMatMul: onnxruntime leaves products of nothing unwritten, they are the zero point",
     lambda n: n.op == "QLinearMatMul" and (n.empty(0) or n.empty(3))),
    ("onnxruntime's sums of products of bytes saturate on processors without VNNI",
     lambda n: not EXACT_BYTES and n.op in ("ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul")),
    ("Conv: onnxruntime does not end, or gives up, without channels", lambda n: n.op == "Conv" and n.empty(0)),
    ("DFT: onnxruntime does not make up the other half of a one-sided spectrum",
     lambda n: n.op == "DFT" and n.attributes.get("onesided") and n.attributes.get("inverse")),
    ("suspected: DFT, STFT: what cancels exactly in long sums is noise elsewhere, which the noise that is measured does not show",
     lambda n: n.op in ("DFT", "STFT")),
    ("suspected: 1 + tanh in Gelu cancels, and onnxruntime's tanh is an approximation", lambda n: n.op == "Gelu"),
    ("BitCast shows the last bits of rounding errors, and signs of zeros", lambda n: n.op == "BitCast"),
    ("suspected: Cast to parts of bytes rounds in onnxruntime, where ONNX leaves open how",
     lambda n: n.op == "Cast" and n.attributes["to"] in (21, 22, 25, 26)),
    ("Cast of negative numbers to float8e8m0 is undefined", lambda n: n.op == "Cast" and n.attributes["to"] == 24),
]

# What onnxruntime says of operators that it does not have in the form that ONNX defines. Everything else that it calls
# invalid is taken for that. ReorderOutput is an operator of its own, which it puts in and then does not like.
REFUSALS = ("ai.onnx.preview.training", "left_window_size", "right_window_size", "ReorderOutput")
INVALID = ("INVALID_GRAPH", "ShapeInferenceError", "TypeInferenceError")


def known(model, inputs):
    """For each value of the model, why it may differ."""
    shapes, values, why = {}, dict(inputs), {}

    def declare(infos):
        for v in infos:
            if v.type.tensor_type.HasField("shape"):
                dims = v.type.tensor_type.shape.dim
                shapes[v.name] = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)

    def walk(graph):
        declare([*graph.input, *graph.output, *graph.value_info])
        for t in graph.initializer:
            shapes[t.name] = tuple(t.dims)
            values[t.name] = numpy_helper.to_array(t)
        for node in graph.node:
            if node.op_type == "Constant":
                values[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
                shapes[node.output[0]] = values[node.output[0]].shape
                continue
            reasons = [why[i] for i in node.input if i in why]
            # What is inside may differ because of what it captures, and makes the whole differ.
            for inner in (a.g for a in node.attribute if a.HasField("g")):
                if reasons:
                    why.update((v.name, reasons[0]) for v in inner.input)
                walk(inner)
                reasons += [why[name] for n in inner.node for name in n.output if name in why]
            seen = Node(node, shapes, values)
            reasons += [reason for reason, test in KNOWN if test(seen)]
            if reasons:
                why.update((name, reasons[0]) for name in node.output)

    walk(model.graph)
    return why


def differs(want, got, noise):
    """Why `got` is not `want`, or None."""
    if want is None or got is None:
        return None if want is got else "one is empty"
    if isinstance(want, list):
        if len(want) != len(got):
            return f"{len(got)} elements, not {len(want)}"
        return next((w for w in (differs(a, b, None) for a, b in zip(want, got)) if w), None)
    want, got = np.asarray(want), np.asarray(got)
    if want.shape != got.shape:
        return f"shape {got.shape}, not {want.shape}"
    if want.dtype.kind in "OSU":
        return None if list(map(str, want.ravel())) == list(map(str, got.ravel())) else "strings"
    if want.dtype != got.dtype:
        return f"type {got.dtype}, not {want.dtype}"
    x, y = want.astype(np.float64), got.astype(np.float64)
    if want.dtype.kind in "biu":
        bad = want != got
    else:
        noise = np.zeros(x.shape) if noise is None else noise
        last = EPSILON.get(want.dtype.name, 0.25)
        finite = np.abs(x[np.isfinite(x)])
        # Numbers of few bits are neighbours, or they are not: their last place is their own.
        size = finite.max(initial=1.0) if want.dtype.kind == "f" else np.abs(x)
        with np.errstate(invalid="ignore"):
            near = np.abs(x - y) <= NOISE * noise + PLACES * last * size
        bad = ~((x == y) | (np.isnan(x) & np.isnan(y)) | near | np.isinf(noise))
    if not bad.any():
        return None
    at = tuple(map(int, np.argwhere(bad)[0]))
    return f"{want.dtype}{list(want.shape)} at {list(at)}: {y[at]}, not {x[at]} ({bad.sum()} of {bad.size})"


def judge(folder):
    """What becomes of the model in `folder`: a word, and why."""
    model = onnx.load(folder / "model.onnx")
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as e:
        return "INVALID", str(e)
    data = folder / "test_data_set_0"
    of = lambda kind, values: [read(data / f"{kind}_{i}.pb", v.type) for i, v in enumerate(values)]
    inputs, wanted = of("input", model.graph.input), of("output", model.graph.output)
    try:
        results = session(model)(inputs)
    except Exception as e:
        bad = any(word in str(e) for word in INVALID) and not any(word in str(e) for word in REFUSALS)
        return "INVALID" if bad else "refused", str(e)
    why = known(model, zip((v.name for v in model.graph.input), inputs))
    outcome = ("agrees", "")
    for i, (v, want, got) in enumerate(zip(model.graph.output, wanted, results)):
        noise = data / f"noise_{i}.pb"
        difference = differs(want, got, read(noise, v.type) if noise.exists() else None)
        if difference and v.name not in why:
            return "DIFFERS", f"output {i}: {difference}"
        if difference:
            outcome = "known", why[v.name]
    return outcome


def gone(folder, what):
    """The same for a model that onnxruntime did not survive."""
    model = onnx.load(folder / "model.onnx")
    reasons = [r for r in known(model, []).values() if "crash" in r or "does not end" in r]
    return ("known", reasons[0]) if reasons else ("CRASHES", what)


def main():
    folder = pathlib.Path(sys.argv[1])
    seeds = sys.argv[2:] or [p.name for p in folder.iterdir() if (p / "model.onnx").exists()]
    counts, reasons = collections.Counter(), collections.Counter()
    for at, word, why in outcomes([folder / seed for seed in sorted(seeds, key=int)], judge, gone, LONGEST):
        counts[word] += 1
        reasons[why] += word == "known"
        if word.isupper():
            print(f"seed {at.name}: {word.lower()}: {' '.join(why.split())}", flush=True)
    for reason, n in reasons.most_common():
        if n:
            print(f"{n:5} differ: {reason}")
    print(", ".join(f"{n} {word.lower()}" for word, n in sorted(counts.items())))
    return any(word.isupper() for word in counts)


if __name__ == "__main__":
    sys.exit(main())
