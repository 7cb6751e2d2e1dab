"""Ops of backward graphs: gradients of the forward op by the compiler's own rules."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch

from . import _layers
from ._reductions import reduce
from ._table import aten
from ._unsupported import Unsupported


@aten("threshold_backward.default")
def threshold_backward(b: Any, g: Any, x: Any, limit: Any) -> Any:
    return b.op("of.select", b.op("of.gt", x, b.scalar(limit, x.dtype)), g, b.scalar(0, g.dtype))


@aten("sigmoid_backward.default")
def sigmoid_backward(b: Any, g: Any, y: Any) -> Any:
    return b.op("of.mul", g, b.op("of.mul", y, b.op("of.sub", b.scalar(1, y.dtype), y)))


@aten("tanh_backward.default")
def tanh_backward(b: Any, g: Any, y: Any) -> Any:
    return b.op("of.mul", g, b.op("of.sub", b.scalar(1, y.dtype), b.op("of.mul", y, y)))


@aten("gelu_backward.default")
def gelu_backward(b: Any, g: Any, x: Any, *, approximate: str = "none") -> Any:
    return b.vjp(lambda x: b.op("of.gelu", x, tanh=approximate == "tanh"), g, x)[0]


@aten("silu_backward.default")
def silu_backward(b: Any, g: Any, x: Any) -> Any:
    return b.vjp(lambda x: b.op("of.swish", x, alpha=1.0), g, x)[0]


@aten("hardswish_backward.default")
def hardswish_backward(b: Any, g: Any, x: Any) -> Any:
    return b.vjp(lambda x: b.op("of.hard_swish", x), g, x)[0]


@aten("hardsigmoid_backward.default")
def hardsigmoid_backward(b: Any, g: Any, x: Any) -> Any:
    return b.vjp(lambda x: b.op("of.hard_sigmoid", x, alpha=1 / 6, beta=0.5), g, x)[0]


@aten("mish_backward.default")
def mish_backward(b: Any, g: Any, x: Any) -> Any:
    return b.vjp(lambda x: b.op("of.mish", x), g, x)[0]


@aten("_softmax_backward_data.default")
def softmax_backward(b: Any, g: Any, y: Any, dim: int, dtype: Any) -> Any:
    product = b.op("of.mul", g, y)
    total = reduce(b, "sum", product, y.rank, dim, True)
    return b.cast(b.op("of.sub", product, b.op("of.mul", y, total)), b.result.dtype)


@aten("_log_softmax_backward_data.default")
def log_softmax_backward(b: Any, g: Any, y: Any, dim: int, dtype: Any) -> Any:
    total = reduce(b, "sum", g, y.rank, dim, True)
    return b.cast(b.op("of.sub", g, b.op("of.mul", b.op("of.exp", y), total)), b.result.dtype)


@aten("native_layer_norm_backward.default")
def layer_norm_backward(
    b: Any, g: Any, x: Any, shape: Sequence[int], mean: Any, rstd: Any, weight: Any, bias: Any, mask: Sequence[bool]
) -> Any:
    lead, axes = list(range(x.rank - len(shape))), list(range(x.rank - len(shape), x.rank))
    normed = b.op("of.mul", b.op("of.sub", x, mean), rstd)
    scaled = g if weight is None else b.op("of.mul", g, weight)
    mean_of = lambda value: reduce(b, "mean", value, x.rank, axes, True)
    inner = b.op("of.sub", scaled, mean_of(scaled))
    inner = b.op("of.sub", inner, b.op("of.mul", normed, mean_of(b.op("of.mul", scaled, normed))))
    total = lambda value: reduce(b, "sum", value, x.rank, lead, False) if lead else value
    return [
        b.op("of.mul", inner, rstd) if mask[0] else None,
        total(b.op("of.mul", g, normed)) if mask[1] else None,
        total(b.op("of.mul", g, b.scalar(1, g.dtype))) if mask[2] else None,
    ]


@aten("native_batch_norm_backward.default")
def batch_norm_backward(
    b: Any,
    g: Any,
    x: Any,
    weight: Any,
    running_mean: Any,
    running_variance: Any,
    saved_mean: Any,
    saved_rstd: Any,
    train: bool,
    epsilon: float,
    mask: Sequence[bool],
) -> Any:
    axes = [axis for axis in range(x.rank) if axis != 1]
    wide = [1, x.shape[1], *[1] * (x.rank - 2)]
    if train:
        mean, rstd = b.reshape(saved_mean, wide), b.reshape(saved_rstd, wide)
    else:
        shifted = b.op("of.add", running_variance, b.scalar(epsilon, x.dtype))
        mean, rstd = b.reshape(running_mean, wide), b.reshape(b.op("of.rsqrt", shifted), wide)
    normed = b.op("of.mul", b.op("of.sub", x, mean), rstd)
    scaled = g if weight is None else b.op("of.mul", g, b.reshape(weight, wide))
    if train:
        mean_of = lambda value: reduce(b, "mean", value, x.rank, axes, True)
        inner = b.op("of.sub", scaled, mean_of(scaled))
        scaled = b.op("of.sub", inner, b.op("of.mul", normed, mean_of(b.op("of.mul", scaled, normed))))
    total = lambda value: reduce(b, "sum", value, x.rank, axes, False)
    return [
        b.op("of.mul", scaled, rstd) if mask[0] else None,
        total(b.op("of.mul", g, normed)) if mask[1] else None,
        total(g) if mask[2] else None,
    ]


@aten("convolution_backward.default")
def convolution_backward(
    b: Any,
    g: Any,
    x: Any,
    weight: Any,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    extra: Any,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    if x.rank != weight.rank:
        raise Unsupported("the gradient of a convolution without a batch")
    axes = weight.rank - 2
    common = {
        "strides": _layers.spread(stride, axes),
        "pads": _layers.spread(padding, axes) * 2,
        "dilations": _layers.spread(dilation, axes),
        "group": groups,
        "auto_pad": "NOTSET",
        "channels_last": False,
    }
    if transposed:
        common.update(output_padding=_layers.spread(extra, axes), output_shape=[])
    op = "of.conv_transpose" if transposed else "of.conv"
    dx, dw = (
        b.vjp(lambda x, w: b.op(op, x, w, None, **common), g, x, weight) if mask[0] or mask[1] else (None, None)
    )
    rest = [axis for axis in range(g.rank) if axis != 1]
    return [dx if mask[0] else None, dw if mask[1] else None, reduce(b, "sum", g, g.rank, rest, False) if mask[2] else None]


@aten("max_pool2d_with_indices_backward.default")
def max_pool_backward(
    b: Any, g: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: Any
) -> Any:
    if not all(isinstance(extent, int) for extent in [*x.shape, *g.shape]):
        raise Unsupported("the gradient of a pool of open extents")
    planes, inner, outer = math.prod(x.shape[:-2]), math.prod(x.shape[-2:]), math.prod(g.shape[-2:])
    zeros = b.op("of.expand", b.scalar(0, g.dtype), b.shape([planes, inner]))
    at, values = b.reshape(indices, [planes, outer]), b.reshape(g, [planes, outer])
    return b.reshaped_as_result(b.op("of.scatter_elements", zeros, at, values, axis=1, reduction="add"))


@aten("avg_pool2d_backward.default")
def avg_pool_backward(
    b: Any, g: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, count_include_pad: bool, divisor: Any
) -> Any:
    if divisor is not None or x.rank != 4:
        raise Unsupported("the gradient of a pool with a divisor, or without a batch")
    window = _layers._window(kernel, stride, padding, (1,), 2, ceil_mode)
    return b.vjp(lambda x: b.op("of.avg_pool", x, **window, count_include_pad=bool(count_include_pad)), g, x)[0]


@aten("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool_backward(b: Any, g: Any, x: Any) -> Any:
    if not all(isinstance(n, int) and n == 1 for n in g.shape[-2:]):
        raise Unsupported("the gradient of an adaptive pool to more than one element")
    count = x.shape[-1] * x.shape[-2]
    return b.op("of.expand", b.op("of.div", g, b.scalar(count, g.dtype)), b.shape(x.shape))


@aten("embedding_dense_backward.default")
def embedding_backward(b: Any, g: Any, indices: Any, count: int, padding: int, by_frequency: bool) -> Any:
    if by_frequency:
        raise Unsupported("the gradient of an embedding scaled by frequency")
    width = g.shape[-1]
    rows = b.reshape(g, [-1, width])
    at = b.reshape(b.cast(indices, torch.int64), [-1, 1])
    if padding >= 0:
        kept = b.op("of.ne", at, b.scalar(padding, torch.int64))
        rows = b.op("of.select", kept, rows, b.scalar(0, g.dtype))
    zeros = b.op("of.expand", b.scalar(0, g.dtype), b.shape([count, width]))
    return b.op("of.scatter_nd", zeros, at, rows, reduction="add")


@aten("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def flash_attention_backward(
    b: Any,
    g: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    logsumexp: Any,
    dropout: float,
    is_causal: bool,
    *,
    attn_mask: Any = None,
    scale: Any = None,
) -> Any:
    if dropout:
        raise Unsupported("attention with dropout")
    fakes = {"q": q, "k": k, "v": v}

    def forward(q: Any, k: Any, v: Any) -> Any:
        wrapped = [_with(fakes[name], value) for name, value in (("q", q), ("k", k), ("v", v))]
        return _layers.attention(b, *wrapped, attn_mask, is_causal, scale)[0]

    return b.vjp(forward, g, q, k, v)


def _with(tensor: Any, value: Any) -> Any:
    """A tensor's type with another value."""
    return type(tensor)(value, tensor)


@aten("native_group_norm_backward.default")
def group_norm_backward(
    b: Any,
    g: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    weight: Any,
    n: Any,
    c: int,
    inner: Any,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    grouped, flat = [x.shape[0], groups, -1], [1, c, 1]
    by_group = lambda value: b.reshape(value, grouped)
    spread = lambda value: b.reshape(value, [x.shape[0], groups, 1])
    normed = b.op("of.mul", b.op("of.sub", by_group(x), spread(mean)), spread(rstd))
    g3 = b.reshape(g, [x.shape[0], c, -1])
    scaled = by_group(g3 if weight is None else b.op("of.mul", g3, b.reshape(weight, flat)))
    mean_of = lambda value: reduce(b, "mean", value, 3, [2], True)
    part = b.op("of.sub", scaled, mean_of(scaled))
    part = b.op("of.sub", part, b.op("of.mul", normed, mean_of(b.op("of.mul", scaled, normed))))
    product = b.op("of.mul", g3, b.reshape(normed, [x.shape[0], c, -1]))
    return [
        b.reshape(b.op("of.mul", part, spread(rstd)), x.shape) if mask[0] else None,
        reduce(b, "sum", product, 3, [0, 2], False) if mask[1] else None,
        reduce(b, "sum", g3, 3, [0, 2], False) if mask[2] else None,
    ]
