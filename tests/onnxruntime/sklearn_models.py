"""Compares models of scikit-learn and LightGBM, exported as their converters do by default, with onnxruntime.

python sklearn_models.py OF_OPT DIR [NAME ...]

Fits every estimator that skl2onnx converts on a small data set, writes its model and inputs below DIR, runs OF_OPT on
them, and compares. A list of maps is compared by its values and keys. Estimators that need other data, or that the
converter refuses, are listed and do not count. Needs the packages onnx, numpy, onnxruntime, scikit-learn and skl2onnx;
LightGBM's models need lightgbm and onnxmltools.
"""

import pathlib
import subprocess
import sys
import warnings

import numpy as np
import onnx
from onnx import numpy_helper

warnings.filterwarnings("ignore")

import onnxruntime
import skl2onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import make_classification
from sklearn.utils import all_estimators

onnxruntime.set_default_logger_severity(4)

LONGEST = 120  # seconds a model
# Estimators whose data or parts must be chosen.
PARTS = {
    "ClassifierChain": "base_estimator", "MultiOutputClassifier": "estimator", "MultiOutputRegressor": "estimator",
    "OneVsOneClassifier": "estimator", "OneVsRestClassifier": "estimator", "OutputCodeClassifier": "estimator",
    "RFE": "estimator", "RFECV": "estimator", "SelectFromModel": "estimator", "SelfTrainingClassifier": "estimator",
    "FixedThresholdClassifier": "estimator", "TunedThresholdClassifierCV": "estimator", "RegressorChain": "base_estimator",
}
MULTIPLE = {"ClassifierChain", "MultiOutputClassifier", "MultiOutputRegressor", "RegressorChain"}


def estimators():
    """Names and unfitted estimators, each with the targets that it takes."""
    from sklearn.linear_model import LinearRegression, LogisticRegression

    for kind in ("classifier", "regressor", "transformer", "cluster"):
        for name, cls in all_estimators(type_filter=kind):
            part = LinearRegression() if kind == "regressor" else LogisticRegression()
            yield f"{kind}-{name}", name, kind, lambda c=cls, n=name, p=part: c(**({PARTS[n]: p} if n in PARTS else {}))
    try:
        import lightgbm
        import onnxmltools  # noqa: F401
    except ImportError:
        return
    for kind, cls in (("classifier", lightgbm.LGBMClassifier), ("regressor", lightgbm.LGBMRegressor)):
        yield f"{kind}-{cls.__name__}", cls.__name__, kind, lambda c=cls: c(n_estimators=10, min_child_samples=2, verbose=-1)


def convert(model, name, x):
    types = [("X", FloatTensorType([None, x.shape[1]]))]
    if name.startswith("LGBM"):
        import onnxmltools
        from onnxmltools.convert.common.data_types import FloatTensorType as Floats

        return onnxmltools.convert_lightgbm(model, initial_types=[("X", Floats([None, x.shape[1]]))], target_opset=15)
    return skl2onnx.convert_sklearn(model, initial_types=types)


def expected(model, x):
    """onnxruntime's outputs by name; a list of maps as its values and its keys."""
    out = {}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for value, y in zip(session.get_outputs(), session.run(None, {"X": x})):
        if isinstance(y, list) and y and isinstance(y[0], dict):
            keys = list(y[0])
            out[value.name], out[value.name + ".keys"] = np.array([[m[k] for k in keys] for m in y]), np.array(keys)
        else:
            out[value.name] = y
    return out


def differs(got, want):
    """What is different, or None."""
    for name, w in want.items():
        if name not in got:
            return f"output '{name}' is missing"
        if isinstance(w, list) and isinstance(got[name], list):
            if len(w) != len(got[name]):
                return f"output '{name}' has {len(got[name])} elements, onnxruntime's {len(w)}"
            pairs = (differs({name: g}, {name: x}) for g, x in zip(got[name], w))
            problem = next((p for p in pairs if p), None)
            if problem:
                return problem
            continue
        w, g = np.asarray(w), np.asarray(got[name])
        if w.dtype.kind in "OSU":
            if g.astype(str).tolist() != w.astype(str).tolist():
                return f"output '{name}' has other strings"
        elif g.shape != w.shape:
            return f"output '{name}' has shape {g.shape}, onnxruntime's {w.shape}"
        elif w.dtype.kind in "biu" and (g != w).any():
            return f"output '{name}' differs in {(g != w).sum()} of {w.size} places"
        elif w.dtype.kind == "f" and not np.allclose(g, w, rtol=1e-3, atol=1e-4, equal_nan=True):
            return f"output '{name}' is {np.nanmax(abs(g - w)):.3g} off"
    return None


def run(of_opt, folder):
    """The outputs by name, or the error."""
    command = [of_opt, "run", folder / "model.onnx", "--inputs", folder / "inputs", "--outputs", folder / "outputs"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return None, f"takes more than {LONGEST} s"
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        return None, (errors or [done.stderr.strip()])[0]
    got = {}
    outputs = onnx.load(folder / "model.onnx").graph.output
    for i, path in enumerate(sorted((folder / "outputs").glob("output_*.pb"), key=lambda p: int(p.stem.split("_")[1]))):
        ty = outputs[i].type.sequence_type if i < len(outputs) else None
        if ty is not None and ty.elem_type.HasField("tensor_type"):
            s = onnx.SequenceProto.FromString(path.read_bytes())
            got[s.name] = [array(t) for t in s.tensor_values]
        else:
            t = onnx.TensorProto.FromString(path.read_bytes())
            got[t.name] = array(t)
    return got, None


def array(t):
    y = numpy_helper.to_array(t)
    return np.array([s.decode() for s in t.string_data]).reshape(y.shape) if t.string_data else y


def main(of_opt, folder, *chosen):
    x, y = make_classification(60, 6, n_informative=4, n_classes=3, random_state=0)
    x = abs(x).astype(np.float32)
    counts, failed = {"equal": 0, "not fitted": 0, "not converted": 0}, []
    for label, name, kind, make in estimators():
        if chosen and name not in chosen:
            continue
        target = np.stack([y, y], 1) if name in MULTIPLE else y
        target = target.astype(np.float32) if kind == "regressor" else target
        try:
            model = make().fit(x, target)
        except Exception:
            counts["not fitted"] += 1
            continue
        try:
            exported = convert(model, name, x)
            want = expected(exported, x[:20])
        except Exception:
            counts["not converted"] += 1
            continue
        own = pathlib.Path(folder) / label
        (own / "inputs").mkdir(parents=True, exist_ok=True)
        onnx.save(exported, own / "model.onnx")
        (own / "inputs" / "input_0.pb").write_bytes(numpy_helper.from_array(x[:20], "X").SerializeToString())
        got, error = run(of_opt, own)
        error = error or differs(got, want)
        if error:
            failed.append(f"{label}: {error}")
        else:
            counts["equal"] += 1
    print(", ".join(f"{n} {what}" for what, n in counts.items()) + f", {len(failed)} failed")
    print("\n".join(failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
