"""Elementwise ops."""

from __future__ import annotations

import math
from typing import Any

import torch

from ._table import aten
from ._unsupported import Unsupported

# ---- of one operand ----

_FLOAT = (
    "acos acosh asin asinh atan atanh cos cosh erf exp log rsqrt sigmoid sin sinh sqrt tan tanh reciprocal".split()
)
_ANY = {"abs": "abs", "ceil": "ceil", "floor": "floor", "neg": "neg", "round": "round", "sign": "sign", "sgn": "sign"}


def _unary(name: str) -> Any:
    return lambda b, x: b.op(f"of.{name}", b.cast(x, b.result.dtype))


for _name in _FLOAT:
    aten(f"{_name}.default")(_unary(_name))


def _unary_any(name: str) -> Any:
    def build(b: Any, x: Any) -> Any:
        integer = not x.dtype.is_floating_point
        return x if integer and name in ("ceil", "floor", "round") else b.op(f"of.{name}", x)

    return build


for _name, _op in _ANY.items():
    aten(f"{_name}.default")(_unary_any(_op))


@aten("relu.default")
def relu(b: Any, x: Any) -> Any:
    return b.op("of.relu", x) if x.dtype.is_floating_point else b.op("of.max", x, b.scalar(0, x.dtype))


@aten("trunc.default", "fix.default")
def trunc(b: Any, x: Any) -> Any:
    if not x.dtype.is_floating_point:
        return x
    below = b.op("of.lt", x, b.scalar(0, x.dtype))
    return b.op("of.select", below, b.op("of.ceil", x), b.op("of.floor", x))


@aten("expm1.default")
def expm1(b: Any, x: Any) -> Any:
    x = b.cast(x, b.result.dtype)
    # 2 tanh(x / 2) / (1 - tanh(x / 2)) is exact near zero.
    half = b.op("of.tanh", b.op("of.mul", x, b.scalar(0.5, b.result.dtype)))
    near = b.op("of.div", b.op("of.add", half, half), b.op("of.sub", b.scalar(1, b.result.dtype), half))
    far = b.op("of.sub", b.op("of.exp", x), b.scalar(1, b.result.dtype))
    small = b.op("of.lt", b.op("of.abs", x), b.scalar(1, b.result.dtype))
    return b.op("of.select", small, near, far)


@aten("log1p.default")
def log1p(b: Any, x: Any) -> Any:
    dtype = b.result.dtype
    x = b.cast(x, dtype)
    # W. Kahan: x log(1 + x) / ((1 + x) - 1), and x where 1 + x is 1.
    one = b.scalar(1, dtype)
    u = b.op("of.add", one, x)
    d = b.op("of.sub", u, one)
    zero = b.op("of.eq", d, b.scalar(0, dtype))
    safe = b.op("of.select", zero, one, d)
    scaled = b.op("of.div", b.op("of.mul", b.op("of.log", u), x), safe)
    infinite = b.op("of.eq", u, b.scalar(math.inf, dtype))
    return b.op("of.select", infinite, u, b.op("of.select", zero, x, scaled))


@aten("log2.default")
def log2(b: Any, x: Any) -> Any:
    logarithm = b.op("of.log", b.cast(x, b.result.dtype))
    return b.op("of.mul", logarithm, b.scalar(1 / math.log(2), b.result.dtype))


@aten("log10.default")
def log10(b: Any, x: Any) -> Any:
    logarithm = b.op("of.log", b.cast(x, b.result.dtype))
    return b.op("of.mul", logarithm, b.scalar(1 / math.log(10), b.result.dtype))


@aten("exp2.default")
def exp2(b: Any, x: Any) -> Any:
    return b.op("of.exp", b.op("of.mul", b.cast(x, b.result.dtype), b.scalar(math.log(2), b.result.dtype)))


@aten("isnan.default")
def isnan(b: Any, x: Any) -> Any:
    return b.op("of.ne", x, x)


@aten("isinf.default")
def isinf(b: Any, x: Any) -> Any:
    return b.op("of.is_inf", b.cast(x, torch.float32), detect_positive=True, detect_negative=True)


@aten("logical_not.default")
def logical_not(b: Any, x: Any) -> Any:
    return b.op("of.not", b.cast(x, torch.bool))


@aten("bitwise_not.default")
def bitwise_not(b: Any, x: Any) -> Any:
    return b.op("of.not" if x.dtype == torch.bool else "of.bitwise_not", x)


@aten("_to_copy.default")
def to_copy(b: Any, x: Any, **keywords: Any) -> Any:
    if b.result.dtype == torch.bool and x.dtype != torch.bool:
        return b.op("of.ne", x, b.scalar(0, x.dtype))
    return b.cast(x, b.result.dtype)


@aten("clone.default", "alias.default", "detach.default", "lift_fresh_copy.default", "contiguous.default")
def identity(b: Any, x: Any, **keywords: Any) -> Any:
    return x


# ---- activations ----


@aten("gelu.default")
def gelu(b: Any, x: Any, *, approximate: str = "none") -> Any:
    return b.op("of.gelu", x, tanh=approximate == "tanh")


@aten("silu.default")
def silu(b: Any, x: Any) -> Any:
    return b.op("of.swish", x, alpha=1.0)


@aten("mish.default")
def mish(b: Any, x: Any) -> Any:
    return b.op("of.mish", x)


@aten("hardswish.default")
def hardswish(b: Any, x: Any) -> Any:
    return b.op("of.hard_swish", x)


@aten("hardsigmoid.default")
def hardsigmoid(b: Any, x: Any) -> Any:
    return b.op("of.hard_sigmoid", x, alpha=1 / 6, beta=0.5)


@aten("leaky_relu.default")
def leaky_relu(b: Any, x: Any, slope: float = 0.01) -> Any:
    return b.op("of.leaky_relu", x, alpha=float(slope))


@aten("elu.default")
def elu(b: Any, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if input_scale != 1:
        raise Unsupported("elu with a scale of its input")
    y = b.op("of.elu", x, alpha=float(alpha))
    return y if scale == 1 else b.op("of.mul", y, b.scalar(scale, x.dtype))


@aten("softplus.default")
def softplus(b: Any, x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x if beta == 1 else b.op("of.mul", x, b.scalar(beta, x.dtype))
    y = b.op("of.softplus", scaled)
    y = y if beta == 1 else b.op("of.div", y, b.scalar(beta, x.dtype))
    return b.op("of.select", b.op("of.gt", scaled, b.scalar(threshold, x.dtype)), x, y)


@aten("hardtanh.default", "clamp.default")
def clamp(b: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    dtype = b.result.dtype
    y = b.cast(x, dtype)
    y = y if low is None else b.op("of.max", y, b.scalar(low, dtype))
    return y if high is None else b.op("of.min", y, b.scalar(high, dtype))


@aten("clamp.Tensor")
def clamp_tensor(b: Any, x: Any, low: Any = None, high: Any = None) -> Any:
    dtype = b.result.dtype
    y = b.cast(x, dtype)
    y = y if low is None else b.op("of.max", y, b.cast(low, dtype))
    return y if high is None else b.op("of.min", y, b.cast(high, dtype))


@aten("clamp_min.default", "clamp_min.Tensor")
def clamp_min(b: Any, x: Any, low: Any) -> Any:
    return b.op("of.max", b.cast(x, b.result.dtype), b.cast(low, b.result.dtype))


@aten("clamp_max.default", "clamp_max.Tensor")
def clamp_max(b: Any, x: Any, high: Any) -> Any:
    return b.op("of.min", b.cast(x, b.result.dtype), b.cast(high, b.result.dtype))


@aten("glu.default")
def glu(b: Any, x: Any, dim: int = -1) -> Any:
    axis = dim % x.rank
    left, right = b.ops("of.split", x, None, axis=axis, num_outputs=2)
    return b.op("of.mul", left, b.op("of.sigmoid", right))


# ---- of two operands ----


def both(b: Any, x: Any, y: Any, dtype: torch.dtype) -> tuple:
    """Two operands, numbers among them, as values of one type."""
    return b.cast(x, dtype), b.cast(y, dtype)


def promoted(x: Any, y: Any) -> torch.dtype:
    """The type in which torch compares two operands."""
    as_fake = lambda v: torch.empty(v.shape if v.rank == 0 else (1,) * v.rank, dtype=v.dtype) if hasattr(v, "rank") else v
    return torch.result_type(as_fake(x), as_fake(y))


@aten("add.Tensor", "add.Scalar")
def add(b: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    dtype = b.result.dtype
    x, y = both(b, x, y, dtype)
    if dtype == torch.bool:
        return b.op("of.or", x, y)
    return b.op("of.add", x, y if alpha == 1 else b.op("of.mul", y, b.scalar(alpha, dtype)))


@aten("sub.Tensor", "sub.Scalar")
def sub(b: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    dtype = b.result.dtype
    x, y = both(b, x, y, dtype)
    return b.op("of.sub", x, y if alpha == 1 else b.op("of.mul", y, b.scalar(alpha, dtype)))


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(b: Any, x: Any, y: Any, alpha: Any = 1) -> Any:
    dtype = b.result.dtype
    x, y = both(b, x, y, dtype)
    return b.op("of.sub", y, x if alpha == 1 else b.op("of.mul", x, b.scalar(alpha, dtype)))


@aten("mul.Tensor", "mul.Scalar")
def mul(b: Any, x: Any, y: Any) -> Any:
    dtype = b.result.dtype
    return b.op("of.and" if dtype == torch.bool else "of.mul", *both(b, x, y, dtype))


@aten("div.Tensor", "div.Scalar")
def div(b: Any, x: Any, y: Any) -> Any:
    return b.op("of.div", *both(b, x, y, b.result.dtype))


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: Any, x: Any, y: Any, *, rounding_mode: Any = None) -> Any:
    dtype = b.result.dtype
    x, y = both(b, x, y, dtype)
    quotient = b.op("of.div", x, y)
    if rounding_mode is None:
        return quotient
    if dtype.is_floating_point:
        down = b.op("of.floor", quotient)
        if rounding_mode == "floor":
            return down
        return b.op("of.select", b.op("of.lt", quotient, b.scalar(0, dtype)), b.op("of.ceil", quotient), down)
    if rounding_mode == "trunc":
        return quotient
    # Integers are truncated; a remainder of the other sign than the divisor's takes one more.
    zero, one = b.scalar(0, dtype), b.scalar(1, dtype)
    remainder = b.op("of.sub", x, b.op("of.mul", quotient, y))
    signs = b.op("of.ne", b.op("of.lt", remainder, zero), b.op("of.lt", y, zero))
    inexact = b.op("of.and", b.op("of.ne", remainder, zero), signs)
    return b.op("of.sub", quotient, b.op("of.select", inexact, one, zero))


@aten("floor_divide.default")
def floor_divide(b: Any, x: Any, y: Any) -> Any:
    return div_mode(b, x, y, rounding_mode="floor")


@aten("remainder.Tensor", "remainder.Scalar")
def remainder(b: Any, x: Any, y: Any) -> Any:
    dtype = b.result.dtype
    x, y = both(b, x, y, dtype)
    if not dtype.is_floating_point:
        return b.op("of.mod", x, y)
    return b.op("of.sub", x, b.op("of.mul", b.op("of.floor", b.op("of.div", x, y)), y))


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(b: Any, x: Any, y: Any) -> Any:
    return b.op("of.fmod", *both(b, x, y, b.result.dtype))


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def power(b: Any, x: Any, y: Any) -> Any:
    dtype = b.result.dtype
    if y == 2:
        x = b.cast(x, dtype)
        return b.op("of.mul", x, x)
    if y == 0.5:
        return b.op("of.sqrt", b.cast(x, dtype))
    if y == -0.5:
        return b.op("of.rsqrt", b.cast(x, dtype))
    return b.op("of.pow", *both(b, x, y, dtype))


for _name, _op in {"maximum": "max", "minimum": "min"}.items():
    aten(f"{_name}.default")(lambda b, x, y, op=_op: b.op(f"of.{op}", *both(b, x, y, b.result.dtype)))


def _comparison(op: str) -> Any:
    return lambda b, x, y: b.op(f"of.{op}", *both(b, x, y, promoted(x, y)))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    aten(f"{_name}.Tensor", f"{_name}.Scalar")(_comparison(_name))


def _logical(op: str) -> Any:
    return lambda b, x, y: b.op(f"of.{op}", *both(b, x, y, torch.bool))


def _bitwise(op: str) -> Any:
    def build(b: Any, x: Any, y: Any) -> Any:
        dtype = b.result.dtype
        return b.op(f"of.{op}" if dtype == torch.bool else f"of.bitwise_{op}", *both(b, x, y, dtype))

    return build


for _name in ("and", "or", "xor"):
    aten(f"logical_{_name}.default")(_logical(_name))
    aten(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar")(_bitwise(_name))


@aten("atan2.default")
def atan2(b: Any, y: Any, x: Any) -> Any:
    dtype = b.result.dtype
    y, x = both(b, y, x, dtype)
    zero, pi = b.scalar(0, dtype), b.scalar(math.pi, dtype)
    is_zero = b.op("of.eq", x, zero)
    angle = b.op("of.atan", b.op("of.div", y, b.op("of.select", is_zero, b.scalar(1, dtype), x)))
    turned = b.op("of.select", b.op("of.lt", y, zero), b.op("of.sub", angle, pi), b.op("of.add", angle, pi))
    upright = b.op("of.mul", b.op("of.sign", y), b.scalar(math.pi / 2, dtype))
    return b.op("of.select", is_zero, upright, b.op("of.select", b.op("of.lt", x, zero), turned, angle))


# ---- choices ----


@aten("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(b: Any, condition: Any, x: Any, y: Any) -> Any:
    return b.op("of.select", b.cast(condition, torch.bool), *both(b, x, y, b.result.dtype))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: Any, x: Any, mask: Any, value: Any) -> Any:
    return b.op("of.select", mask, b.cast(value, b.result.dtype), b.cast(x, b.result.dtype))


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(b: Any, x: Any, end: Any, weight: Any) -> Any:
    x, end = both(b, x, end, b.result.dtype)
    return b.op("of.add", x, b.op("of.mul", b.cast(weight, b.result.dtype), b.op("of.sub", end, x)))


@aten("threshold.default")
def threshold(b: Any, x: Any, limit: Any, value: Any) -> Any:
    return b.op("of.select", b.op("of.gt", x, b.scalar(limit, x.dtype)), x, b.scalar(value, x.dtype))
