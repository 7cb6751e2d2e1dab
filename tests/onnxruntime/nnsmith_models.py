"""Compares random models that NNSmith generates with onnxruntime.

python nnsmith_models.py OF_OPT DIR MODELS SEED

NNSmith makes graphs of operators whose constraints a solver satisfies, and PyTorch exports them. Models and values are
written to DIR/SEED, and OF_OPT runs them. Results that differ are a failure, as are models that are refused, that
crash, or that take more than a minute. Floats may differ by the noise, which is measured: onnxruntime runs again on
inputs and weights that differ in their last places. Needs the packages nnsmith, torch, onnx, numpy and onnxruntime.
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
from onnx import numpy_helper

from compare_models import differs
from runtime import outcomes, session

LONGEST = 60  # seconds a model
NODES = 10
PLACES = (1, 1, 8, 8)  # last places by which operands move, in runs that measure the noise
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
    x = np.asarray(x)
    if x.dtype.kind != "f":
        return x
    with np.errstate(invalid="ignore", over="ignore"):
        return (x * (1 + random.integers(-places, places + 1, x.shape) * np.finfo(x.dtype).eps)).astype(x.dtype)


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
    for i, (want, apart) in enumerate(zip(wanted, noise)):
        got = numpy_helper.to_array(onnx.load_tensor(folder / "ours" / f"output_{i}.pb"))
        # An integer that a last place of an input changes says nothing.
        if want.dtype.kind in "biu" and got.shape == want.shape and got.dtype == want.dtype:
            got = np.where(apart > 0, want, got)
        difference = differs(want, got, apart)
        if difference:
            return "DIFFERS", f"output {i}: {difference}"
    return "agrees", ""


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
