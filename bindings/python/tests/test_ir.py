"""The IR: building, text, walking, passes, compilation, errors."""

import numpy as np
import pytest

import of_opt
from conftest import DIGITS, ROOT
from of_opt import ir


def mlp():
    """relu(x w) with a weight of ones, for any number of rows."""
    module = ir.Module("mlp")
    main = module.function()
    x = main.input("x", ir.tensor(np.float32, ("N", 4)))
    weight = main.body.constant(np.ones((4, 3), np.float32))
    product = main.body.op("of.matmul", [x, weight], location=("product", 3, "aten.mm"))
    main.returns({"y": main.body.op("of.relu", [product.result]).result})
    return module


def test_built_module_verifies_and_runs():
    module = mlp()
    module.verify()
    assert repr(module) == "Module(@main)" and module.main.inputs == ["x"] and module.main.outputs == ["y"]
    x = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
    result = of_opt.Session(of_opt.compile(module, threads=1)).run({"x": x})["y"]
    np.testing.assert_allclose(result, np.maximum(x @ np.ones((4, 3), np.float32), 0))


def test_text_round_trips():
    text = mlp().to_text()
    again = ir.parse(text)
    again.verify()
    assert again.to_text() == text and "of.matmul" in str(again)
    located = mlp().to_text(locations=True)
    assert "aten.mm" in located and ir.parse(located).to_text(locations=True) == located


def test_walk_shows_ops():
    main = mlp().main
    constant, product, relu, end = main.walk()
    assert [op.name for op in main.walk()] == ["of.constant", "of.matmul", "of.relu", "of.return"]
    assert product.operands == [main.body.arguments[0], constant.result]
    assert product.result.shape == ("N", 3) and product.result.dtype == "float32"
    assert product.result.type == "tensor<?(N)x3xf32>"
    assert product.location == "node 'product' (#3, aten.mm)"
    assert __file__ in relu.location
    assert product.result.uses == [(relu, 0)] and relu.result.op == relu
    assert main.body.arguments[0].op is None and main.body.arguments[0].name == "x"
    np.testing.assert_array_equal(constant.attributes["value"], np.ones((4, 3)))
    assert end.operands == [relu.result] and end.results == []
    assert len({relu, relu.result.op}) == 1


def test_attributes_convert_by_declaration():
    module = ir.Module()
    main = module.function()
    x = main.input("x", "tensor<1x3x8x8xf32>")
    pads = {"kernel": [2, 2], "strides": [2, 2], "pads": [0, 0, 0, 0], "dilations": [1, 1]}
    pool = main.body.op(
        "of.avg_pool",
        [x],
        {**pads, "ceil_mode": False, "count_include_pad": True, "auto_pad": "NOTSET", "channels_last": False},
    )
    assert pool.attributes["kernel"] == [2, 2] and pool.attributes["ceil_mode"] is False
    cast = main.body.op("of.cast", [pool.result], {"to": "float64"})
    assert cast.attributes == {"to": "float64"} and cast.result.dtype == "float64"
    reshaped = main.body.op("of.reshape", [cast.result, [3, -1]], {"allowzero": False})
    assert reshaped.result.shape == (3, 16)


def test_regions_are_built():
    module = ir.Module()
    main = module.function()
    flag, x = main.input("flag", ir.tensor("bool", ())), main.input("x", ir.tensor("float32", (4,)))
    branches = []
    for op in ("of.neg", "of.abs"):
        branch = main.body.region()
        branch.op("of.yield", [branch.op(op, [x]).result])
        branches.append(branch)
    chosen = main.body.op("of.if", [flag], regions=branches)
    main.returns({"y": chosen.result})
    module.verify()
    assert [op.name for op in main.walk()] == ["of.if", "of.neg", "of.yield", "of.abs", "of.yield", "of.return"]
    assert [[op.name for op in region.ops] for region in chosen.regions] == [["of.neg", "of.yield"], ["of.abs", "of.yield"]]
    session = of_opt.Session(of_opt.compile(module, threads=1))
    x = np.array([-1, 2, -3, 4], np.float32)
    np.testing.assert_array_equal(session.run({"flag": np.array(True), "x": x})["y"], -x)
    np.testing.assert_array_equal(session.run({"flag": np.array(False), "x": x})["y"], abs(x))


def test_passes_run_by_name_and_end_handles():
    module = mlp()
    old = module.main.walk()[1]
    report = module.run("simplify,primitives")
    assert report[0][0] == "fold-constants" and all(seconds >= 0 and ops > 0 for _, seconds, ops in report)
    with pytest.raises(of_opt.InputError, match="before a pass changed") as caught:
        old.name
    assert caught.value.diagnostics[0].hint.startswith("take the function")
    assert module.main.walk()[1].name == "of.matmul"


def test_onnx_models_are_loaded():
    module = ir.Module.load(DIGITS)
    assert module.main.inputs == ["image"]
    assert any(op.location.startswith("node '") for op in module.main.walk())


@pytest.mark.parametrize(
    "call, kind, text, hint",
    [
        (lambda b, x: b.op("of.no_op", [x]), of_opt.InputError, "no op is called 'of.no_op'", "'of-opt ops' lists all"),
        (lambda b, x: b.op("of.cast", [x], {"two": 1}), of_opt.InputError, "no attribute 'two'", "it has to"),
        (lambda b, x: b.op("of.cast", [x], {"to": "f31"}), of_opt.InputError, "no element type is called 'f31'", "such as"),
        (lambda b, x: b.op("of.softmax", [x], {"axis": "one"}), of_opt.InputError, "'axis' must be integer", None),
        (lambda b, x: b.op("of.softmax", [x]), of_opt.ModelError, "attribute 'axis' (integer) is missing", None),
        (lambda b, x: b.op("of.matmul", [x]), of_opt.ModelError, "", None),
        (lambda b, x: b.op("of.add", [x, 0.5]), of_opt.InputError, "no integers", "give a NumPy array"),
        (lambda b, x: b.op("of.add", [x, mlp().main.body.arguments[0]]), of_opt.InputError, "another function", None),
        (lambda b, x: b.op("of.relu", [x], location=5), of_opt.InputError, "the location is of another form", "(file, line)"),
        (lambda b, x: ir.parse("func @main("), of_opt.ModelError, "<text>:1:12: error[E0101]", None),
        (lambda b, x: ir.tensor("float32", ("N*",)), of_opt.ModelError, "", None),
        (lambda b, x: mlp().run("no-pass"), of_opt.InputError, "no pass 'no-pass'", "'of-opt passes'"),
        (lambda b, x: ir.Module().main, of_opt.InputError, "has no function @main", None),
    ],
)
def test_errors_have_text_location_and_hint(call, kind, text, hint):
    main = ir.Module().function()
    x = main.input("x", ir.tensor("float32", (2, 3)))
    with pytest.raises(kind) as caught:
        call(main.body, x)
    assert text in str(caught.value)
    if hint:
        assert hint in caught.value.diagnostics[0].hint


def test_an_op_that_does_not_fit_names_the_line():
    main = ir.Module().function()
    x = main.input("x", ir.tensor("float32", (2, 3)))
    y = main.input("y", ir.tensor("float32", (4, 5)))
    with pytest.raises(of_opt.ModelError) as caught:
        main.body.op("of.add", [x, y])
    assert __file__ in caught.value.diagnostics[0].location


def test_unfinished_modules_do_not_verify():
    module = ir.Module()
    module.function().input("x", ir.tensor("float32", (2,)))
    for call in (module.verify, lambda: module.run("simplify"), lambda: of_opt.compile(module)):
        with pytest.raises(of_opt.ModelError):
            call()


def test_constants_share_memory_and_live():
    array = np.arange(1000, dtype=np.float32)
    module = ir.Module()
    main = module.function()
    main.returns({"y": main.body.constant(array)})
    del array
    np.testing.assert_array_equal(module.main.walk()[0].attributes["value"], np.arange(1000))


def test_documented_program_runs():
    page = (ROOT / "docs/python.md").read_text().split("## The IR")[1]
    scope = {"np": np, "of_opt": of_opt}
    exec(page.split("```python\n")[1].split("```")[0], scope)
    assert scope["plan"].inputs[0].shape == ("N", 4)
