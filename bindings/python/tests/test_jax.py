"""of_opt.jax: results of JAX and of flax' models, pytrees, constants, keys, errors."""

import warnings

import numpy as np
import pytest

from conftest import require

jax = require("jax")
flax = require("flax")

import jax.numpy as jnp  # noqa: E402

import of_opt  # noqa: E402
import of_opt.jax  # noqa: E402
from jax_models import MODELS  # noqa: E402
from jax_programs import PROGRAMS  # noqa: E402


def close(got, want, tolerance=3e-5):
    """Whether pytrees agree: exactly, or to the precision of floats."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        b = np.asarray(b)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if not jnp.issubdtype(b.dtype, jnp.floating):
            np.testing.assert_array_equal(a, b)
            continue
        wide = {"bfloat16": 1e-2, "float16": 2e-3}.get(b.dtype.name, tolerance)
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=wide, atol=wide)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_give_results_of_jax(name):
    function, arguments = PROGRAMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", of_opt.CompileWarning)
        compiled = of_opt.jax.compile(function, *arguments, threads=1)
    close(compiled(*arguments), jax.jit(function)(*arguments))


@pytest.mark.parametrize("name", MODELS)
def test_models_give_results_of_flax(name):
    function, arguments = MODELS[name]
    parameters, *rest = arguments
    with warnings.catch_warnings():
        # Everything has native code.
        warnings.simplefilter("error", of_opt.CompileWarning)
        compiled = of_opt.jax.compile(function, *arguments, constants=0, threads=2)
    want = jax.jit(function)(*arguments)
    close(compiled(*rest), want, 2e-4)
    close(compiled(*rest), want, 2e-4)


def test_pytrees_pass_in_and_out():
    function = lambda p, x: {"sum": p["a"] + x, "rest": (x * 2, [p["b"].sum()])}
    arguments = ({"a": np.float32(2), "b": np.arange(3, dtype=np.int32)}, np.ones((2, 2), np.float32))
    compiled = of_opt.jax.compile(function, *arguments)
    want = jax.jit(function)(*arguments)
    close(compiled(*arguments), want)
    assert [port.name for port in compiled.plan.inputs] == ["p_a", "p_b", "x"]
    assert [port.name for port in compiled.plan.outputs] == ["result_rest_0", "result_rest_1_0", "result_sum"]
    # An array of JAX, and a number of Python.
    close(compiled({"a": 2.0, "b": jnp.arange(3)}, jnp.ones((2, 2))), want)
    with pytest.raises(TypeError, match="argument 0 has the structure"):
        compiled({"a": 2.0}, arguments[1])
    with pytest.raises(TypeError, match="compiled for 2 arguments, 1 are given"):
        compiled(arguments[0])
    with pytest.raises(of_opt.InputError):
        compiled(arguments[0], np.ones((3, 2), np.float32))


def test_arguments_that_are_not_read_stay():
    compiled = of_opt.jax.compile(lambda x, unused: x + 1, np.float32(1), np.zeros(3, np.int32))
    assert compiled(np.float32(2), np.zeros(3, np.int32)) == 3


def test_constants_are_no_inputs():
    w, x = np.ones((3, 2), np.float32), np.ones((4, 3), np.float32)
    compiled = of_opt.jax.compile(lambda w, x: x @ w, w, x, constants=0)
    assert [port.name for port in compiled.plan.inputs] == ["x"]
    close(compiled(x), x @ w)
    with pytest.raises(of_opt.InputError, match="constants names argument 2"):
        of_opt.jax.compile(lambda w, x: x @ w, w, x, constants=2)


def test_jit_compiles_for_each_shape():
    calls = []

    @of_opt.jax.jit
    def double(x):
        calls.append(x.shape)
        return x * 2

    for n in (2, 3, 2):
        close(double(np.ones(n, np.float32)), np.full(n, 2, np.float32))
    assert calls == [(2,), (3,)]


def test_keys_are_their_data():
    function = lambda key: jax.random.split(key)[0], lambda key: jax.random.uniform(key, (3,))
    key = jax.random.key(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", of_opt.CompileWarning)
        first = of_opt.jax.compile(function[0], key)(key)
        close(of_opt.jax.compile(function[1], key)(key), function[1](key))
    np.testing.assert_array_equal(jax.random.key_data(first), jax.random.key_data(function[0](key)))


def test_gradients_compile():
    loss = lambda w, x: (jnp.tanh(x @ w) ** 2).sum()
    arguments = (np.full((3, 2), 0.3, np.float32), np.ones((4, 3), np.float32))
    close(of_opt.jax.compile(jax.grad(loss), *arguments)(*arguments), jax.grad(loss)(*arguments))


def test_everything_unsupported_is_listed():
    def function(x):
        return jnp.linalg.cholesky(x), jnp.fft.rfft(x)

    with pytest.raises(of_opt.UnsupportedError) as error:
        of_opt.jax.compile(function, np.eye(3, dtype=np.float32))
    text = str(error.value)
    assert "stablehlo.fft" in text and ("cholesky" in text or "lapack" in text), text


def test_text_is_a_model():
    text = of_opt.jax.lower_text(lambda x: x + 1, jax.ShapeDtypeStruct((2,), np.float32))
    session = of_opt.Session(of_opt.compile(text.encode()))
    close(session.run({"x": np.zeros(2, np.float32)})["result"], np.ones(2, np.float32))
