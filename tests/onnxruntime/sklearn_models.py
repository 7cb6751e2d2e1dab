"""Compares models of scikit-learn and LightGBM, exported as their converters do by default, with onnxruntime.

python sklearn_models.py OF_OPT DIR [NAME ...]

Fits every estimator that skl2onnx converts, pipelines of them, and models of LightGBM on small data sets. Writes each
model and its inputs below DIR, runs OF_OPT on them, and compares. A list of maps is compared by its values and keys.
With NAMEs, only cases whose label contains one of them. Estimators that need other data, or that the converter refuses,
are listed and do not count. Needs the packages onnx, numpy, onnxruntime, scikit-learn, skl2onnx, lightgbm and onnxmltools.
"""

import inspect
import pathlib
import shutil
import subprocess
import sys
import warnings

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

warnings.filterwarnings("ignore")

import lightgbm
import onnxmltools
import onnxruntime
import skl2onnx
from onnxmltools.convert.common.data_types import FloatTensorType as LightGbmFloats
from skl2onnx.common.data_types import (
    DictionaryType, DoubleTensorType, FloatTensorType, Int64TensorType, StringTensorType,
)
from sklearn import compose, decomposition, ensemble, feature_extraction, feature_selection, linear_model
from sklearn import naive_bayes, neighbors, neural_network, pipeline, preprocessing, svm, tree
from sklearn.datasets import make_classification
from sklearn.utils import all_estimators

onnxruntime.set_default_logger_severity(4)

LONGEST = 120  # seconds a model
ROWS = 20  # of the inputs of a run
# Further components of the data are rounding errors.
CHOSEN = {"KernelPCA": {"n_components": 5}}

X, Y = make_classification(60, 6, n_informative=4, n_classes=3, random_state=0)
X = abs(X).astype(np.float32)
NAMES = np.array(["low", "middle", "high"])[Y]
COLOURS = np.array(["red", "green", "blue"], dtype=object)[np.arange(60) % 3]
TEXTS = np.array(["the cat sat", "a dog barked at the cat", "rain, rain and wind", "Wind from the north"], dtype=object)
TEXTS = TEXTS[np.arange(60) % 4]


class NotFitted(Exception):
    """The estimator does not accept the data."""


class NotConverted(Exception):
    """The converter or onnxruntime refuses the model."""


def fitted(make, x, y):
    try:
        return make().fit(x, y)
    except Exception as e:
        raise NotFitted from e


def converted(model, types, options=None):
    try:
        return skl2onnx.convert_sklearn(model, initial_types=types, options=options)
    except Exception as e:
        raise NotConverted from e


def estimators():
    """Every estimator of scikit-learn with its defaults, on the first targets that it and the converter accept."""
    real, pairs = Y.astype(np.float32), np.stack([Y, Y], 1)
    targets = {"regressor": [real, real + 1, pairs.astype(np.float32)]}
    for kind in ("classifier", "regressor", "transformer", "cluster"):
        for name, cls in all_estimators(type_filter=kind):
            part = linear_model.LinearRegression() if kind == "regressor" else linear_model.LogisticRegression()
            parts = [("a", part), ("b", tree.DecisionTreeRegressor() if kind == "regressor" else tree.DecisionTreeClassifier())]
            required = {n for n, p in inspect.signature(cls.__init__).parameters.items() if p.default is p.empty}
            arguments = {n: part for n in required & {"estimator", "base_estimator"}}
            arguments.update({n: parts for n in required & {"estimators"}})
            arguments.update(CHOSEN.get(name, {}))

            def case(cls=cls, arguments=arguments, ys=targets.get(kind, [Y, (Y > 0).astype(int), pairs])):
                attempts = []
                for y in ys:
                    try:
                        model = fitted(lambda: cls(**arguments), X, y)
                        return converted(model, [("X", FloatTensorType([None, 6]))]), {"X": X[:ROWS]}
                    except (NotFitted, NotConverted) as e:
                        attempts.append(e)
                raise next((e for e in attempts if isinstance(e, NotConverted)), attempts[0])

            yield f"{kind}-{name}", case


def lightgbm_models():
    """Boosted trees: objectives, kinds of boosting, kinds of labels, missing values."""
    few = {"n_estimators": 10, "min_child_samples": 2, "verbose": -1}
    missing = X.copy()
    missing[::7, 2] = np.nan
    rows = {
        "binary": (lightgbm.LGBMClassifier(**few), X, (Y > 0).astype(int)),
        "classes": (lightgbm.LGBMClassifier(**few), X, Y),
        "names": (lightgbm.LGBMClassifier(**few), X, NAMES),
        "dart": (lightgbm.LGBMClassifier(boosting_type="dart", **few), X, Y),
        "forest": (lightgbm.LGBMClassifier(boosting_type="rf", subsample=0.7, subsample_freq=1, **few), X, (Y > 0).astype(int)),
        "missing": (lightgbm.LGBMClassifier(**few), missing, Y),
        "one-against-all": (lightgbm.LGBMClassifier(objective="multiclassova", **few), X, Y),
        "ranker": (lightgbm.LGBMRanker(**few), X, Y),
    }
    for objective in ("regression", "regression_l1", "huber", "poisson", "quantile", "gamma", "tweedie"):
        rows[objective] = (lightgbm.LGBMRegressor(objective=objective, **few), X, Y + 1.0)
    for name, (model, x, y) in rows.items():
        def case(model=model, x=x, y=y):
            groups = {"group": [30, 30]} if isinstance(model, lightgbm.LGBMRanker) else {}
            model.fit(x, y, **groups)
            types = [("X", LightGbmFloats([None, x.shape[1]]))]
            try:
                return onnxmltools.convert_lightgbm(model, initial_types=types, target_opset=15), {"X": x[:ROWS]}
            except Exception as e:
                raise NotConverted from e

        yield f"lightgbm-{name}", case


def pipelines():
    """Pipelines of several steps and inputs, and options of the converter."""
    p, s, lm = pipeline.make_pipeline, preprocessing, linear_model
    floats = [("X", FloatTensorType([None, 6]))]
    texts = [("text", StringTensorType([None, 1]))]
    columns = [("number", FloatTensorType([None, 1])), ("colour", StringTensorType([None, 1]))]
    words, mixed = TEXTS.reshape(-1, 1), {"number": X[:, :1], "colour": COLOURS.reshape(-1, 1)}
    scaled = compose.ColumnTransformer([("n", s.StandardScaler(), [0]), ("c", s.OneHotEncoder(handle_unknown="ignore"), [1])])
    ordinal = compose.ColumnTransformer([("n", "passthrough", [0]), ("c", s.OrdinalEncoder(), [1])])
    voting = [("a", lm.LogisticRegression()), ("b", tree.DecisionTreeClassifier()), ("c", naive_bayes.GaussianNB())]
    rows = {
        "scaler-logistic": (p(s.StandardScaler(), lm.LogisticRegression()), X, Y, floats),
        "minmax-names": (p(s.MinMaxScaler(), lm.LogisticRegression()), X, NAMES, floats),
        "pca-svc": (p(decomposition.PCA(3), svm.SVC(probability=True)), X, Y, floats),
        "polynomial-ridge": (p(s.PolynomialFeatures(2), lm.Ridge()), X, Y * 1.0, floats),
        "select-forest": (p(feature_selection.SelectKBest(k=3), ensemble.RandomForestClassifier(5)), X, Y, floats),
        "bins-bayes": (p(s.KBinsDiscretizer(3, encode="onehot-dense"), naive_bayes.BernoulliNB()), X, Y, floats),
        "neighbours": (p(s.RobustScaler(), neighbors.KNeighborsClassifier(3)), X, NAMES, floats),
        "network": (p(s.StandardScaler(), neural_network.MLPClassifier((8,), max_iter=50)), X, NAMES, floats),
        "union": (p(pipeline.make_union(s.StandardScaler(), decomposition.PCA(2)), lm.LogisticRegression()), X, Y, floats),
        "voting-soft": (ensemble.VotingClassifier(voting, voting="soft", flatten_transform=False), X, Y, floats),
        "voting-hard": (ensemble.VotingClassifier(voting, flatten_transform=False), X, Y, floats),
        "stacking": (ensemble.StackingClassifier(voting), X, Y, floats),
        "binary-names": (p(s.StandardScaler(), lm.LogisticRegression()), X, NAMES == "low", floats),
        "integers": (tree.DecisionTreeClassifier(), (X * 10).astype(np.int64), Y, [("X", Int64TensorType([None, 6]))]),
        "one-hot-forest": (p(scaled, ensemble.RandomForestClassifier(5)), mixed, Y, columns),
        "one-hot-boosting": (p(scaled, ensemble.GradientBoostingClassifier(n_estimators=5)), mixed, NAMES, columns),
        "ordinal-regressor": (p(ordinal, ensemble.RandomForestRegressor(5)), mixed, Y * 1.0, columns),
        "tfidf-logistic": (p(feature_extraction.text.TfidfVectorizer(), lm.LogisticRegression()), words, Y, texts),
        "count-bayes": (p(feature_extraction.text.CountVectorizer(), naive_bayes.MultinomialNB()), words, NAMES, texts),
        "tfidf-pairs": (p(feature_extraction.text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), lm.SGDClassifier()), words, Y, texts),
    }
    for name, (model, x, y, types) in rows.items():
        def case(model=model, x=x, y=y, types=types):
            fed = x if isinstance(x, dict) else {types[0][0]: x}
            data = np.concatenate([np.asarray(v, dtype=object) for v in x.values()], 1) if isinstance(x, dict) else x
            fitted(lambda: model, data[:, 0] if types is texts else data, y)
            return converted(model, types), {n: v[:ROWS] for n, v in fed.items()}

        yield f"pipeline-{name}", case
    options = {
        "array": {"zipmap": False}, "columns": {"zipmap": "columns"}, "maps": {"zipmap": True},
        "scores": {"raw_scores": True}, "no-labels": {"nocl": True}, "doubles": {"zipmap": False},
    }
    for name, option in options.items():
        def case(name=name, option=option):
            x, kind = (X.astype(float), DoubleTensorType) if name == "doubles" else (X, FloatTensorType)
            model = fitted(lambda: pipeline.make_pipeline(s.StandardScaler(), lm.LogisticRegression()), x, NAMES)
            return converted(model, [("X", kind([None, 6]))], {id(model): option}), {"X": x[:ROWS]}

        yield f"option-{name}", case


def maps():
    """Inputs that are maps: DictVectorizer of a pipeline, and the operators alone."""
    dicts = [{"a": 1.0, "b": float(i)} if i % 2 else {"b": 2.0, "c": float(i)} for i in range(60)]

    def vectorizer():
        model = fitted(lambda: pipeline.make_pipeline(feature_extraction.DictVectorizer(sparse=False), linear_model.LogisticRegression()), dicts, Y)
        types = [("X", DictionaryType(StringTensorType([1]), FloatTensorType([1])))]
        return converted(model, types), {"X": dicts[3]}

    yield "map-dict-vectorizer", vectorizer

    def node(op, key, value, out, given, **attributes):
        def case():
            pair = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
            graph = helper.make_graph(
                [helper.make_node(op, ["X"], ["Y"], domain="ai.onnx.ml", **attributes)], "g",
                [helper.make_value_info("X", pair)], [helper.make_tensor_value_info("Y", out, [1, None])],
            )
            opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
            return helper.make_model(graph, opset_imports=opsets, ir_version=8), {"X": given}

        return case

    # Python's onnxruntime takes maps to floats only, and prints six decimals of each where CastMap makes strings.
    t, numbers = TensorProto, {7: 1.5, 2: 2.5, 4: -1.0}
    yield "map-cast-dense", node("CastMap", t.INT64, t.FLOAT, t.FLOAT, numbers)
    yield "map-cast-integers", node("CastMap", t.INT64, t.FLOAT, t.INT64, numbers, cast_to="TO_INT64")
    yield "map-cast-sparse", node("CastMap", t.INT64, t.FLOAT, t.FLOAT, numbers, map_form="SPARSE", max_map=9)
    yield "map-vocabulary-names", node("DictVectorizer", t.STRING, t.FLOAT, t.FLOAT, {"b": 2.0, "z": 3.0}, string_vocabulary=["a", "b"])
    yield "map-vocabulary-numbers", node("DictVectorizer", t.INT64, t.FLOAT, t.FLOAT, numbers, int64_vocabulary=[4, 9, 7])


def expected(model, inputs):
    """onnxruntime's outputs by name; a list of maps as its values and its keys."""
    out = {}
    # A machine may lack the locale that the converter names; the texts are ASCII.
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for node in model.graph.node:
        if node.op_type == "StringNormalizer":
            locales = [a for a in node.attribute if a.name == "locale"]
            (locales[0] if locales else node.attribute.add(name="locale", type=onnx.AttributeProto.STRING)).s = b"C"
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        results = session.run(None, inputs)
    except Exception as e:
        raise NotConverted from e
    for value, y in zip(session.get_outputs(), results):
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


def written(value, name):
    """The bytes of an input file."""
    if isinstance(value, dict):
        keys, values = list(value), list(value.values())
        text, whole = isinstance(keys[0], str), isinstance(values[0], int)
        m = onnx.MapProto(name=name, key_type=TensorProto.STRING if text else TensorProto.INT64)
        (m.string_keys if text else m.keys).extend([k.encode() if text else k for k in keys])
        kind = object if isinstance(values[0], str) else np.int64 if whole else np.float32
        m.values.CopyFrom(numpy_helper.from_list([np.array(v, dtype=kind) for v in values]))
        return m.SerializeToString()
    return numpy_helper.from_array(value, name).SerializeToString()


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
    equal, left_out, failed = 0, {NotFitted: [], NotConverted: []}, []
    for cases in (estimators, lightgbm_models, pipelines, maps):
        for label, case in cases():
            if chosen and not any(name in label for name in chosen):
                continue
            try:
                model, inputs = case()
                want = expected(model, inputs)
            except (NotFitted, NotConverted) as e:
                left_out[type(e)].append(label)
                if chosen:
                    print(f"{label}: {str(e.__cause__).strip()[:200]}")
                continue
            own = pathlib.Path(folder) / label
            shutil.rmtree(own, ignore_errors=True)
            (own / "inputs").mkdir(parents=True)
            onnx.save(model, own / "model.onnx")
            for i, (name, value) in enumerate(inputs.items()):
                (own / "inputs" / f"input_{i}.pb").write_bytes(written(value, name))
            got, error = run(of_opt, own)
            error = error or differs(got, want)
            if error:
                failed.append(f"{label}: {error}")
            else:
                equal += 1
    for kind, what in ((NotFitted, "not fitted"), (NotConverted, "not converted")):
        if left_out[kind]:
            print(f"{len(left_out[kind])} {what}: {' '.join(left_out[kind])}")
    print(f"{equal} equal, {len(failed)} failed")
    print("\n".join(failed))
    # Nothing compared is no success.
    return int(bool(failed) or not equal)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
