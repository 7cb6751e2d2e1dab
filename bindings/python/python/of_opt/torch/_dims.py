"""Extents of torch, numbers or SymInt, as dimensions of the IR."""

from __future__ import annotations

from typing import Any

import sympy

from ._unsupported import Unsupported

_FUNCTIONS = {"FloorDiv": "floordiv", "CleanDiv": "floordiv", "Mod": "mod", "PythonMod": "mod"}


def expression(extent: Any) -> Any:
    """The sympy expression of an extent."""
    return sympy.Integer(extent) if isinstance(extent, int) else extent.node.expr


def is_fixed(extent: Any) -> bool:
    """Whether it is a number."""
    return isinstance(extent, int) or expression(extent).is_Integer


def number_or_text(extent: Any) -> Any:
    """The extent as a number, or as text that the IR reads, such as "s77*2 + 1"."""
    expr = expression(extent)
    return int(expr) if expr.is_Integer else text(expr)


def text(expr: Any) -> str:
    """A sympy expression as text that the IR reads."""
    if expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return symbol(expr)
    parts = [text(arg) for arg in expr.args]
    name = type(expr).__name__
    if expr.is_Add:
        return "(" + " + ".join(parts) + ")"
    if expr.is_Mul:
        return "(" + " * ".join(parts) + ")"
    if expr.is_Pow and expr.exp.is_Integer and expr.exp > 0:
        return "(" + " * ".join([parts[0]] * int(expr.exp)) + ")"
    if name in _FUNCTIONS and len(parts) == 2:
        return f"({parts[0]} {_FUNCTIONS[name]} {parts[1]})"
    if name in ("Max", "Min"):
        folded = parts[0]
        for part in parts[1:]:
            folded = f"{name.lower()}({folded}, {part})"
        return folded
    raise Unsupported(f"an extent is {expr}")


def symbol(expr: Any) -> str:
    """The name of a symbol. The IR numbers symbols of its own as u1, u2 and so on."""
    return f"torch_{expr.name}"
