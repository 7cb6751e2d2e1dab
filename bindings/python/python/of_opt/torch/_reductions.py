"""Reductions, and what runs along an axis."""

from __future__ import annotations

from typing import Any, List, Optional

import torch

from ._table import aten
from ._unsupported import Unsupported


def axes_of(rank: int, dims: Any) -> List[int]:
    """Axes that count from the front; all of them where none are named."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(rank))
    return [dim % max(rank, 1) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]


def reduce(b: Any, op: str, x: Any, rank: int, dims: Any, keepdim: bool) -> Any:
    """A reduction along axes; of a tensor without axes the tensor."""
    if rank == 0:
        return x
    return b.op(f"of.reduce_{op}", x, axes_of(rank, dims), keepdims=bool(keepdim))


@aten("sum.default", "sum.dim_IntList")
def sum_(b: Any, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return reduce(b, "sum", b.cast(x, b.result.dtype), x.rank, dims, keepdim)


@aten("mean.default", "mean.dim")
def mean(b: Any, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return reduce(b, "mean", b.cast(x, b.result.dtype), x.rank, dims, keepdim)


@aten("prod.default", "prod.dim_int")
def prod(b: Any, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return reduce(b, "prod", b.cast(x, b.result.dtype), x.rank, dims, keepdim)


@aten("amax.default")
def amax(b: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    return reduce(b, "max", x, x.rank, dims, keepdim)


@aten("amin.default")
def amin(b: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    return reduce(b, "min", x, x.rank, dims, keepdim)


@aten("max.default")
def max_all(b: Any, x: Any) -> Any:
    return reduce(b, "max", x, x.rank, None, False)


@aten("min.default")
def min_all(b: Any, x: Any) -> Any:
    return reduce(b, "min", x, x.rank, None, False)


def _extreme(b: Any, kind: str, x: Any, dim: int, keepdim: bool) -> List[Any]:
    index = b.op(f"of.arg_{kind}", x, axis=dim % x.rank, keepdims=bool(keepdim), select_last_index=False)
    return [reduce(b, kind, x, x.rank, dim, keepdim), index]


@aten("max.dim")
def max_dim(b: Any, x: Any, dim: int, keepdim: bool = False) -> Any:
    return _extreme(b, "max", x, dim, keepdim)


@aten("min.dim")
def min_dim(b: Any, x: Any, dim: int, keepdim: bool = False) -> Any:
    return _extreme(b, "min", x, dim, keepdim)


def _arg(b: Any, kind: str, x: Any, dim: Optional[int], keepdim: bool) -> Any:
    if dim is None:
        x, rank, dim = b.reshape(x, [-1]), 1, 0
        if keepdim:
            raise Unsupported("the index of the extreme element of all, with its axes kept")
    else:
        rank = x.rank
    return b.op(f"of.arg_{kind}", x, axis=dim % rank, keepdims=bool(keepdim), select_last_index=False)


@aten("argmax.default")
def argmax(b: Any, x: Any, dim: Optional[int] = None, keepdim: bool = False) -> Any:
    return _arg(b, "max", x, dim, keepdim)


@aten("argmin.default")
def argmin(b: Any, x: Any, dim: Optional[int] = None, keepdim: bool = False) -> Any:
    return _arg(b, "min", x, dim, keepdim)


def _truth(b: Any, op: str, x: Any, dims: Any, keepdim: bool) -> Any:
    true = x if x.dtype == torch.bool else b.op("of.ne", x, b.scalar(0, x.dtype))
    number = reduce(b, op, b.cast(true, torch.int32), x.rank, dims, keepdim)
    return b.op("of.ne", number, b.scalar(0, torch.int32))


@aten("any.default", "any.dim", "any.dims")
def any_(b: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    return _truth(b, "max", x, dims, keepdim)


@aten("all.default", "all.dim", "all.dims")
def all_(b: Any, x: Any, dims: Any = None, keepdim: bool = False) -> Any:
    return _truth(b, "min", x, dims, keepdim)


def moments(b: Any, x: Any, rank: int, extents: Any, dtype: torch.dtype, dims: Any, correction: Any, keepdim: bool) -> tuple:
    """Variance and mean."""
    axes = axes_of(rank, dims)
    center = reduce(b, "mean", x, rank, axes, True)
    square = b.op("of.sub", x, center)
    square = b.op("of.mul", square, square)
    correction = 1 if correction is None else correction
    variance = reduce(b, "mean", square, rank, axes, keepdim)
    if correction != 0:
        count = 1
        for axis in axes:
            count = count * extents[axis]
        if not isinstance(count, int):
            raise Unsupported("the variance of an open number of elements with a correction")
        variance = b.op("of.mul", variance, b.scalar(count / (count - correction) if count != correction else float("nan"), dtype))
    return variance, center if keepdim else reduce(b, "mean", x, rank, axes, False)


@aten("var.correction")
def var(b: Any, x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return moments(b, x, x.rank, x.shape, x.dtype, dims, correction, keepdim)[0]


@aten("var_mean.correction")
def var_mean(b: Any, x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return moments(b, x, x.rank, x.shape, x.dtype, dims, correction, keepdim)


@aten("std.correction")
def std(b: Any, x: Any, dims: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return b.op("of.sqrt", moments(b, x, x.rank, x.shape, x.dtype, dims, correction, keepdim)[0])


@aten("logsumexp.default")
def logsumexp(b: Any, x: Any, dims: Any, keepdim: bool = False) -> Any:
    return reduce(b, "log_sum_exp", b.cast(x, b.result.dtype), x.rank, dims, keepdim)


@aten("linalg_vector_norm.default")
def vector_norm(b: Any, x: Any, order: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x_value = b.cast(x, b.result.dtype)
    if order in (1, 2):
        return reduce(b, f"l{int(order)}", x_value, x.rank, dims, keepdim)
    if order == float("inf"):
        return reduce(b, "max", b.op("of.abs", x_value), x.rank, dims, keepdim)
    raise Unsupported(f"the norm of order {order}")


@aten("cumsum.default")
def cumsum(b: Any, x: Any, dim: int, *, dtype: Any = None) -> Any:
    if x.rank == 0:
        return x
    axis = b.scalar(dim % x.rank, torch.int64)
    return b.op("of.cum_sum", b.cast(x, b.result.dtype), axis, exclusive=False, reverse=False)


def _softmax(op: str) -> Any:
    def build(b: Any, x: Any, dim: int, half_to_float: bool = False) -> Any:
        return b.op(op, b.cast(x, b.result.dtype), axis=dim % x.rank)

    return build


aten("_softmax.default")(_softmax("of.softmax"))
aten("_log_softmax.default")(_softmax("of.log_softmax"))


@aten("_safe_softmax.default")
def safe_softmax(b: Any, x: Any, dim: int, dtype: Any = None) -> Any:
    # A row of minus infinity alone has the weights zero.
    value = b.cast(x, b.result.dtype)
    axis = dim % x.rank
    highest = reduce(b, "max", value, x.rank, axis, True)
    masked = b.op("of.eq", highest, b.scalar(float("-inf"), b.result.dtype))
    return b.op("of.select", masked, b.scalar(0, b.result.dtype), b.op("of.softmax", value, axis=axis))


@aten("topk.default")
def topk(b: Any, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return b.ops("of.top_k", x, b.shape([k]), axis=dim % x.rank, largest=bool(largest), sorted=True)


@aten("sort.default")
def sort(b: Any, x: Any, dim: int = -1, descending: bool = False) -> Any:
    axis = dim % x.rank
    return b.ops("of.top_k", x, b.shape([x.shape[axis]]), axis=axis, largest=bool(descending), sorted=True)


@aten("sort.stable")
def sort_stable(b: Any, x: Any, *, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    # Of equal elements `of.top_k` gives the first one first.
    return sort(b, x, dim, descending)
