"""Variables: values that a session keeps between runs."""

import threading

import numpy as np
import pytest

import of_opt

# A running sum, and how many values were added.
COUNTER = b"""
func @main(%sum: tensor<4xf32>, %count: tensor<i64>, %x: tensor<?(N)x4xf32>) -> (tensor<4xf32> {of.name = "next_sum"}, tensor<i64> {of.name = "next_count"}, tensor<4xf32> {of.name = "mean"}) {
  %one = of.constant {value = dense<1> : tensor<i64>}
  %axes = of.constant {value = dense<[0]> : tensor<1xi64>}
  %rows = of.reduce_sum %x, %axes {keepdims = false}
  %next = of.add %sum, %rows
  %more = of.add %count, %one
  %number = of.cast %more {to = #of.dtype<f32>}
  %mean = of.div %next, %number
  of.return %next, %more, %mean
}
"""
VARIABLES = {"next_sum": "sum:zeros", "next_count": "count:zeros"}
X = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module")
def counter():
    return of_opt.compile(COUNTER, threads=1, variables=VARIABLES)


def test_values_stay_in_the_session(counter):
    assert [port.name for port in counter.inputs] == ["x"]
    assert [port.name for port in counter.outputs] == ["mean"]
    assert [(port.name, port.dtype, port.shape) for port in counter.variables] == [("sum", "float32", (4,)), ("count", "int64", ())]
    session = of_opt.Session(counter)
    for step in range(1, 4):
        # The extent changes from run to run.
        mean = session.run({"x": np.stack([X] * step)})["mean"]
        assert np.allclose(mean, X * sum(range(1, step + 1)) / step)
    assert session.variables["count"] == 3 and session.variables["sum"].tolist() == [0, 6, 12, 18]
    session.variables.reset()
    assert session.variables["count"] == 0
    assert session.run({"x": X[None]})["mean"].tolist() == X.tolist()
    # A session of its own begins anew.
    assert of_opt.Session(counter).variables["count"] == 0


def test_variables_are_a_mapping(counter):
    variables = of_opt.Session(counter).variables
    assert len(variables) == 2 and list(variables) == variables.keys() == ["sum", "count"]
    assert "sum" in variables and "x" not in variables and 3 not in variables
    assert repr(variables) == "Variables(sum, count)"
    variables["count"] = 41
    variables["sum"] = np.arange(8, dtype=np.float32)[::2]
    assert variables["count"] == 41 and dict(variables)["sum"].tolist() == [0, 2, 4, 6]
    # What is read is a copy, and what is set is copied.
    copy, given = variables["sum"], np.ones(4, np.float32)
    copy[:] = 9
    variables["sum"] = given
    given[:] = 5
    assert variables["sum"].tolist() == [1, 1, 1, 1]
    assert [name for name, _ in variables.items()] == ["sum", "count"]


def test_wrong_values_are_named(counter):
    variables = of_opt.Session(counter).variables
    for access in (lambda: variables["x"], lambda: variables.__setitem__("x", 1)):
        with pytest.raises(KeyError, match="no variable 'x': its variables are sum, count"):
            access()
    for value, text in (
        (np.zeros(3, np.float32), r"is f32\[4\] and cannot be set to f32\[3\]"),
        (np.zeros(4), r"cannot be set to f64\[4\]"),
        (None, "the value for variable 'sum' is no tensor"),
        (np.array(["a", "b", "c", "d"]), "cannot be set to string"),
    ):
        with pytest.raises(of_opt.InputError, match=text):
            variables["sum"] = value
    assert variables["sum"].tolist() == [0, 0, 0, 0]
    with pytest.raises(of_opt.InputError, match="its outputs are next_sum, next_count, mean; its inputs are sum, count, x"):
        of_opt.compile(COUNTER, variables=["y=sum"])


def test_a_variable_without_a_value_is_refused():
    session = of_opt.Session(of_opt.compile(COUNTER, threads=1, variables={"next_sum": "sum", "next_count": "count:zeros"}))
    with pytest.raises(of_opt.InputError, match="variable `sum` has no value: set it before the run"):
        session.run({"x": X[None]})
    with pytest.raises(of_opt.InputError, match="has no value"):
        session.variables["sum"]
    session.variables["sum"] = X
    assert session.run({"x": X[None]})["mean"].tolist() == (2 * X).tolist()


def test_a_plan_without_variables_has_an_empty_mapping(rows):
    session = of_opt.Session(rows)
    assert rows.variables == [] and len(session.variables) == 0 and list(session.variables) == []
    session.variables.reset()
    with pytest.raises(KeyError, match="the plan has none"):
        session.variables["x"]
    assert of_opt.Session(rows, variables=session.variables).run_list({"x": X[None]})[0].tolist() == [(2 * X).tolist()]


def test_sessions_share_variables(counter):
    first = of_opt.Session(counter)
    second = of_opt.Session(counter, variables=first.variables)

    def work(session):
        for _ in range(100):
            session.run({"x": X[None]})

    threads = [threading.Thread(target=work, args=(session,)) for session in (first, second, first)]
    [thread.start() for thread in threads]
    while any(thread.is_alive() for thread in threads):
        # A value is that of a whole run: the sum belongs to the count.
        assert first.variables["sum"].tolist()[0] == 0
    [thread.join() for thread in threads]
    assert second.variables["count"] == 300 and second.variables["sum"].tolist() == (300 * X).tolist()
    other = of_opt.compile(COUNTER, threads=1, variables=VARIABLES)
    with pytest.raises(of_opt.InputError, match="those of another plan"):
        of_opt.Session(other, variables=first.variables)


def test_programs_of_a_plan_share_variables(tmp_path):
    path = tmp_path / "counter.plan"
    of_opt.compile(COUNTER, threads=1, variables=VARIABLES, variants=[{"N": 1}, {"N": 2}]).save(path)
    session = of_opt.Session(of_opt.Plan.load(path))
    for count in (1, 2, 1):
        session.run({"x": np.stack([X] * count)})
    assert session.variables["count"] == 3 and session.variables["sum"].tolist() == (4 * X).tolist()
