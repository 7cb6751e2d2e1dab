"""Compiling, plans, sessions, values and errors."""

import ast
import importlib.util
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import of_opt
from conftest import DIGITS, ROOT, ROWS, require

EXPECTED = [7, 0, 3, 9, 1, 4, 8, 2]


def output_of(plan):
    return plan.outputs[0].name


# ---- compiling, and plans ----


def test_digits_are_recognized(digits, images):
    result = of_opt.Session(digits).run({"image": images})
    assert list(result) == ["probability"]
    assert result["probability"].argmax(axis=1).tolist() == EXPECTED


@pytest.mark.parametrize("kind", [str, Path, "bytes", "bytearray", "proto"])
def test_models_come_from_files_bytes_and_protos(kind, images):
    data = DIGITS.read_bytes()
    model = {"bytes": data, "bytearray": bytearray(data)}.get(kind) or (onnx.load(DIGITS) if kind == "proto" else kind(DIGITS))
    plan = of_opt.compile(model, shapes={"N": 8}, threads=1)
    assert plan.inputs[0].shape == (8, 1, 8, 8)
    assert of_opt.Session(plan).run({"image": images})["probability"].argmax(axis=1).tolist() == EXPECTED


def test_ports_are_described(digits, rows):
    (image,), (probability,) = digits.inputs, digits.outputs
    assert (image.name, image.dtype, image.shape) == ("image", "float32", ("N", 1, 8, 8))
    assert (probability.shape, probability.type_text) == (("N", 10), "f32[N, 10]")
    assert repr(image) == "Port(image: f32[N, 1, 8, 8])"


def test_plans_are_saved_and_loaded(digits, images, tmp_path):
    path = tmp_path / "digits.plan"
    digits.save(path)
    assert path.read_bytes() == digits.to_bytes() == of_opt.compile(DIGITS, threads=1).to_bytes()
    for source in (path, str(path), path.read_bytes(), memoryview(path.read_bytes())):
        plan = of_opt.Plan.load(source)
        plan.verify()
        assert (plan.model, plan.inputs[0].shape) == (digits.model, ("N", 1, 8, 8))
        assert of_opt.Session(plan).run({"image": images})["probability"].argmax(axis=1).tolist() == EXPECTED
    assert "image: f32[N, 1, 8, 8]" in digits.inspect()
    assert digits.inspect(json=True).startswith("{")
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    with pytest.raises(of_opt.PlanError, match="damaged"):
        of_opt.Plan.load(damaged)
    with pytest.raises(of_opt.FileError, match=r"E0801.*none\.plan"):
        of_opt.Plan.load(tmp_path / "none.plan")
    with pytest.raises(of_opt.FileError, match="E0801"):
        digits.save(tmp_path / "none" / "x.plan")


def test_plans_are_loaded_only_with_the_signature_that_is_required(digits, tmp_path):
    keys = ROOT / "signature/tests/data"
    path = tmp_path / "model.plan"
    digits.save(path)
    # Signed with model_signing, which is another program of the same format.
    subprocess.run(
        [sys.executable, "-m", "model_signing", "sign", "key", "--private_key", keys / "p256.pem", "--signature", f"{path}.sig", path],
        check=True,
        capture_output=True,
    )
    plan = of_opt.Plan.load(path, require_signature=keys / "p256.pub.pem")
    assert plan.to_bytes() == digits.to_bytes()
    moved = tmp_path / "elsewhere.sig"
    Path(f"{path}.sig").rename(moved)
    of_opt.Plan.load(path, require_signature=keys / "p256.pub.pem", signature=moved)
    with pytest.raises(of_opt.FileError, match=r"E0801.*model\.plan\.sig"):
        of_opt.Plan.load(path, require_signature=keys / "p256.pub.pem")
    with pytest.raises(of_opt.PlanError, match="is refused: it was signed with another key"):
        of_opt.Plan.load(path, require_signature=keys / "ed25519.pub.pem", signature=moved)
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)
    with pytest.raises(of_opt.PlanError, match="the file is not the signed one"):
        of_opt.Plan.load(path, require_signature=keys / "p256.pub.pem", signature=moved)
    with pytest.raises(of_opt.InputError, match="loaded from a file"):
        of_opt.Plan.load(bytes(changed), require_signature=keys / "p256.pub.pem")
    with pytest.raises(of_opt.InputError, match="only with a key"):
        of_opt.Plan.load(path, signature=moved)
    with pytest.raises(of_opt.InputError, match="no public key"):
        of_opt.Plan.load(path, require_signature=keys / "p256.pem", signature=moved)


def test_notebooks_show_the_interactive_page(digits):
    from of_opt import ir

    module = ir.Module.load(DIGITS)
    for shown, text in ((digits, "Tasks"), (module, "conv")):
        html = shown._repr_html_()
        start, page = html.split(' srcdoc="')
        assert start.startswith('<iframe sandbox="allow-scripts" ') and page.endswith('"></iframe>')
        # No quote of the page ends the attribute.
        assert '"' not in page[: -len('"></iframe>')] and text in page and "<!doctype html>" in page
    text = "func @main(%v0: tensor<64xf32>) -> (tensor<64xf32>) {\n"
    text += "".join(f"  %v{i + 1} = of.sin %v{i} : (tensor<64xf32>) -> tensor<64xf32>\n" for i in range(20000))
    large = ir.Module.parse(text + "  of.return %v20000 : (tensor<64xf32>) -> ()\n}\n")
    summary = large._repr_html_()
    assert len(summary) < 2000 and "<th>ops</th><td>20001</td>" in summary and "script" not in summary
    assert ir.Module("empty")._repr_html_().startswith("<iframe")


def test_variants_are_chosen_by_the_inputs(images):
    plan = of_opt.compile(DIGITS, threads=1, variants=[{"N": 1}, {"N": 8}])
    session = of_opt.Session(plan)
    for count in (8, 1):
        assert session.run({"image": images[:count]})["probability"].shape == (count, 10)
    with pytest.raises(of_opt.InputError, match="has extent 3 at dimension 0"):
        session.run({"image": images[:3]})


def test_ops_without_native_code_are_warned_of():
    text = b"func @main(%m: tensor<65x65xf64>) -> (tensor<f64>) {\n  %d = of.det %m : (tensor<65x65xf64>) -> tensor<f64>\n  of.return %d : (tensor<f64>) -> ()\n}\n"
    with pytest.warns(of_opt.CompileWarning, match="'of.det' runs on the interpreter"):
        plan = of_opt.compile(text)
    matrix = np.diag(np.full(65, 1.5))
    assert np.isclose(of_opt.Session(plan).run_list({plan.inputs[0].name: matrix})[0], 1.5**65)


# ---- errors ----


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (lambda: of_opt.compile("none.onnx"), of_opt.FileError, "error[E0801]: "),
        (lambda: of_opt.compile(b"func @main("), of_opt.ModelError, "<bytes>:1:12: error[E0101]: "),
        (lambda: of_opt.compile(b"\x00\x01"), of_opt.ModelError, "error[E0301]: "),
        (lambda: of_opt.compile(DIGITS, precision="int3"), of_opt.InputError, "error[E0701]: unknown precision 'int3'\n  hint: choose from model, "),
        (lambda: of_opt.compile(DIGITS, shapes={"M": 3}), of_opt.Error, "error["),
        (lambda: of_opt.compile(DIGITS, time_limit=0), of_opt.LimitError, "error[E0502]: the time limit of 0ns is over"),
    ],
)
def test_errors_have_the_text_of_the_command_line(call, kind, text):
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(text), caught.value
    first = caught.value.diagnostics[0]
    assert first.severity == "error" and first.message in str(caught.value)


def test_every_unsupported_operator_is_listed_with_its_node():
    nodes = [helper.make_node(op, ["x"], [op], domain="none", name=f"node {op}") for op in ("First", "Second")]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "First", "Second")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("none", 1)])
    with pytest.raises(of_opt.UnsupportedError) as caught:
        of_opt.compile(model)
    assert isinstance(caught.value, NotImplementedError)
    locations = [d.location for d in caught.value.diagnostics]
    assert "node First" in locations[0] and "node Second" in locations[1]


def test_wrong_inputs_are_named(digits, images):
    session = of_opt.Session(digits)
    cases = [
        ({}, "no value for input 'image'"),
        ({"image": images, "x": images}, "the model has no input 'x'\n  hint: its inputs are image"),
        ({"image": images[0]}, "has rank 3"),
        ({"image": images.astype(np.float64)}, "has element type f64 and must have f32"),
        ({"image": images.astype(np.complex64)}, "complex64"),
        ({"image": np.array(["a"])}, "string"),
        ({"image": np.array([object()])}, "holds object where text is expected"),
        ({"image": None}, "must be a tensor"),
    ]
    for inputs, text in cases:
        with pytest.raises(of_opt.InputError) as caught:
            session.run(inputs)
        assert text in str(caught.value) and isinstance(caught.value, ValueError)
    assert session.run({"image": images})["probability"].shape == (8, 10)


# ---- values ----


def identity(dtype):
    text = f"func @main(%x: tensor<?(N)x3x{dtype}>) -> (tensor<?(N)x3x{dtype}>) {{\n  of.return %x : (tensor<?(N)x3x{dtype}>) -> ()\n}}\n"
    return of_opt.compile(text.encode(), threads=1)


NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i1": "bool"}
NAMES.update({f"{kind}{bits}": f"{name}{bits}" for kind, name in (("i", "int"), ("ui", "uint")) for bits in (4, 8, 16, 32, 64)})
NAMES.update({"f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2", "f8E4M3FNUZ": "float8_e4m3fnuz", "f8E5M2FNUZ": "float8_e5m2fnuz"})


@pytest.mark.parametrize("dtype, name", NAMES.items())
def test_every_dtype_goes_in_and_out(dtype, name):
    import ml_dtypes

    plan = identity(dtype)
    assert (plan.inputs[0].dtype, plan.outputs[0].dtype) == (name, name)
    array_type = np.dtype(name) if hasattr(np, name) else np.dtype(getattr(ml_dtypes, name))
    session = of_opt.Session(plan)
    for count in (0, 1, 5, 40000):
        x = (np.arange(count * 3).reshape(count, 3) % 7).astype(array_type)
        y = session.run_list({plan.inputs[0].name: x})[0]
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        assert np.array_equal(x.view(np.uint8), np.ascontiguousarray(y).view(np.uint8))
    if dtype == "i4":
        x = np.array([[-8, -1, 7]], array_type)
        assert session.run_list({plan.inputs[0].name: x})[0].astype(np.int8).tolist() == [[-8, -1, 7]]


def test_text_goes_in_and_out():
    plan = identity("!of.string")
    assert plan.inputs[0].dtype == "str"
    name, session = plan.inputs[0].name, of_opt.Session(plan)
    for array in (np.array([["a", "bé", ""]]), np.array([["a", "bé", ""]], object), np.array([["a".encode(), "bé".encode(), b""]])):
        result = session.run_list({name: array})[0]
        assert result.tolist() == [["a", "bé", ""]] and result.dtype == object


def test_strided_swapped_read_only_and_foreign_arrays(rows):
    session, name = of_opt.Session(rows), rows.inputs[0].name
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    read_only = x.copy()
    read_only.flags.writeable = False
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(6, 4)
    for same in (x.T.copy().T, x.astype(">f4"), read_only, unaligned, np.repeat(x, 2, axis=1)[:, ::2], x.tolist(), tuple(map(tuple, x)), Foreign(x)):
        assert np.array_equal(session.run_list({name: same})[0], 2 * x)
    scalar = of_opt.compile(b"func @main(%x: tensor<f32>) -> (tensor<f32>) {\n  %y = of.add %x, %x : (tensor<f32>, tensor<f32>) -> tensor<f32>\n  of.return %y : (tensor<f32>) -> ()\n}\n")
    for one in (np.float32(3), np.array(3, np.float32), 3, 3.0):
        result = of_opt.Session(scalar).run_list({scalar.inputs[0].name: one})[0]
        assert result.shape == () and result == 6


class Foreign:
    """A tensor of a library that has DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_memory_is_shared(rows):
    session, name, out = of_opt.Session(rows), rows.inputs[0].name, output_of(rows)
    x = np.ones((50000, 4), np.float32)
    result = session.run({name: x})[out]
    # A large result of open shape is memory of the run, not a copy of it.
    assert type(result.base).__name__ == "Memory" and result.flags.writeable
    kept = result.copy()
    x[:] = 3
    second = session.run({name: x})[out]
    assert np.array_equal(result, kept) and (second == 6).all()
    # Results go to the arrays that are given.
    room = np.empty_like(x)
    assert session.run({name: x}, {out: room})[out] is room and (room == 6).all()
    fixed = of_opt.compile(ROWS, shapes={"N": 2})
    room = np.zeros((2, 4), np.float32)
    assert of_opt.Session(fixed).run({name: x[:2]}, {out: room})[out] is room and (room == 6).all()
    # And to other libraries.
    assert np.shares_memory(np.from_dlpack(result), result)


def test_wrong_rooms_for_results_are_named(rows):
    session, name, out = of_opt.Session(rows), rows.inputs[0].name, output_of(rows)
    x = np.ones((2, 4), np.float32)
    read_only = np.zeros((2, 4), np.float32)
    read_only.flags.writeable = False
    for room in (read_only, np.zeros((4, 2), np.float32).T, np.zeros((2, 4))):
        with pytest.raises(of_opt.InputError, match="not a writable row-major array of float32"):
            session.run({name: x}, {out: room})
    with pytest.raises(of_opt.InputError, match=r"has shape \[3, 4\], and the result \[2, 4\]"):
        session.run({name: x}, {out: np.zeros((3, 4), np.float32)})
    with pytest.raises(of_opt.InputError, match="no output 'z'"):
        session.run({name: x}, {"z": x})
    fixed = of_opt.Session(of_opt.compile(ROWS, shapes={"N": 2}))
    with pytest.raises(of_opt.InputError, match=r"has shape \[3, 4\] and must have \[2, 4\]"):
        fixed.run({name: x}, {out: np.zeros((3, 4), np.float32)})


def test_subnormal_numbers_are_zeros_unless_they_are_kept():
    small = np.full((1, 4), 1e-40, np.float32)
    for keep, expected in ((False, 0), (True, small + small)):
        plan = of_opt.compile(ROWS, keep_subnormals=keep)
        assert np.array_equal(of_opt.Session(plan).run_list({plan.inputs[0].name: small})[0], np.broadcast_to(expected, (1, 4)))
    # The mode of this thread is what it was.
    assert (small + small != 0).all()


def test_ops_without_native_code_are_refused_on_request():
    model = b"func @main(%m: tensor<65x65xf32>) -> (tensor<f32>) {\n  %d = of.det %m\n  of.return %d\n}\n"
    with pytest.warns(of_opt.CompileWarning, match="'of.det' runs on the interpreter"):
        of_opt.compile(model)
    with pytest.raises(of_opt.UnsupportedError, match="'of.det' needs the backend 'reference'"):
        of_opt.compile(model, require_native=True)
    of_opt.compile(DIGITS, require_native=True)


def test_rewrites_are_recorded_on_request():
    assert "  rewrite " not in of_opt.compile(DIGITS).inspect()
    assert "  rewrite expand-composites: of.gemm (" in of_opt.compile(DIGITS, record_rewrites=True).inspect()


def test_sequences_are_lists():
    x = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "ab"]
    sequence = helper.make_value_info("s", helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None)))
    graph = helper.make_graph([helper.make_node("SequenceConstruct", ["a", "b"], ["s"])], "g", x, [sequence])
    plan = of_opt.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    inputs = {"a": np.ones(2, np.float32), "b": np.zeros(2, np.float32)}
    first, second = of_opt.Session(plan).run(inputs)["s"]
    assert np.array_equal(first, inputs["a"]) and np.array_equal(second, inputs["b"])


# ---- threads and interruption ----


def test_sessions_run_in_parallel(digits, images):
    def work(session, results):
        for count in list(range(1, 9)) * 20:
            results.append(session.run({"image": images[:count]})["probability"].argmax(axis=1).tolist() == EXPECTED[:count])

    shared, results = of_opt.Session(digits), []
    sessions = [of_opt.Session(digits, threads=1), of_opt.Session(digits, threads=2), shared, shared]
    threads = [threading.Thread(target=work, args=(session, results)) for session in sessions]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(results) == 640 and all(results)


def test_other_threads_go_on_during_a_run_and_cancel_it(loop):
    session, x = of_opt.Session(loop), np.zeros(1024, np.float32)
    names = [port.name for port in loop.inputs]
    session.cancel()
    few = {names[0]: np.int64(2), names[1]: x}
    session.run(few)
    caught = []

    def run():
        try:
            session.run({names[0]: np.int64(1 << 39), names[1]: x})
        except of_opt.CancelledError as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    # This thread cancels until the run has begun and ended, which it could not if runs held Python's lock.
    while thread.is_alive():
        session.cancel()
        thread.join(0.01)
    assert caught == ["error[E0702]: the run was cancelled"]
    session.run(few)


def test_ctrl_c_ends_a_run(loop, interrupt_soon):
    session, names = of_opt.Session(loop), [port.name for port in loop.inputs]
    x = np.zeros(1024, np.float32)
    # Should the signal not end the run, this does, and the test fails.
    rescue = threading.Timer(60, session.cancel)
    rescue.start()
    interrupt_soon(0.2)
    with pytest.raises(KeyboardInterrupt):
        session.run({names[0]: np.int64(1 << 39), names[1]: x})
    rescue.cancel()
    session.run({names[0]: np.int64(2), names[1]: x})


def test_ctrl_c_ends_a_compilation(interrupt_soon):
    # Seconds of work: on no processor does it end before the signal comes.
    count = 100_000
    lines = [f"  %v{i + 1} = of.sin %v{i} : (tensor<64xf32>) -> tensor<64xf32>" for i in range(count)]
    text = "func @main(%v0: tensor<64xf32>) -> (tensor<64xf32>) {\n" + "\n".join(lines) + f"\n  of.return %v{count} : (tensor<64xf32>) -> ()\n}}\n"
    interrupt_soon(0.1)
    with pytest.raises(KeyboardInterrupt):
        of_opt.compile(text.encode())


# ---- the package ----


def test_stubs_and_docs_agree_with_the_native_module():
    from of_opt import _native

    folder = Path(of_opt.__file__).parent
    assert (folder / "py.typed").exists()
    stub = ast.parse((folder / "_native.pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    assert set(classes) == {"Port", "Plan", "Session", "Variables", "Module", "Function", "Region", "Op", "Value"}
    for name, node in classes.items():
        declared = {item.name for item in node.body if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")}
        real = {member for member in vars(getattr(_native, name)) if not member.startswith("_")}
        assert declared == real, name
        assert all(getattr(_native, name).__dict__[member].__doc__ for member in real), name
    functions = {node.name for node in stub.body if isinstance(node, ast.FunctionDef)}
    assert functions == {"compile", "model_info", "serve_rank", "tensor_type"} and all(hasattr(_native, name) for name in functions)


@pytest.mark.parametrize("page", ["README.md", "bindings/python/README.md"])
def test_documented_programs_run(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "digits.onnx").symlink_to(DIGITS)
    program = (ROOT / page).read_text().split("```python\n")[1].split("```")[0]
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert (tmp_path / "digits.plan").exists()


BOOK = sorted(page for page in (ROOT / "book/src").glob("*.md") if "```python\n" in page.read_text())


def book_program(page, needs=None):
    """The listings of a chapter in Python, as one program: those that need a package, or those that need none."""
    comment = f"<!-- needs {needs} -->\n"
    parts = re.split(r"^((?:<!-- (?:needs|tested by) \S+ -->\n)?)```python\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    wanted = [text for mark, text in zip(parts[1::3], parts[2::3]) if mark == (comment if needs else "")]
    return "\n".join(wanted)


@pytest.mark.parametrize("page", BOOK, ids=lambda page: page.stem)
@pytest.mark.parametrize("needs", [None, "torch"])
def test_programs_of_the_book_run(page, needs, tmp_path):
    program = book_program(page, needs)
    if not program:
        return
    if needs:
        require(needs)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    for model in tmp_path.glob("*.onnx"):
        of_opt.compile(model)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_fragments_of_pages_parse_and_name_what_exists(page):
    """Fragments have names of the reader, such as a model, and cannot run."""
    for text in re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "of_opt":
                assert hasattr(of_opt, node.attr) or importlib.util.find_spec(f"of_opt.{node.attr}"), node.attr


def test_the_book_has_programs():
    assert len(BOOK) >= 2 and book_program(ROOT / "book/src/start.md", "torch").startswith("import torch")


def test_the_package_imports_numpy_alone():
    script = "import sys, of_opt; print([m for m in ('onnx', 'torch', 'ml_dtypes', 'onnxruntime') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
