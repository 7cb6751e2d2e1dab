"""Products, convolutions, pools, normalizations, attention and resizing."""

from __future__ import annotations

import math
from typing import Any, List, Optional, Sequence

import torch

from ._reductions import moments, reduce
from ._table import aten
from ._unsupported import Unsupported

# ---- products ----


@aten("mm.default", "bmm.default", "mv.default", "dot.default", "matmul.default")
def matmul(b: Any, x: Any, y: Any) -> Any:
    return b.op("of.matmul", x, y)


def _scaled(b: Any, value: Any, factor: Any, dtype: Any) -> Any:
    return value if factor == 1 else b.op("of.mul", value, b.scalar(factor, dtype))


@aten("addmm.default", "baddbmm.default", "addmv.default")
def addmm(b: Any, bias: Any, x: Any, y: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _scaled(b, b.op("of.matmul", x, y), alpha, b.result.dtype)
    if beta == 0:
        return product
    return b.op("of.add", product, _scaled(b, b.cast(bias, b.result.dtype), beta, b.result.dtype))


@aten("linear.default")
def linear(b: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    product = b.op("of.matmul", x, b.op("of.transpose", weight, perm=[1, 0]))
    return product if bias is None else b.op("of.add", product, bias)


# ---- convolutions ----


def spread(values: Sequence[int], count: int) -> List[int]:
    """One number an axis."""
    return list(values) * count if len(values) == 1 else list(values)


@aten("convolution.default")
def convolution(
    b: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> Any:
    axes = weight.rank - 2
    common = {
        "strides": spread(stride, axes),
        "pads": spread(padding, axes) * 2,
        "dilations": spread(dilation, axes),
        "group": groups,
        "auto_pad": "NOTSET",
        "channels_last": False,
    }
    batched = x if x.rank == weight.rank else b.reshape(x, [1, *x.shape])
    if transposed:
        room = spread(extra, axes)
        y = b.op("of.conv_transpose", batched, weight, bias, **common, output_padding=room, output_shape=[])
    else:
        y = b.op("of.conv", batched, weight, bias, **common)
    return y if x.rank == weight.rank else b.reshaped_as_result(y)


# ---- pools ----


def _window(kernel: Any, stride: Any, padding: Any, dilation: Any, axes: int, ceil_mode: bool) -> dict:
    kernel = spread(kernel, axes)
    return {
        "kernel": kernel,
        "strides": spread(stride, axes) if stride else kernel,
        "pads": spread(padding, axes) * 2,
        "dilations": spread(dilation, axes),
        "ceil_mode": bool(ceil_mode),
        "auto_pad": "NOTSET",
        "channels_last": False,
    }


def _batched(b: Any, x: Any, axes: int) -> Any:
    return x if x.rank == axes + 2 else b.reshape(x, [1, *x.shape])


@aten("max_pool2d_with_indices.default", "max_pool3d_with_indices.default")
def max_pool(
    b: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
) -> Any:
    axes = 3 if "3d" in str(b.node.target) else 2
    window = _window(kernel, stride, padding, dilation, axes, ceil_mode)
    wanted = any(user.args[1] == 1 for user in b.node.users if getattr(user.target, "__name__", "") == "getitem")
    wanted = wanted or any(getattr(user.target, "__name__", "") != "getitem" for user in b.node.users)
    if not wanted:
        y = b.op("of.max_pool", _batched(b, x, axes), **window, storage_order=0, return_indices=False)
        return [b.reshape(y, b.result[0].shape), None]
    y, indices = b.ops("of.max_pool", _batched(b, x, axes), **window, storage_order=0, return_indices=True)
    # torch counts within a channel, the op within the tensor.
    if not all(isinstance(extent, int) for extent in x.shape):
        raise Unsupported("the indices of a pool of open extents")
    inner = math.prod(x.shape[-axes:])
    planes = math.prod(x.shape[:-axes])
    base = torch.arange(planes).reshape(*x.shape[:-axes], *[1] * axes) * inner
    indices = b.op("of.sub", b.reshape(indices, b.result[1].shape), b.constant(base))
    return [b.reshape(y, b.result[0].shape), indices]


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default")
def avg_pool(
    b: Any,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: Optional[int] = None,
) -> Any:
    axes = int(str(b.node.target)[len("aten.avg_pool")])
    window = _window(kernel, stride, padding, (1,), axes, ceil_mode)
    y = b.op("of.avg_pool", _batched(b, x, axes), **window, count_include_pad=bool(count_include_pad))
    if divisor is not None:
        if not count_include_pad and any(padding):
            raise Unsupported("a pool with a divisor that leaves out its padding")
        y = b.op("of.mul", y, b.scalar(math.prod(window["kernel"]) / divisor, x.dtype))
    return b.reshaped_as_result(y)


@aten("_adaptive_avg_pool2d.default", "adaptive_avg_pool1d.default", "_adaptive_avg_pool3d.default")
def adaptive_avg_pool(b: Any, x: Any, size: Sequence[Any]) -> Any:
    axes = len(size)
    extents = x.shape[-axes:]
    if all(isinstance(n, int) and n == 1 for n in size):
        return reduce(b, "mean", x, x.rank, list(range(x.rank - axes, x.rank)), True)
    if not all(isinstance(n, int) for n in [*extents, *size]):
        raise Unsupported("an adaptive pool of open extents")
    if all(extent % n == 0 for extent, n in zip(extents, size)):
        kernel = [extent // n for extent, n in zip(extents, size)]
        window = _window(kernel, kernel, (0,), (1,), axes, False)
        return b.reshaped_as_result(b.op("of.avg_pool", _batched(b, x, axes), **window, count_include_pad=True))
    # The mean over uneven windows is a product with a matrix for each axis.
    y = x
    for at, (extent, n) in enumerate(zip(extents, size)):
        matrix = torch.zeros(extent, n, dtype=x.dtype)
        for i in range(n):
            begin, end = i * extent // n, -(-(i + 1) * extent // n)
            matrix[begin:end, i] = 1 / (end - begin)
        perm = list(range(x.rank))
        axis = x.rank - axes + at
        perm[axis], perm[-1] = perm[-1], perm[axis]
        y = b.op("of.transpose", b.op("of.matmul", b.op("of.transpose", y, perm=perm), b.constant(matrix)), perm=perm)
    return y


# ---- normalizations ----


def _per_channel(b: Any, value: Any, number: float, channels: int, dtype: torch.dtype) -> Any:
    return b.constant(torch.full((channels,), number, dtype=dtype)) if value is None else b.cast(value, dtype)


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_inference(
    b: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, epsilon: float
) -> Any:
    channels = x.shape[1]
    scale = _per_channel(b, weight, 1, channels, x.dtype)
    shift = _per_channel(b, bias, 0, channels, x.dtype)
    mean, variance = b.cast(mean, x.dtype), b.cast(variance, x.dtype)
    y = b.op("of.batch_norm", x, scale, shift, mean, variance, epsilon=epsilon, channels_last=False)
    empty = b.constant(torch.zeros(0, dtype=b.result[1].dtype))
    used = {user.args[1] for user in b.node.users if getattr(user.target, "__name__", "") == "getitem"}
    return [y] if used <= {0} else [y, empty, empty]


def _batch_norm_training(b: Any, x: Any, weight: Any, bias: Any, epsilon: float) -> tuple:
    axes = [axis for axis in range(x.rank) if axis != 1]
    variance, mean = moments(b, x, x.rank, x.shape, x.dtype, axes, 0, True)
    inverse = b.op("of.rsqrt", b.op("of.add", variance, b.scalar(epsilon, x.dtype)))
    y = b.op("of.mul", b.op("of.sub", x, mean), inverse)
    wide = [1, x.shape[1], *[1] * (x.rank - 2)]
    y = y if weight is None else b.op("of.mul", y, b.reshape(weight, wide))
    y = y if bias is None else b.op("of.add", y, b.reshape(bias, wide))
    flat = lambda value: b.reshape(value, [x.shape[1]])
    return y, flat(mean), flat(inverse), flat(variance)


@aten("_native_batch_norm_legit_functional.default")
def batch_norm_training(
    b: Any, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, momentum: float, epsilon: float
) -> Any:
    if not training:
        raise Unsupported("a batch norm whose statistics are not those of the batch, in training")
    y, batch_mean, inverse, batch_variance = _batch_norm_training(b, x, weight, bias, epsilon)
    count = math.prod(x.shape) // x.shape[1] if all(isinstance(n, int) for n in x.shape) else None
    if count is None:
        raise Unsupported("running statistics of an open number of elements")
    dtype = x.dtype
    unbiased = b.op("of.mul", batch_variance, b.scalar(count / max(count - 1, 1), dtype))
    mix = lambda old, new: b.op(
        "of.add", b.op("of.mul", old, b.scalar(1 - momentum, dtype)), b.op("of.mul", new, b.scalar(momentum, dtype))
    )
    return [y, batch_mean, inverse, mix(mean, batch_mean), mix(variance, unbiased)]


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(b: Any, x: Any, weight: Any, bias: Any, training: bool, momentum: float, epsilon: float) -> Any:
    return list(_batch_norm_training(b, x, weight, bias, epsilon)[:3])


@aten("native_layer_norm.default")
def layer_norm(b: Any, x: Any, shape: Sequence[Any], weight: Any, bias: Any, epsilon: float) -> Any:
    axis = x.rank - len(shape)
    if not all(isinstance(extent, int) for extent in shape):
        raise Unsupported("a layer norm over open extents")
    scale = b.constant(torch.ones(list(shape), dtype=x.dtype)) if weight is None else weight
    used = {user.args[1] for user in b.node.users if getattr(user.target, "__name__", "") == "getitem"}
    stats = not used <= {0}
    made = b.ops("of.layer_norm", x, scale, bias, axis=axis, epsilon=epsilon, return_stats=stats)
    return [made[0], b.reshape(made[1], b.result[1].shape), b.reshape(made[2], b.result[2].shape)] if stats else made[:1]


@aten("native_group_norm.default")
def group_norm(b: Any, x: Any, weight: Any, bias: Any, n: Any, c: int, inner: Any, groups: int, epsilon: float) -> Any:
    scale = _per_channel(b, weight, 1, c, x.dtype)
    shift = _per_channel(b, bias, 0, c, x.dtype)
    y = b.op("of.group_norm", x, scale, shift, num_groups=groups, epsilon=epsilon, channels_last=False)
    used = {user.args[1] for user in b.node.users if getattr(user.target, "__name__", "") == "getitem"}
    if used <= {0}:
        return [y]
    grouped = [x.shape[0], groups, -1]
    variance, mean = moments(b, b.reshape(x, grouped), 3, grouped, x.dtype, [2], 0, False)
    return [y, mean, b.op("of.rsqrt", b.op("of.add", variance, b.scalar(epsilon, x.dtype)))]


@aten("_fused_rms_norm.default", "rms_norm.default")
def rms_norm(b: Any, x: Any, shape: Sequence[Any], weight: Any = None, epsilon: Optional[float] = None) -> Any:
    epsilon = torch.finfo(x.dtype).eps if epsilon is None else epsilon
    scale = b.constant(torch.ones(list(shape), dtype=x.dtype)) if weight is None else weight
    y = b.op("of.rms_norm", x, scale, axis=x.rank - len(shape), epsilon=epsilon)
    if isinstance(b.result, torch.Tensor):
        return y
    axes = list(range(x.rank - len(shape), x.rank))
    square = reduce(b, "mean", b.op("of.mul", x, x), x.rank, axes, True)
    return [y, b.op("of.rsqrt", b.op("of.add", square, b.scalar(epsilon, x.dtype)))]


# ---- attention ----


def attention(b: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: Optional[float]) -> tuple:
    """Scaled dot-product attention; the result and the scores."""
    dtype, rank = q.dtype, q.rank
    factor = scale if scale is not None else 1 / math.sqrt(q.shape[-1])
    perm = [*range(rank - 2), rank - 1, rank - 2]
    scores = b.op("of.matmul", b.op("of.mul", q, b.scalar(factor, dtype)), b.op("of.transpose", k, perm=perm))
    if causal:
        rows, columns = q.shape[-2], k.shape[-2]
        if not (isinstance(rows, int) and isinstance(columns, int)):
            raise Unsupported("a causal attention over open extents")
        past = torch.zeros(rows, columns, dtype=dtype)
        past.masked_fill_(~torch.ones(rows, columns, dtype=torch.bool).tril(), float("-inf"))
        scores = b.op("of.add", scores, b.constant(past))
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = b.op("of.select", mask, b.scalar(0, dtype), b.scalar(float("-inf"), dtype))
        scores = b.op("of.add", scores, b.cast(mask, dtype))
    weights = b.op("of.softmax", scores, axis=rank - 1)
    return b.op("of.matmul", weights, v), scores


@aten("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(
    b: Any, q: Any, k: Any, v: Any, dropout: float = 0.0, is_causal: bool = False, *, attn_mask: Any = None, scale: Any = None
) -> Any:
    if dropout:
        raise Unsupported("attention with dropout")
    y, scores = attention(b, q, k, v, attn_mask, is_causal, scale)
    used = {user.args[1] for user in b.node.users if getattr(user.target, "__name__", "") == "getitem"}
    if used <= {0}:
        return [y]
    logsumexp = reduce(b, "log_sum_exp", scores, 4, [3], False)
    return [y, b.cast(logsumexp, b.result[1].dtype)]


# ---- resizing ----


def _resize(b: Any, x: Any, mode: str, align: bool, size: Any, scales: Any, nearest: str = "floor") -> Any:
    axes = list(range(2, x.rank))
    extents = b.result.shape[2:]
    coordinates = "align_corners" if align else "asymmetric" if mode == "nearest" else "pytorch_half_pixel"
    common = {
        "mode": mode,
        "coordinate_transformation_mode": coordinates,
        "nearest_mode": nearest,
        "cubic_coeff_a": -0.75,
        "antialias": False,
        "exclude_outside": False,
        "extrapolation_value": 0.0,
        "keep_aspect_ratio_policy": "stretch",
        "axes": axes,
    }
    if scales and all(s is not None for s in scales) and _matter(x.shape[2:], extents, scales):
        factors = b.constant(torch.tensor([float(s) for s in scales], dtype=torch.float32))
        return b.op("of.resize", x, None, factors, None, **common)
    return b.op("of.resize", x, None, None, b.shape(extents), **common)


def _matter(before: Any, after: Any, scales: Any) -> bool:
    """Whether the factors differ from the ratios of the extents."""
    pairs = [(o, n, s) for o, n, s in zip(before, after, scales)]
    return all(isinstance(o, int) and isinstance(n, int) for o, n, _ in pairs) and any(o * s != n for o, n, s in pairs)


@aten("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def upsample_nearest_vec(b: Any, x: Any, size: Any, scales: Any) -> Any:
    return _resize(b, x, "nearest", False, size, scales)


@aten("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def upsample_nearest(b: Any, x: Any, size: Any, *scales: Any) -> Any:
    return _resize(b, x, "nearest", False, size, scales)


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def upsample_linear_vec(b: Any, x: Any, size: Any, align: bool, scales: Any) -> Any:
    return _resize(b, x, "linear", align, size, scales)


@aten("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
def upsample_linear(b: Any, x: Any, size: Any, align: bool, *scales: Any) -> Any:
    return _resize(b, x, "linear", align, size, scales)


@aten("upsample_bicubic2d.vec")
def upsample_cubic_vec(b: Any, x: Any, size: Any, align: bool, scales: Any) -> Any:
    return _resize(b, x, "cubic", align, size, scales)


@aten("upsample_bicubic2d.default")
def upsample_cubic(b: Any, x: Any, size: Any, align: bool, *scales: Any) -> Any:
    return _resize(b, x, "cubic", align, size, scales)


@aten("grid_sampler_2d.default")
def grid_sampler(b: Any, x: Any, grid: Any, mode: int, padding: int, align: bool) -> Any:
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return b.op("of.grid_sample", x, grid, mode=modes[mode], padding_mode=paddings[padding], align_corners=bool(align))
