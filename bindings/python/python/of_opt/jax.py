"""Programs of JAX as plans.

>>> import jax.numpy as jnp, of_opt.jax
>>> f = of_opt.jax.compile(lambda p, x: {"y": x @ p["w"]}, {"w": jnp.ones((3, 2))}, jnp.ones((4, 3)))
>>> f({"w": weights}, x)["y"]                      # NumPy arrays, in the structure of the function's result

:func:`jit` compiles at the first call with arguments of each structure, shape and dtype. :func:`lower_text` gives the StableHLO
module, which all commands of ``of-opt`` read. docs/stablehlo.md lists the operations that are supported.

**Constants.** Arguments named by ``constants`` are constants of the plan, packed for its kernels: the parameters of a model, for
inference.

>>> f = of_opt.jax.compile(model.apply, params, x, constants=0)
>>> f(x)
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import jax
import numpy as np

import of_opt

from ._errors import InputError
from ._native import Module

__all__ = ["Function", "compile", "jit", "lower_text"]

Numbers = Union[int, Sequence[int]]


class Function:
    """A compiled function: it takes arguments of the structure, shapes and dtypes that it was compiled for, without those that are
    constants, and returns NumPy arrays in the structure of the function's result."""

    def __init__(self, lowered: Any, arguments: Tuple[Any, ...], constants: Tuple[int, ...], options: Dict[str, Any]) -> None:
        self.text: str = _text(lowered)
        """The StableHLO module."""
        leaves = [jax.tree.flatten(argument) for argument in arguments]
        given = [i for i in range(len(arguments)) if i not in constants]
        values: Dict[int, Any] = {}
        self._expected: List[Any] = []
        number = 0
        for i, (list_, _) in enumerate(leaves):
            for leaf in list_:
                array = _array(leaf)
                if i in constants:
                    values[number] = array
                else:
                    self._expected.append(jax.ShapeDtypeStruct(array.shape, array.dtype))
                number += 1
        self._structure = [leaves[i][1] for i in given]
        self._result = jax.tree.structure(lowered.out_info)
        self._keys = [_key_of(leaf) for leaf in jax.tree.leaves(lowered.out_info)]
        module = Module.parse_stablehlo(self.text, constants=values)
        self.plan: of_opt.Plan = of_opt.compile(module, **options)
        """The plan: its inputs are the leaves of the arguments, in order."""
        self.session: of_opt.Session = of_opt.Session(self.plan)
        """The session that calls run in."""
        self._names = [port.name for port in self.plan.inputs]

    def __call__(self, *arguments: Any) -> Any:
        if len(arguments) != len(self._structure):
            raise TypeError(f"the function was compiled for {len(self._structure)} arguments, {len(arguments)} are given")
        leaves: List[Any] = []
        for i, (argument, structure) in enumerate(zip(arguments, self._structure)):
            own, tree = jax.tree.flatten(argument)
            if tree != structure:
                raise TypeError(f"argument {i} has the structure {tree}, the function was compiled for {structure}")
            leaves.extend(own)
        feeds = {name: _as(leaf, want) for name, leaf, want in zip(self._names, leaves, self._expected)}
        results = self.session.run_list(feeds)
        results = [r if key is None else jax.random.wrap_key_data(r, impl=key) for r, key in zip(results, self._keys)]
        return jax.tree.unflatten(self._result, results)


def lower_text(function: Callable[..., Any], *arguments: Any) -> str:
    """The StableHLO module of a function for arguments like these: arrays, or ``jax.ShapeDtypeStruct``."""
    return _text(_lower(function, arguments))


def compile(function: Callable[..., Any], *arguments: Any, constants: Numbers = (), **options: Any) -> Function:
    """Compiles a function for arguments like these.

    Args:
        function: a function of JAX. One that ``jax.jit`` made is taken as it is.
        arguments: examples: pytrees of arrays. Only their structure, shapes and dtypes matter, but for constants.
        constants: numbers of the arguments that become constants.
        options: options of :func:`of_opt.compile`.

    Raises:
        UnsupportedError: the function has operations that are not supported; all are listed.
        InputError: ``constants`` names an argument that is not there.
    """
    numbers = (constants,) if isinstance(constants, int) else tuple(constants)
    for number in numbers:
        if not 0 <= number < len(arguments):
            raise InputError(f"constants names argument {number}, there are {len(arguments)}")
    return Function(_lower(function, arguments), arguments, numbers, options)


def jit(function: Optional[Callable[..., Any]] = None, **options: Any) -> Callable[..., Any]:
    """As ``jax.jit``: a function that compiles itself for each structure, shape and dtype of its arguments.

    >>> @of_opt.jax.jit
    ... def f(x):
    ...     return jnp.sin(x)

    Args:
        function: a function of JAX.
        options: options of :func:`of_opt.compile`.
    """
    if function is None:
        return functools.partial(jit, **options)
    compiled: Dict[Any, Function] = {}

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        key = (tree, tuple(_signature(leaf) for leaf in leaves))
        if key not in compiled:
            compiled[key] = compile(function, *arguments, **options)
        return compiled[key](*arguments)

    return call


def _lower(function: Callable[..., Any], arguments: Tuple[Any, ...]) -> Any:
    # Arguments that the function does not read are inputs, too.
    return jax.jit(function, keep_unused=True).lower(*arguments)


def _text(lowered: Any) -> str:
    # Locations hold the names of arguments.
    return lowered.as_text(debug_info=True)


def _is_key(dtype: Any) -> bool:
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _key_of(info: Any) -> Optional[Any]:
    """The generator whose keys an output is; None for numbers."""
    return jax.random.key_impl(jax.random.key(0)) if _is_key(info.dtype) else None


def _array(leaf: Any) -> Any:
    """An argument in the dtype that JAX gives it; a type alone stays one."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    if hasattr(leaf, "dtype") and _is_key(leaf.dtype):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return np.ascontiguousarray(array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)).reshape(array.shape)


def _as(leaf: Any, want: Any) -> Any:
    array = _array(leaf)
    if array.dtype != want.dtype and not hasattr(leaf, "dtype"):
        # A number of Python has no dtype of its own.
        array = array.astype(want.dtype)
    return array


def _signature(leaf: Any) -> Tuple[Any, Any]:
    dtype = getattr(leaf, "dtype", None)
    return (np.shape(leaf), type(leaf) if dtype is None else dtype)
