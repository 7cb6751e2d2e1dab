"""Gathering and scattering."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np
import torch

from ._table import aten
from ._unsupported import Unsupported


@aten("embedding.default")
def embedding(b: Any, weight: Any, indices: Any, *rest: Any) -> Any:
    return b.op("of.gather", weight, indices, axis=0)


@aten("index_select.default")
def index_select(b: Any, x: Any, dim: int, index: Any) -> Any:
    return b.op("of.gather", x, index, axis=dim % x.rank)


@aten("gather.default")
def gather(b: Any, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    return b.op("of.gather_elements", x, index, axis=dim % x.rank)


def _places(b: Any, x: Any, indices: Sequence[Any]) -> tuple:
    """The indexed axes, and the indices broadcast and stacked along a new last axis."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if any(indices[axis].dtype in (torch.bool, torch.uint8) for axis in axes):
        raise Unsupported("a mask as an index, whose result has as many elements as the mask is true")
    shape = list(np.broadcast_shapes(*[(1,) * indices[axis].rank for axis in axes]))
    shape = [_common([_extent(indices[axis], i, len(shape)) for axis in axes]) for i in range(len(shape))]
    wide = []
    for axis in axes:
        index = b.cast(indices[axis], torch.int64)
        # `of.gather_nd` counts from the end, too.
        wide.append(b.reshape(b.op("of.expand", index, b.shape(shape)), [*shape, 1]))
    places = wide[0] if len(wide) == 1 else b.op("of.concat", *wide, axis=len(shape))
    return axes, places, shape


def _extent(tensor: Any, axis: int, rank: int) -> Any:
    at = axis - (rank - tensor.rank)
    return tensor.shape[at] if at >= 0 else 1


def _common(extents: List[Any]) -> Any:
    return next((extent for extent in extents if not (isinstance(extent, int) and extent == 1)), 1)


@aten("index.Tensor", "_unsafe_index.Tensor")
def index(b: Any, x: Any, indices: Sequence[Any]) -> Any:
    axes = [axis for axis, i in enumerate(indices) if i is not None]
    if len(axes) == 1 and indices[axes[0]].dtype not in (torch.bool, torch.uint8):
        return b.op("of.gather", x, indices[axes[0]], axis=axes[0])
    axes, places, shape = _places(b, x, indices)
    others = [axis for axis in range(x.rank) if axis not in axes]
    moved = x if axes == list(range(len(axes))) else b.op("of.transpose", x, perm=[*axes, *others])
    taken = b.op("of.gather_nd", moved, places, batch_dims=0)
    adjacent = axes == list(range(axes[0], axes[0] + len(axes)))
    if not adjacent or axes[0] == 0:
        return taken
    # The indexed axes are adjacent, so theirs replace them.
    rank, first = len(shape), axes[0]
    perm = [*range(rank, rank + first), *range(rank), *range(rank + first, rank + len(others))]
    return b.op("of.transpose", taken, perm=perm)


@aten("index_put.default", "_unsafe_index_put.default")
def index_put(b: Any, x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    given = [i for i in indices if i is not None]
    if len(given) == 1 and given[0].dtype == torch.bool and not accumulate and values.rank == 0:
        mask = given[0]
        lead = next(axis for axis, i in enumerate(indices) if i is not None)
        shape = [1] * lead + list(mask.shape) + [1] * (x.rank - lead - mask.rank)
        return b.op("of.select", b.reshape(mask, shape), values, x)
    axes, places, shape = _places(b, x, indices)
    others = [axis for axis in range(x.rank) if axis not in axes]
    first, rank = axes[0], len(shape)
    if axes == list(range(first, first + len(axes))) and first > 0:
        # The axes of the indices are in the place of those that they index; the op has them in front.
        wide = b.op("of.expand", values, b.shape([*x.shape[:first], *shape, *x.shape[first + len(axes) :]]))
        count = rank + len(others)
        updates = b.op("of.transpose", wide, perm=[*range(first, first + rank), *range(first), *range(first + rank, count)])
    else:
        updates = b.op("of.expand", values, b.shape([*shape, *[x.shape[axis] for axis in others]]))
    perm = [*axes, *others]
    moved = x if perm == list(range(x.rank)) else b.op("of.transpose", x, perm=perm)
    made = b.op("of.scatter_nd", moved, places, updates, reduction="add" if accumulate else "none")
    return made if moved is x else b.op("of.transpose", made, perm=[perm.index(axis) for axis in range(x.rank)])


def _scatter(b: Any, x: Any, dim: int, index: Any, updates: Any, reduction: str) -> Any:
    if x.rank == 0:
        raise Unsupported("scattering to a tensor without axes")
    if any(isinstance(u, int) and isinstance(i, int) and u != i for u, i in zip(updates.shape, index.shape)):
        cut = [0] * index.rank
        updates = b.op("of.slice", updates, cut, b.shape(index.shape), list(range(index.rank)), [1] * index.rank)
    return b.op("of.scatter_elements", x, index, updates, axis=dim % x.rank, reduction=reduction)


@aten("scatter.src")
def scatter(b: Any, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scatter(b, x, dim, index, source, "none")


@aten("scatter_add.default")
def scatter_add(b: Any, x: Any, dim: int, index: Any, source: Any) -> Any:
    return _scatter(b, x, dim, index, source, "add")


@aten("scatter.value")
def scatter_value(b: Any, x: Any, dim: int, index: Any, value: Any) -> Any:
    if x.rank == 0:
        raise Unsupported("scattering to a tensor without axes")
    updates = b.op("of.expand", b.scalar(value, x.dtype), b.shape(index.shape))
    return b.op("of.scatter_elements", x, index, updates, axis=dim % x.rank, reduction="none")


def _replace(b: Any, x: Any, source: Any, axis: int, start: Any, end: Any, step: int) -> Any:
    """The tensor with a slice replaced."""
    extent = x.shape[axis]
    if not all(isinstance(n, int) for n in (extent, start, end, step)):
        raise Unsupported("a slice of an open extent that is replaced")
    places = list(range(extent))[start:end:step]
    if not places:
        return x
    if step == 1:
        last = 2**63 - 1
        parts = []
        if places[0] > 0:
            parts.append(b.op("of.slice", x, [0], [places[0]], [axis], [1]))
        parts.append(source)
        if places[-1] + 1 < extent:
            parts.append(b.op("of.slice", x, [places[-1] + 1], [last], [axis], [1]))
        return parts[0] if len(parts) == 1 else b.op("of.concat", *parts, axis=axis)
    shape = [1] * x.rank
    shape[axis] = len(places)
    index = b.constant(torch.tensor(places).reshape(shape))
    full = [len(places) if i == axis else n for i, n in enumerate(x.shape)]
    return b.op("of.scatter_elements", x, b.op("of.expand", index, b.shape(full)), source, axis=axis, reduction="none")


@aten("slice_scatter.default")
def slice_scatter(b: Any, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = dim % x.rank
    return _replace(b, x, source, axis, 0 if start is None else start, x.shape[axis] if end is None else end, step)


@aten("select_scatter.default")
def select_scatter(b: Any, x: Any, source: Any, dim: int, index: int) -> Any:
    axis = dim % x.rank
    index = index % x.shape[axis] if isinstance(x.shape[axis], int) else index
    shape = [1 if i == axis else extent for i, extent in enumerate(x.shape)]
    return _replace(b, x, b.reshape(source, shape), axis, index, index + 1, 1)
