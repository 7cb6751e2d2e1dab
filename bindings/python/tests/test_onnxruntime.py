"""The interface of onnxruntime: the same calls to both, with equal results."""

import subprocess
import sys
import threading

import numpy as np
import onnx
import onnxruntime as real
import pytest
from onnx import TensorProto, helper, numpy_helper

import of_opt.onnxruntime as ours
from conftest import DIGITS, ROOT

BOTH = pytest.mark.parametrize("ort", [ours, real], ids=["of_opt", "onnxruntime"])


def model(nodes, inputs, outputs, initializers=(), opset=21, ml=False, **fields):
    value = lambda name, kind, shape: helper.make_tensor_value_info(name, kind, shape)
    outputs = [value(*output) if isinstance(output, tuple) else output for output in outputs]
    graph = helper.make_graph(nodes, "the graph", [value(*i) for i in inputs], outputs, list(initializers), doc_string="about the graph")
    sets = [helper.make_opsetid("", opset)] + ([helper.make_opsetid("ai.onnx.ml", 3)] if ml else [])
    return helper.make_model(graph, opset_imports=sets, ir_version=9, producer_name="a test", **fields)


def rows():
    """``y = x * w + b``, where b is an input with a value."""
    weights = [numpy_helper.from_array(np.array([1, 2, 3], np.float32), name) for name in ("w", "b")]
    nodes = [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    made = model(
        nodes, [("x", TensorProto.FLOAT, ["N", 3]), ("b", TensorProto.FLOAT, [3])], [("y", TensorProto.FLOAT, ["N", 3])], weights,
        domain="a.domain", model_version=7, doc_string="about the model",
    )
    helper.set_model_props(made, {"key": "value", "names": "{0: 'cat'}"})
    return made.SerializeToString()


def both(data, feed, names=None):
    results = [ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(names, feed) for ort in (ours, real)]
    for own, expected in zip(*results):
        if isinstance(expected, np.ndarray):
            assert (own.dtype, own.shape) == (expected.dtype, expected.shape)
            np.testing.assert_allclose(own, expected, rtol=1e-5, atol=1e-6) if own.dtype.kind == "f" else np.testing.assert_array_equal(own, expected)
        else:
            assert type(own) is type(expected)
    return results


def described(session):
    args = [[(a.name, a.type, a.shape) for a in list] for list in (session.get_inputs(), session.get_outputs())]
    meta = session.get_modelmeta()
    fields = "producer_name graph_name domain description graph_description version custom_metadata_map".split()
    return args, {field: getattr(meta, field) for field in fields}, [a.name for a in session.get_overridable_initializers()]


def test_descriptions_are_equal():
    for source in (rows(), str(DIGITS)):
        assert described(ours.InferenceSession(source)) == described(real.InferenceSession(source))
    negative = onnx.load_from_string(rows())
    negative.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert described(ours.InferenceSession(negative))[0][0] == described(real.InferenceSession(negative.SerializeToString()))[0][0]
    session = ours.InferenceSession(DIGITS)
    assert session.get_providers() == ours.get_available_providers() == ["CPUExecutionProvider"]
    assert str(session.get_inputs()[0]) == str(real.InferenceSession(DIGITS).get_inputs()[0])


def test_results_are_equal():
    both(str(DIGITS), {"image": np.load(ROOT / "examples/digits/images.npy")})
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    both(rows(), {"x": x})
    both(rows(), {"x": x, "b": np.ones(3, np.float32)}, ["y"])


def test_every_kind_of_value_is_equal():
    text = model([helper.make_node("StringConcat", ["x", "x"], ["y"])], [("x", TensorProto.STRING, ["N"])], [("y", TensorProto.STRING, ["N"])])
    results = both(text.SerializeToString(), {"x": np.array(["a", "b", "c"])})
    assert results[0][0].tolist() == results[1][0].tolist() == ["aa", "bb", "cc"]
    sequence = helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT64, None)))
    split = model([helper.make_node("SplitToSequence", ["x"], ["s"], axis=0)], [("x", TensorProto.INT64, [3, 2])], [sequence])
    own, expected = both(split.SerializeToString(), {"x": np.arange(6).reshape(3, 2)})
    assert [a.tolist() for a in own[0]] == [a.tolist() for a in expected[0]]
    for keys in ({"classlabels_int64s": [5, 6, 7]}, {"classlabels_strings": ["a", "b", "c"]}):
        key = TensorProto.INT64 if "classlabels_int64s" in keys else TensorProto.STRING
        maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, [])))
        zipped = model([helper.make_node("ZipMap", ["x"], ["z"], domain="ai.onnx.ml", **keys)], [("x", TensorProto.FLOAT, ["N", 3])], [helper.make_value_info("z", maps)], ml=True)
        own, expected = both(zipped.SerializeToString(), {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
        assert own == expected
        assert described(ours.InferenceSession(zipped.SerializeToString())) == described(real.InferenceSession(zipped.SerializeToString()))


def failure(ort, call):
    with pytest.raises(Exception) as caught:
        call(ort)
    return type(caught.value).__name__, str(caught.value)


def test_errors_are_equal():
    x, data = np.ones((2, 3), np.float32), rows()
    cases = {
        "missing": lambda ort: ort.InferenceSession(data).run(None, {}),
        "output": lambda ort: ort.InferenceSession(data).run(["z"], {"x": x}),
        "dtype": lambda ort: ort.InferenceSession(data).run(None, {"x": x.astype(np.float64)}),
        "rank": lambda ort: ort.InferenceSession(data).run(None, {"x": x[0]}),
        "extent": lambda ort: ort.InferenceSession(data).run(None, {"x": np.ones((2, 4), np.float32)}),
        "file": lambda ort: ort.InferenceSession("none.onnx"),
    }
    for name, call in cases.items():
        assert failure(ours, call) == failure(real, call), name
    kinds = {
        "input": lambda ort: ort.InferenceSession(data).run(None, {"x": x, "q": x}),
        "bytes": lambda ort: ort.InferenceSession(b"\x00\x01nothing"),
        "type": lambda ort: ort.InferenceSession(3),
    }
    for name, call in kinds.items():
        assert failure(ours, call)[0] == failure(real, call)[0], name
    assert issubclass(ours.capi.onnxruntime_pybind11_state.InvalidArgument, Exception)


@BOTH
def test_io_binding(ort):
    session = ort.InferenceSession(rows())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = x * [1, 2, 3] + [1, 2, 3]
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert np.array_equal(binding.copy_outputs_to_cpu()[0], expected)
    assert binding.get_outputs()[0].shape() == [2, 3] and binding.get_outputs()[0].data_type() == "tensor(float)"
    room = np.zeros((2, 3), np.float32)
    binding.clear_binding_outputs()
    binding.bind_input("x", "cpu", 0, np.float32, [2, 3], x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, [2, 3], room.ctypes.data)
    session.run_with_iobinding(binding)
    assert np.array_equal(room, expected)
    value = ort.OrtValue.ortvalue_from_numpy(x)
    target = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_ortvalue_output("y", target)
    session.run_with_iobinding(binding)
    assert np.array_equal(target.numpy(), expected)
    result = session.run_with_ort_values(["y"], {"x": value})[0]
    assert np.array_equal(result.numpy(), expected)


@BOTH
def test_values(ort):
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    value = ort.OrtValue.ortvalue_from_numpy(array)
    facts = (value.shape(), value.data_type(), value.element_type(), value.device_name(), value.is_tensor(), value.has_value())
    assert facts == ([2, 3], "tensor(int64)", 7, "cpu", True, True)
    assert not value.is_sparse_tensor() and not value.is_tensor_sequence()
    assert np.array_equal(value.numpy(), array) and value.tensor_size_in_bytes() == 48
    value.update_inplace(array + 1)
    assert np.array_equal(value.numpy(), np.arange(1, 7).reshape(2, 3))
    with pytest.raises(Exception):
        ort.OrtValue.ortvalue_from_numpy(array, "nonsense")


@BOTH
def test_options(ort):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    options.add_session_config_entry("session.load_model_format", "ONNX")
    options.add_free_dimension_override_by_name("N", 2)
    assert options.get_session_config_entry("session.load_model_format") == "ONNX"
    with pytest.warns(UserWarning, match="Specified provider 'FPGAExecutionProvider' is not in available provider names"):
        session = ort.InferenceSession(rows(), options, providers=["FPGAExecutionProvider", ("CPUExecutionProvider", {})])
    assert session.get_inputs()[0].shape == [2, 3]
    run = ort.RunOptions()
    run.log_severity_level = 3
    assert session.run(None, {"x": np.ones((2, 3), np.float32)}, run)[0].shape == (2, 3)
    run.terminate = True
    with pytest.raises(Exception, match="terminate flag being set to true"):
        session.run(None, {"x": np.ones((2, 3), np.float32)}, run)


def test_terminate_ends_a_run_in_progress():
    trip = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    state = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Sin", ["s"], ["t"])], "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("s", TensorProto.FLOAT, [64])],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("t", TensorProto.FLOAT, [64])],
    )
    made = model([helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)], [], [("y", TensorProto.FLOAT, [64])])
    made.graph.input.extend([trip, state])
    session = ours.InferenceSession(made.SerializeToString())
    options, caught = ours.RunOptions(), []

    def run():
        try:
            session.run(None, {"n": np.array(1 << 39), "x": np.zeros(64, np.float32)}, options)
        except Exception as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        options.terminate = True
        thread.join(0.01)
    assert len(caught) == 1 and "terminate flag" in caught[0]


@BOTH
def test_run_async(ort):
    session, done, got = ort.InferenceSession(rows()), threading.Event(), []

    def callback(results, data, error):
        got.append((results[0].tolist(), data, error))
        done.set()

    session.run_async(["y"], {"x": np.zeros((1, 3), np.float32)}, callback, "data")
    assert done.wait(60)
    assert got == [([[1, 2, 3]], "data", "")]


def test_packages_that_import_onnxruntime_get_this_one():
    script = (
        "import of_opt.onnxruntime as ort; ort.install(); import onnxruntime, onnxruntime.capi.onnxruntime_pybind11_state as s\n"
        "from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, NoSuchFile\n"
        "from onnxruntime.capi import _pybind_state\n"
        "assert onnxruntime is ort and issubclass(_pybind_state.Fail, Exception)\n"
        "try: onnxruntime.InferenceSession('none')\n"
        "except NoSuchFile: print('refused')\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert out.stdout == "refused\n", out.stderr
    with pytest.raises(RuntimeError, match="imported already"):
        ours.install()
