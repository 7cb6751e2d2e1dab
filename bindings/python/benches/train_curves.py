"""Models of PyTorch, trained by `of-opt train` and by PyTorch from the same weights on the same batches: loss curves and exports.

    cargo build --release
    python3 bindings/python/benches/train_curves.py --builder FILE.py NAME … [--of-opt target/release/of-opt] [--steps 20]
        [--batch 2] [--learning-rate 0.001] [--optimizer sgd]

FILE.py has a function `build(name)`, which returns a module, a dictionary with lists of example inputs, and their dynamic axes. The module
is exported without folding, and trained on random data: cross entropy for scores of more than 1000 tokens, else the mean squared error
of the first output. Batch normalisations use the statistics of the batch; dropouts are off. Losses of each step are equal within 1e-4.
Where they are not, both curves are compared with PyTorch's in f64, and ours may be five times as far from it as PyTorch's in f32.
The trained model is exported, and onnxruntime's outputs are those of `of-opt run` within 1e-4 of the largest number; boxes with equal
scores may be in another order. A model that has no
gradient is refused, with the op. A detector whose number of boxes follows from its weights has no labels of fixed extents, in PyTorch
neither: it is counted as such. The learning rate is divided by a first mean squared error above 100. The last line is the count of all
models so far, also after SIGTERM. It needs torch, onnx and onnxruntime.
"""

import argparse
import gc
import importlib.util
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time

import numpy
import torch
from torch import nn

TOLERANCE = 1e-4
# How much further from f64 than PyTorch's f32 a curve may be, where that is more than the tolerance.
SPREAD = 5
TOKENS = 1000
# A first loss by which the learning rate is divided where it is larger.
LARGE = 100


def load_builder(path):
    spec = importlib.util.spec_from_file_location("builder", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build


def fields(data):
    """The fields of a message of protocol buffers: number, value."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        size = {1: 8, 5: 4}.get(kind)
        if kind == 0:
            value = varint()
        else:
            size = varint() if size is None else size
            value = data[at : at + size]
            at += size
        yield key >> 3, value


def losses_of(folder):
    """The scalars `train/loss` of the event file in a folder, in the order of the steps."""
    (name,) = os.listdir(folder)
    with open(os.path.join(folder, name), "rb") as file:
        data = file.read()
    at, out = 0, []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        for number, summary in fields(data[at + 12 : at + 12 + size]):
            if number != 5:
                continue
            for _, value in fields(summary):
                scalar = dict(fields(value))
                if scalar.get(1) == b"train/loss":
                    out.append(struct.unpack("<f", scalar[2])[0])
        at += 16 + size
    return out


def like(example, samples, random):
    """Random numbers of the type and range of an example, for so many samples."""
    dims = [samples, *example.shape[1:]]
    if example.is_floating_point():
        return torch.randn(dims, generator=random) * example.std().clamp(min=0.1)
    low, high = int(example.min()), int(example.max())
    return torch.randint(low, high + 1, dims, generator=random)


def run(command, folder):
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def outputs_of(module, inputs):
    out = module(*inputs)
    return out if isinstance(out, tuple) else (out,)


def losses_of_torch(module, data, labels, is_text, rate, options, batch):
    """Trains a module, and returns the loss of each step."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.train()
    # All parameters of the exported model are trained.
    parameters = [p.requires_grad_(True) for p in module.parameters()]
    optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
    optimizer = optimizers[options.optimizer](parameters, lr=rate)
    losses = []
    for step in range(options.steps):
        part = slice(step * batch, (step + 1) * batch)
        scores = outputs_of(module, [d[part] for d in data])[0]
        if is_text:
            loss = nn.functional.cross_entropy(scores.transpose(1, 2), labels[part])
        else:
            loss = nn.functional.mse_loss(scores, labels[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class OpenOutput(Exception):
    """The extents of an output depend on values, so that no labels are of its extents in every step."""


def difference(got, expected):
    """The largest difference of outputs, in parts of the largest number of each.

    Detections are several outputs with a row for each box, in the order of their scores. Boxes whose scores differ by rounding may be in
    any order, so that each box is compared with the one that is closest to it, and with none twice.
    """
    if [values.shape for values in got] != [values.shape for values in expected]:
        return float("inf")
    scales = [max(float(numpy.abs(values).max(initial=0)), 1e-30) for values in expected]
    pairs = list(zip(got, expected, scales, strict=True))
    worst = max(float(numpy.abs(g.astype(numpy.float64) - e).max(initial=0)) / s for g, e, s in pairs)
    rows = {values.shape[0] for values in expected if values.ndim}
    if worst <= TOLERANCE or len(expected) < 2 or len(rows) != 1 or not all(values.ndim for values in expected):
        return worst
    count = rows.pop()
    own, their = (
        numpy.concatenate([pair[which].reshape(count, -1).astype(numpy.float64) / pair[2] for pair in pairs], axis=1)
        for which in (0, 1)
    )
    worst, left = 0.0, numpy.ones(count, dtype=bool)
    for row in own:
        distances = numpy.where(left, numpy.abs(their - row).max(axis=1), numpy.inf)
        closest = int(distances.argmin())
        left[closest] = False
        worst = max(worst, float(distances[closest]))
    return worst


def check(name, build, options, folder):
    """Trains a model both ways; returns the largest differences of losses, of PyTorch's losses from f64, and of outputs."""
    import onnx
    import onnxruntime

    built = build(name)
    module, sets, axes = built[0], built[1], built[2]
    torch.set_grad_enabled(True)
    examples = next(iter(sets.values()))
    names = [f"in{i}" for i in range(len(examples))]
    module.eval()
    with torch.no_grad():
        count = len(outputs_of(module, examples))
        torch.onnx.export(
            module, tuple(examples), os.path.join(folder, "model.onnx"), dynamo=False, do_constant_folding=False,
            input_names=names, output_names=[f"out{i}" for i in range(count)],
            dynamic_axes=dict(zip(names, axes, strict=True)) if axes else None, opset_version=18,
        )  # fmt: skip
    batch = options.batch if axes else len(examples[0])
    random = torch.Generator().manual_seed(3)
    samples = batch * options.steps
    data = [like(example, samples, random) for example in examples]
    with torch.no_grad():
        first, other = (outputs_of(module, [d[i * batch : (i + 1) * batch] for d in data])[0] for i in range(2))
        if first.shape != other.shape:
            raise OpenOutput(f"outputs {list(first.shape)} and {list(other.shape)} for batches of equal extents: no labels fit both")
        del other
    rate = options.learning_rate
    is_text = first.dim() == 3 and first.shape[-1] > TOKENS
    if is_text:
        labels = torch.randint(0, first.shape[-1], (samples, first.shape[1]), generator=random)
        flags = ["--loss", "cross-entropy", "--class-axis", "-1"]
    else:
        labels = torch.randn((samples, *first.shape[1:]), generator=random)
        flags = ["--loss", "mse"]
        # Outputs in pixels have losses of thousands, and one step of the same rate would end in other boxes by rounding alone.
        scale = nn.functional.mse_loss(first, labels[:batch]).item()
        rate = options.learning_rate / scale if scale > LARGE else rate
    del first
    files = []
    for label, values in zip([*names, "labels"], [*data, labels], strict=True):
        numpy.save(os.path.join(folder, f"{label}.npy"), values.numpy())
        files.append(f"{label}={label}.npy")
    # Buffers are constants to PyTorch, but float initializers to ONNX.
    initializers = {i.name: i for i in onnx.load(os.path.join(folder, "model.onnx")).graph.initializer}
    for label, _ in module.named_buffers():
        own = initializers.get(label)
        is_float = own is not None and own.dims and own.data_type == onnx.TensorProto.FLOAT
        if is_float and not label.endswith(("running_mean", "running_var")):
            flags += ["--freeze", label]
    del initializers
    flags += ["--optimizer", options.optimizer, "--learning-rate", str(rate), "--schedule", "constant", "--no-shuffle"]
    command = [options.of_opt, "train", "model.onnx", "--data", *files, *flags, "--batch", str(batch), "--epochs", "1"]
    began = time.monotonic()
    run([*command, "--log-dir", "logs", "-o", "trained.onnx"], folder)
    ours, own_time = losses_of(os.path.join(folder, "logs")), time.monotonic() - began

    began = time.monotonic()
    theirs = losses_of_torch(module, data, labels, is_text, rate, options, batch)
    their_time = time.monotonic() - began
    if len(ours) != len(theirs):
        raise RuntimeError(f"{len(ours)} steps, not {len(theirs)}")
    curve = max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))
    del module, built
    gc.collect()
    rounding = 0.0
    if curve > TOLERANCE:
        # Where rounding switches ReLUs or batches are small, curves of any two f32 part: f64 says by how much.
        module = build(name)[0]
        torch.set_grad_enabled(True)
        exact = [d.double() if d.is_floating_point() else d for d in [*data, labels]]
        exact = losses_of_torch(module.eval().double(), exact[:-1], exact[-1], is_text, rate, options, batch)
        rounding = max(abs(a - b) / abs(b) for a, b in zip(theirs, exact, strict=True))
        curve = max(abs(a - b) / abs(b) for a, b in zip(ours, exact, strict=True))
        del module, exact
        gc.collect()

    session = onnxruntime.InferenceSession(os.path.join(folder, "trained.onnx"), providers=["CPUExecutionProvider"])
    feeds = {n: d[:batch].numpy() for n, d in zip(names, data, strict=True)}
    feeds = {i.name: feeds[i.name] for i in session.get_inputs()}
    for n, values in feeds.items():
        numpy.save(os.path.join(folder, f"{n}.npy"), values)
    expected = session.run(None, feeds)
    files = [f"{n}={n}.npy" for n in feeds]
    run([options.of_opt, "run", "trained.onnx", "--inputs", *files, "--outputs", "out", "--output-format", "npy"], folder)
    got = [numpy.load(os.path.join(folder, "out", f"output_{i}.npy")) for i in range(len(expected))]
    worst = difference(got, expected)
    return curve, rounding, worst, f"loss {theirs[0]:.4g} to {theirs[-1]:.4g}, {own_time:.0f} s, PyTorch {their_time:.0f} s"


def outcome(name, build, options):
    """Prints the differences of a model, and returns what it is counted as."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            curve, rounding, outputs, note = check(name, build, options, folder)
        except OpenOutput as error:
            print(f"{name:22} {error}", flush=True)
            return "unfit"
        except Exception as error:  # of one model, which is reported and counted
            text = str(error)
            print(f"{name:22} {text[:400]}", flush=True)
            return "refused" if "E02" in text or "E01" in text or "has no gradient" in text else "failed"
    is_equal = curve <= max(TOLERANCE, SPREAD * rounding) and outputs <= TOLERANCE
    figures = f"{curve:9.1e} {rounding:9.1e} {outputs:9.1e}"
    print(f"{name:22} {figures}  {note}{'' if is_equal else '  DIFFERENT'}", flush=True)
    if not is_equal:
        return "different"
    return "equal" if curve <= TOLERANCE else "rounded"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--builder", required=True)
    parser.add_argument("--of-opt", default="target/release/of-opt", type=os.path.abspath)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--optimizer", choices=["sgd", "adam"], default="sgd")
    options = parser.parse_args()
    torch.set_num_threads(1)
    build = load_builder(options.builder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended early"))
    print(f"{'model':22} {'losses':>9} {'rounding':>9} {'outputs':>9}", flush=True)
    tried = equal = rounded = refused = unfit = 0
    try:
        for name in options.names:
            result = outcome(name, build, options)
            tried += 1
            equal += result in ("equal", "rounded")
            rounded += result == "rounded"
            refused += result == "refused"
            unfit += result == "unfit"
    finally:
        rest = f", {len(options.names) - tried} were not tried" if tried < len(options.names) else ""
        print(
            f"{equal} of {tried} models train as in PyTorch, {rounded} of them within rounding; {refused} are refused, "
            f"{unfit} have no labels of fixed extents{rest}",
            flush=True,
        )
    sys.exit(0 if equal + refused + unfit == len(options.names) else 1)


if __name__ == "__main__":
    main()
