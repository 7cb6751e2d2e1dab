"""Compares random models that NNSmith generates with onnxruntime.

python nnsmith_models.py OF_OPT DIR MODELS SEED

NNSmith makes graphs of operators whose constraints a solver satisfies, and PyTorch exports them. Models and values are
written to DIR/SEED, and OF_OPT runs them. Results that differ are a failure, as are models that are refused, that
crash, or that take more than a minute. Floats may differ by the noise, which is measured: onnxruntime runs again on
inputs and weights that differ in their last places. What differs is compared again with a run node by node, where each
result is rounded to its type: onnxruntime computes chains of 16-bit floats in f32. Models are left out where ONNX does
not define a result on their values. Needs the packages nnsmith, torch, onnx, numpy and onnxruntime.
"""

import collections
import logging
import pathlib
import subprocess
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from compare_models import differs
from runtime import outcomes, session

LONGEST = 60  # seconds a model
NODES = 10
PLACES = (1, 1, 8, 8)  # last places by which operands move, in runs that measure the noise
ORDERED = {"ArgMax", "ArgMin", "Clip", "Max", "MaxPool", "Min", "ReduceMax", "ReduceMin", "Relu", "TopK"}  # compare elements
STEP = 64  # how much further a result moves in the latter runs, where it is near a step of a rounding


def generator():
    """A function that makes the model of a seed, with its inputs by name."""
    # The exporter of PyTorch that traces: the other one takes seconds a model.
    export = torch.onnx.export
    torch.onnx.export = lambda *args, **options: export(*args, **options, dynamo=False)
    torch.set_num_threads(1)
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model
    from nnsmith.narrow_spec import auto_opset
    from nnsmith.util import set_seed

    kind = Model.init("onnx", backend_target="cpu")
    kind.add_seed_setter()
    operators = auto_opset(kind, None, vulops=True)
    activate_ext(opset=operators, factory=None)

    def make(seed):
        set_seed(seed)
        nodes = 1 + seed % NODES
        graph = model_gen(opset=operators, method="symbolic-cinit", seed=seed, max_elem_per_tensor=2**14, max_nodes=nodes)
        model = kind.from_gir(graph.make_concrete())
        model.refine_weights()
        return model.native_model, model.make_oracle().input

    return make


def perturbed(x, random, places):
    """`x` with other last places."""
    return moved(x, random.integers(-places, places + 1, np.shape(x)))


def moved(x, places):
    """`x` moved by last places."""
    x = np.asarray(x)
    if x.dtype.kind != "f":
        return x
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(x * (1 + places * np.finfo(x.dtype).eps)).astype(x.dtype)


def undefined(node, given):
    """Why ONNX does not define the result of a node on these values, or None."""
    floats = [x for x in given if x.dtype.kind == "f"]
    if node.op_type in ORDERED and any(np.isnan(x).any() for x in floats):
        return f"the order of NaN in {node.op_type}"
    if node.op_type == "Cast" and floats:
        to = helper.tensor_dtype_to_np_dtype(helper.get_node_attr_value(node, "to"))
        if to.kind in "iu":
            x, range = given[0].astype(np.float64), np.iinfo(to)
            if not ((x > range.min - 1.0) & (x < range.max + 1.0)).all():
                return "a float that no integer of the type is"
    if node.op_type in ("Div", "Mod") and given[1].dtype.kind in "iu" and not given[1].all():
        return "an integer divided by zero"
    return None


def stepwise(model, inputs, move=lambda x: x):
    """The results of a run node by node, in which each result of a node is moved, and why they are not defined, or None."""
    graph, why = model.graph, None
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    values.update(zip((v.name for v in graph.input), map(np.asarray, inputs)))
    for node in graph.node:
        names = list(dict.fromkeys(n for n in node.input if n))
        given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(values[n].dtype), values[n].shape) for n in names]
        out = [onnx.ValueInfoProto(name=n) for n in node.output if n]
        alone = helper.make_model(helper.make_graph([node], "node", given, out), opset_imports=model.opset_import, ir_version=model.ir_version)
        why = why or undefined(node, [values[n] for n in node.input if n])
        results = session(alone, False)([values[n] for n in names])
        # A constant is not rounded.
        values.update((v.name, np.asarray(move(x) if names else x)) for v, x in zip(out, results))
    return [values[v.name] for v in graph.output], why


def judge_by_nodes(model, inputs, got):
    """What becomes of a model whose results differ from those of onnxruntime: a word, and why."""
    want, why = stepwise(model, inputs)
    if why:
        return "undefined", why
    noise = [np.zeros(w.shape) for w in want]
    randoms = [np.random.default_rng(n) for n in range(12)]
    moves = [lambda x, random=random: perturbed(x, random, 1) for random in randoms]
    # Any element may be rounded up or down.
    for move in [lambda x: moved(x, 1), lambda x: moved(x, -1), *moves]:
        found, _ = stepwise(model, inputs, move)
        for total, w, now in zip(noise, want, found):
            with np.errstate(invalid="ignore"):
                apart = np.abs(w.astype(np.float64) - now.astype(np.float64)) if w.shape == now.shape else np.inf
            same = (w == now) | ((w != w) & (now != now))
            np.maximum(total, np.where(same, 0, np.where(np.isnan(apart), np.inf, apart)), out=total)
    difference = difference_of(want, got, noise)
    return ("DIFFERS", f"node by node, {difference}") if difference else ("agrees", "")


def difference_of(wanted, results, noise):
    """The first difference of an output beyond the noise, or None."""
    for i, (want, got, apart) in enumerate(zip(wanted, results, noise)):
        # An integer that a last place of an input changes says nothing.
        if want.dtype.kind in "biu" and got.shape == want.shape and got.dtype == want.dtype:
            got = np.where(apart > 0, want, got)
        difference = differs(want, got, apart)
        if difference:
            return f"output {i}: {difference}"
    return None


def noise_of(model, inputs, results):
    """How far each result moves where inputs and weights do by their last places; infinite near a step."""
    near, far = [np.zeros(r.shape) for r in results], [np.zeros(r.shape) for r in results]
    for n, places in enumerate(PLACES):
        random = np.random.default_rng(n)
        moved = onnx.ModelProto.FromString(model.SerializeToString())
        tensors = list(moved.graph.initializer)
        tensors += [a.t for node in moved.graph.node if node.op_type == "Constant" for a in node.attribute if a.HasField("t")]
        for t in tensors:
            t.CopyFrom(numpy_helper.from_array(perturbed(numpy_helper.to_array(t), random, places), t.name))
        found = session(moved, n % 2 == 0)([perturbed(x, random, places) for x in inputs])
        for total, was, now in zip(near if places == 1 else far, results, found):
            with np.errstate(invalid="ignore"):
                apart = np.abs(was.astype(np.float64) - now.astype(np.float64)) if was.shape == now.shape else np.inf
            # Where one is a number and the other is not, nothing is known.
            same = (was == now) | ((was != was) & (now != now))
            np.maximum(total, np.where(same, 0, np.where(np.isnan(apart), np.inf, apart)), out=total)
    with np.errstate(invalid="ignore"):
        return [np.where(f > STEP * np.maximum(n, np.finfo(np.float32).tiny), np.inf, n) for n, f in zip(near, far)]


def write(folder, model, inputs):
    data = folder / "test_data_set_0"
    data.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    for i, (v, x) in enumerate(zip(model.graph.input, inputs)):
        (data / f"input_{i}.pb").write_bytes(numpy_helper.from_array(np.asarray(x), v.name).SerializeToString())


def compare(of_opt, folder, model, inputs):
    """What becomes of a model: a word, and why."""
    try:
        wanted = session(model)(inputs)
        noise = noise_of(model, inputs, wanted)
    except Exception as e:
        return "not run by onnxruntime", str(e)[:120]
    command = [of_opt, "run", folder / "model.onnx", "--inputs", folder / "test_data_set_0", "--outputs", folder / "ours"]
    try:
        done = subprocess.run([*command, "--threads", "1", "--color", "never"], capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return "SLOW", f"more than {LONGEST} s"
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        crashed = done.returncode < 0 or done.returncode == 101
        return "CRASHES" if crashed else "REFUSED", f"exit status {done.returncode}: {(errors or [done.stderr])[0]}"
    results = [numpy_helper.to_array(onnx.load_tensor(folder / "ours" / f"output_{i}.pb")) for i in range(len(wanted))]
    return judge_by_nodes(model, inputs, results) if difference_of(wanted, results, noise) else ("agrees", "")


def main():
    of_opt, folder, models, first = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    make = generator()

    def judge(at):
        try:
            model, named = make(int(at.name))
        except Exception as e:
            return "not generated", repr(e)
        inputs = [named[v.name] for v in model.graph.input]
        write(at, model, inputs)
        return compare(of_opt, at, model, inputs)

    def gone(_, what):
        return "not generated", what

    counts, reasons = collections.Counter(), collections.Counter()
    for at, word, why in outcomes([folder / str(first + i) for i in range(models)], judge, gone, 3 * LONGEST):
        counts[word] += 1
        reasons[f"{word}: {why}"] += not word.isupper() and why != ""
        if word.isupper():
            print(f"seed {at.name}: {word.lower()}: {' '.join(why.split())}", flush=True)
        elif at.exists():
            for file in sorted(at.rglob("*"), reverse=True):
                file.rmdir() if file.is_dir() else file.unlink()
            at.rmdir()
        if sum(counts.values()) % 100 == 0:
            print(", ".join(f"{n} {word.lower()}" for word, n in sorted(counts.items())), flush=True)
    for reason, n in reasons.most_common(20):
        print(f"{n:5} {reason}")
    print(", ".join(f"{n} {word.lower()}" for word, n in sorted(counts.items())))
    return any(word.isupper() for word in counts)


if __name__ == "__main__":
    sys.exit(main())
