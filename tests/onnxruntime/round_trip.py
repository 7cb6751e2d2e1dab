"""Whether models mean the same to onnxruntime after an import and an export.

python round_trip.py OF_OPT DIR [ARGUMENT ...]

Every folder below DIR with a model.onnx and values for its inputs (test_data_set_0/input_0.pb ..., or b1/) is run by
onnxruntime as it is and as `of-opt export ARGUMENT ...` writes it, which onnx.checker must accept. Results must be
within ONNX's own tolerance, or within 1e-4 of the largest number of a result. What onnxruntime does not run as it is
counts as refused. Where results differ, both are run without onnxruntime's own rewrites, which may round otherwise.
Needs the packages onnx, numpy and onnxruntime.
"""

import collections
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnx

from runtime import inputs_of, outcomes, read, session

LONGEST = 300  # seconds a model
SETS = ("test_data_set_0", "b1")
RTOL, ATOL, LARGEST = 1e-3, 1e-7, 1e-4


def values(folder, model):
    """What `folder` holds for the inputs of `model`: by the name in the file where inputs have such names, else in order."""
    inputs = inputs_of(model.graph)
    data = next(folder / name for name in SETS if (folder / name).is_dir())
    files = sorted(data.glob("input_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
    tensors = all(v.type.HasField("tensor_type") for v in inputs)
    names = [onnx.TensorProto.FromString(p.read_bytes()).name for p in files] if tensors else []
    by = dict(zip(names, files)) if {v.name for v in inputs} <= set(names) else None
    return [read(by[v.name] if by else files[i], v.type) for i, v in enumerate(inputs)]


def differs(want, got):
    """Why `got` is not `want`, or None."""
    if want is None or got is None:
        return None if want is got else "one is empty"
    if isinstance(want, list):
        if len(want) != len(got):
            return f"{len(got)} elements, not {len(want)}"
        return next((w for w in map(differs, want, got) if w), None)
    want, got = np.asarray(want), np.asarray(got)
    if (want.shape, want.dtype) != (got.shape, got.dtype):
        return f"{got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    if want.dtype.kind in "OSU":
        return None if list(map(str, want.ravel())) == list(map(str, got.ravel())) else "strings"
    if want.dtype.kind == "c":
        return differs(np.stack([want.real, want.imag]), np.stack([got.real, got.imag]))
    x, y = want.astype(np.float64), got.astype(np.float64)
    finite = np.abs(x[np.isfinite(x)])
    with np.errstate(invalid="ignore"):
        near = np.abs(x - y) <= np.maximum(ATOL + RTOL * np.abs(x), LARGEST * finite.max(initial=0))
    bad = ~((x == y) | (np.isnan(x) & np.isnan(y)) | near)
    if not bad.any():
        return None
    at = tuple(map(int, np.argwhere(bad)[0]))
    return f"{want.dtype}{list(want.shape)} at {list(at)}: {y[at]}, not {x[at]} ({bad.sum()} of {bad.size})"


def compare(before, after, inputs, optimised):
    """Why the results of two models differ, or None."""
    want = session(before, optimised)(inputs)
    got = session(after, optimised)(inputs)
    return next((f"output {i}: {w}" for i, w in enumerate(map(differs, want, got)) if w), None)


def judge(folder, of_opt, arguments):
    """What becomes of the model in `folder`: a word, and why."""
    model = onnx.load(folder / "model.onnx")
    inputs = values(folder, model)
    try:
        session(model)(inputs)
    except Exception as e:
        return "refused", str(e)
    with tempfile.TemporaryDirectory() as made:
        path = pathlib.Path(made, "model.onnx")
        command = [of_opt, "export", folder / "model.onnx", "-o", path, "--color", "never", *arguments]
        export = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if export.returncode:
            return "NOT EXPORTED", export.stderr
        try:
            onnx.checker.check_model(path, full_check=True)
        except Exception as e:
            return "INVALID", str(e)
        exported = onnx.load(path)
    try:
        difference = compare(model, exported, inputs, True)
        if difference and compare(model, exported, inputs, False) is None:
            return "agrees without onnxruntime's rewrites", difference
    except Exception as e:
        return "NOT RUN", str(e)
    return ("DIFFERS", difference) if difference else ("agrees", "")


def main():
    of_opt, root, *arguments = sys.argv[1:]
    root = pathlib.Path(root)
    folders = sorted(p.parent for p in root.rglob("model.onnx") if any((p.parent / name).is_dir() for name in SETS))
    if not folders:
        sys.exit(f"{root} has no folder with a model.onnx and values for its inputs")
    counts = collections.Counter()
    gone = lambda folder, what: ("CRASHES", what)
    for at, word, why in outcomes(folders, lambda f: judge(f, of_opt, arguments), gone, LONGEST):
        counts[word] += 1
        if word not in ("agrees", "refused"):
            print(f"{at.relative_to(root)}: {word.lower()}: {' '.join(why.split())[:400]}", flush=True)
    print(", ".join(f"{n} {word.lower()}" for word, n in sorted(counts.items())))
    return any(word.isupper() for word in counts)


if __name__ == "__main__":
    sys.exit(main())
