"""The table: for each ATen op the function that builds its IR.

A function takes the :class:`of_opt.torch._build.Build` and the arguments of the op, and returns a value, or one for each result. It
raises :class:`Unsupported` with a reason for a use that it cannot build.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

TABLE: Dict[str, Callable[..., Any]] = {}
"""By full name, such as "aten.add.Tensor"."""


def aten(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function to the table under these names, without "aten."."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            assert f"aten.{name}" not in TABLE, name
            TABLE[f"aten.{name}"] = function
        return function

    return enter


from . import _elementwise, _gradients, _indexing, _layers, _reductions, _shapes  # noqa: E402,F401
