"""Ops that move elements or make tensors: views, slices, concatenations, pads, fills."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np
import torch

from . import _dims
from ._table import aten
from ._unsupported import Unsupported

_LAST = 2**63 - 1

# ---- views ----


@aten("view.default", "_unsafe_view.default", "reshape.default", "squeeze.default", "squeeze.dim", "squeeze.dims")
@aten("unsqueeze.default", "expand_copy.default", "view_copy.default", "_reshape_alias.default")
def reshaped(b: Any, x: Any, *rest: Any, **keywords: Any) -> Any:
    return b.reshaped_as_result(x)


@aten("permute.default")
def permute(b: Any, x: Any, dims: Sequence[int]) -> Any:
    return b.op("of.transpose", x, perm=[dim % x.rank for dim in dims])


@aten("transpose.int")
def transpose(b: Any, x: Any, first: int, second: int) -> Any:
    perm = list(range(x.rank))
    if perm:
        perm[first], perm[second] = perm[second % x.rank], perm[first % x.rank]
    return b.op("of.transpose", x, perm=perm)


@aten("t.default")
def t(b: Any, x: Any) -> Any:
    return x if x.rank < 2 else b.op("of.transpose", x, perm=[1, 0])


@aten("expand.default")
def expand(b: Any, x: Any, sizes: Sequence[Any], *, implicit: bool = False) -> Any:
    return b.op("of.expand", x, b.shape(b.result.shape))


@aten("slice.Tensor")
def slice_(b: Any, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    start = 0 if start is None else start
    end = _LAST if end is None else end
    if start == 0 and isinstance(end, int) and end >= _LAST and step == 1:
        return x
    return b.op("of.slice", x, b.shape([start]), b.shape([end]), [dim % x.rank], [step])


@aten("select.int")
def select(b: Any, x: Any, dim: int, index: Any) -> Any:
    axis = dim % x.rank
    index = index + x.shape[axis] if isinstance(index, int) and index < 0 and isinstance(x.shape[axis], int) else index
    end = _LAST if isinstance(index, int) and index == -1 else index + 1
    taken = b.op("of.slice", x, b.shape([index]), b.shape([end]), [axis], [1])
    return b.reshaped_as_result(taken)


@aten("diagonal.default")
def diagonal(b: Any, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    first, second = dim1 % x.rank, dim2 % x.rank
    if not all(isinstance(x.shape[axis], int) for axis in (first, second)):
        raise Unsupported("a diagonal of open extents")
    others = [axis for axis in range(x.rank) if axis not in (first, second)]
    moved = b.op("of.transpose", x, perm=[first, second, *others])
    length = b.result.shape[-1]
    steps = np.arange(length)
    places = np.stack([steps + max(-offset, 0), steps + max(offset, 0)], axis=1)
    taken = b.op("of.gather_nd", moved, places, batch_dims=0)
    return b.op("of.transpose", taken, perm=[*range(1, len(others) + 1), 0])


@aten("unfold.default")
def unfold(b: Any, x: Any, dim: int, size: int, step: int) -> Any:
    axis = dim % x.rank
    if not isinstance(b.result.shape[axis], int):
        raise Unsupported("windows of an open extent")
    places = np.arange(b.result.shape[axis])[:, None] * step + np.arange(size)[None, :]
    taken = b.op("of.gather", x, places, axis=axis)
    rank = x.rank + 1
    return b.op("of.transpose", taken, perm=[*range(axis + 1), *range(axis + 2, rank), axis + 1])


@aten("as_strided.default")
def as_strided(b: Any, x: Any, size: Sequence[Any], stride: Sequence[Any], offset: Optional[int] = None) -> Any:
    # It reads memory in torch's layout of the operand. What that is follows from strides if the operand fills its memory.
    fake = b.node.args[0].meta["val"]
    strides = fake.stride()
    if not all(isinstance(n, int) for n in [*size, *stride, *x.shape, *strides]):
        b.needs_layout = True
        raise Unsupported("strides of open extents")
    order = sorted(range(x.rank), key=lambda axis: (-strides[axis], axis))
    step = 1
    for axis in reversed(order):
        if x.shape[axis] != 1 and strides[axis] != step:
            b.needs_layout = True
            raise Unsupported("strides over a tensor that does not fill its memory")
        step *= x.shape[axis]
    begin = (fake.storage_offset() if offset is None else offset) - fake.storage_offset()
    places = np.full((), begin)
    for extent, stride_ in zip(size, stride):
        places = places[..., None] + np.arange(extent) * stride_
    if places.size and (places.min() < 0 or places.max() >= step):
        b.needs_layout = True
        raise Unsupported("strides that leave the tensor")
    memory = b.reshape(b.op("of.transpose", x, perm=order), [-1])
    return b.op("of.gather", memory, places.astype(np.int64), axis=0)


# ---- several tensors ----


@aten("cat.default")
def cat(b: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    dtype, rank = b.result.dtype, len(b.result.shape)
    # An empty tensor of one axis joins anything.
    parts = [t for t in tensors if not (t.rank == 1 and rank != 1 and _dims.is_fixed(t.shape[0]) and int(t.shape[0]) == 0)]
    parts = [b.cast(t, dtype) for t in parts]
    return parts[0] if len(parts) == 1 else b.op("of.concat", *parts, axis=dim % rank)


@aten("stack.default")
def stack(b: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    dtype, rank = b.result.dtype, len(b.result.shape)
    axis = dim % rank
    shape = [1 if i == axis else extent for i, extent in enumerate(b.result.shape)]
    return b.op("of.concat", *[b.reshape(b.cast(t, dtype), shape) for t in tensors], axis=axis)


def _pieces(b: Any, x: Any, sizes: Sequence[int], axis: int) -> List[Any]:
    if len(sizes) == 1:
        return [x]
    return b.ops("of.split", x, list(sizes), axis=axis, num_outputs=len(sizes))


@aten("split.Tensor", "split_with_sizes.default", "chunk.default")
def split(b: Any, x: Any, sizes: Any, dim: int = 0) -> Any:
    axis = dim % x.rank
    made = [fake.shape[axis] for fake in b.result]
    if not all(isinstance(size, int) for size in made):
        raise Unsupported("pieces of an open extent")
    return _pieces(b, x, made, axis)


@aten("unbind.int")
def unbind(b: Any, x: Any, dim: int = 0) -> Any:
    axis = dim % x.rank
    pieces = _pieces(b, x, [1] * len(b.result), axis)
    return [b.reshape(piece, fake.shape) for piece, fake in zip(pieces, b.result)]


@aten("repeat.default")
def repeat(b: Any, x: Any, repeats: Sequence[Any]) -> Any:
    leading = len(repeats) - x.rank
    y = b.reshape(x, [1] * leading + list(x.shape)) if leading else x
    return b.op("of.tile", y, b.shape(repeats))


@aten("flip.default")
def flip(b: Any, x: Any, dims: Sequence[int]) -> Any:
    axes = [dim % x.rank for dim in dims]
    return b.op("of.slice", x, [-1] * len(axes), [-_LAST] * len(axes), axes, [-1] * len(axes))


@aten("roll.default")
def roll(b: Any, x: Any, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Any:
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    flat = not dims
    y = b.reshape(x, [-1]) if flat else x
    for shift, dim in zip(shifts, dims or [0]):
        axis = 0 if flat else dim % x.rank
        extent = x.shape[axis] if not flat else int(np.prod(x.shape))
        if not isinstance(extent, int) or not isinstance(shift, int):
            raise Unsupported("a rotation of an open extent")
        cut = -shift % max(extent, 1)
        if cut:
            left = b.op("of.slice", y, [0], [cut], [axis], [1])
            right = b.op("of.slice", y, [cut], [_LAST], [axis], [1])
            y = b.op("of.concat", right, left, axis=axis)
    return b.reshape(y, x.shape) if flat else y


# ---- pads ----


def pad(b: Any, x: Any, pads: Sequence[Any], mode: str, value: Any = None) -> Any:
    """Pads as torch gives them, the last axis first, as all begins and then all ends."""
    axes = [x.rank - 1 - i for i in range(len(pads) // 2)]
    operand = b.shape([*pads[0::2], *pads[1::2]])
    return b.op("of.pad", x, operand, value, axes, mode=mode)


@aten("constant_pad_nd.default")
def constant_pad(b: Any, x: Any, pads: Sequence[Any], value: Any = 0) -> Any:
    return pad(b, x, pads, "constant", b.scalar(value, x.dtype))


@aten("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def reflection_pad(b: Any, x: Any, pads: Sequence[Any]) -> Any:
    return pad(b, x, pads, "reflect")


@aten("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def replication_pad(b: Any, x: Any, pads: Sequence[Any]) -> Any:
    return pad(b, x, pads, "edge")


# ---- new tensors ----


def filled(b: Any, value: Any) -> Any:
    """A tensor of the result's extents whose elements are all equal."""
    return b.op("of.expand", b.cast(value, b.result.dtype), b.shape(b.result.shape))


@aten("full.default", "full_like.default", "new_full.default")
def full(b: Any, first: Any, *rest: Any, **keywords: Any) -> Any:
    return filled(b, rest[-1])


@aten("zeros.default", "zeros_like.default", "new_zeros.default", "empty.memory_format", "empty_like.default")
@aten("new_empty.default", "empty_strided.default", "new_empty_strided.default", "empty_permuted.default")
def zeros(b: Any, *args: Any, **keywords: Any) -> Any:
    return filled(b, 0)


@aten("ones.default", "ones_like.default", "new_ones.default")
def ones(b: Any, *args: Any, **keywords: Any) -> Any:
    return filled(b, 1)


@aten("fill.Scalar", "fill.Tensor")
def fill(b: Any, x: Any, value: Any) -> Any:
    return filled(b, value)


@aten("copy.default")
def copy(b: Any, x: Any, source: Any, non_blocking: bool = False) -> Any:
    return b.op("of.expand", b.cast(source, b.result.dtype), b.shape(b.result.shape))


@aten("scalar_tensor.default")
def scalar_tensor(b: Any, value: Any, **keywords: Any) -> Any:
    return b.scalar(value, b.result.dtype)


@aten("arange.start_step", "arange.start", "arange.default")
def arange(b: Any, *bounds: Any, **keywords: Any) -> Any:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
    dtype = b.result.dtype
    if all(isinstance(bound, (int, float)) for bound in (start, end, step)):
        return b.constant(torch.arange(start, end, step, dtype=dtype))
    if start == 0 and step == 1:
        # The positions along an axis are running sums of ones.
        one = b.op("of.expand", b.scalar(1, torch.int64), b.shape(b.result.shape))
        sums = b.op("of.cum_sum", one, b.scalar(0, torch.int64), exclusive=True, reverse=False)
        return b.cast(sums, dtype)
    return b.op("of.range", *[b.scalar(bound, dtype) for bound in (start, end, step)])


@aten("eye.default", "eye.m")
def eye(b: Any, *sizes: Any, **keywords: Any) -> Any:
    if not all(isinstance(size, int) for size in sizes):
        raise Unsupported("an identity matrix of open extents")
    return b.constant(torch.eye(*sizes, dtype=b.result.dtype))


def _triangle(upper: bool) -> Any:
    def build(b: Any, x: Any, k: Any = 0) -> Any:
        return b.op("of.trilu", x, b.scalar(k, torch.int64), upper=upper)

    return build


aten("tril.default")(_triangle(False))
aten("triu.default")(_triangle(True))


# ---- blocks ----


@aten("pixel_shuffle.default")
def pixel_shuffle(b: Any, x: Any, factor: int) -> Any:
    if x.rank != 4:
        raise Unsupported("a pixel shuffle of other than four axes")
    return b.op("of.depth_to_space", x, blocksize=factor, mode="CRD")


@aten("pixel_unshuffle.default")
def pixel_unshuffle(b: Any, x: Any, factor: int) -> Any:
    *lead, c, h, w = x.shape
    n = len(lead)
    split = b.reshape(x, [*lead, c, h // factor, factor, w // factor, factor])
    moved = b.op("of.transpose", split, perm=[*range(n + 1), n + 2, n + 4, n + 1, n + 3])
    return b.reshaped_as_result(moved)
