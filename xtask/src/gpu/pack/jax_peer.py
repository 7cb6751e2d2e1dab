"""Runs a torch module with JAX: the ops of its exported graph, one by one, by functions of jax.numpy; XLA compiles them together."""

import time

import jax
import jax.numpy as jnp
import numpy
import torch
from jax import lax

DTYPES = {torch.float32: jnp.float32, torch.float16: jnp.float16, torch.bfloat16: jnp.bfloat16, torch.int64: jnp.int32, torch.bool: jnp.bool_}


def convolution(x, w, b, stride, padding, dilation, transposed, _output_padding, groups):
    if transposed:
        raise NotImplementedError("transposed convolutions")
    y = lax.conv_general_dilated(x, w, stride, [(p, p) for p in padding], rhs_dilation=dilation, feature_group_count=groups)
    return y if b is None else y + b.reshape(1, -1, *[1] * (x.ndim - 2))


def batch_norm(x, weight, bias, mean, variance, _momentum, eps):
    shape = (1, -1, *[1] * (x.ndim - 2))
    scale = weight * lax.rsqrt(variance + eps)
    return (x * scale.reshape(shape) + (bias - mean * scale).reshape(shape),)


def layer_norm(x, shape, weight, bias, eps):
    axes, wide = tuple(range(x.ndim - len(shape), x.ndim)), x.astype(jnp.float32)
    mean, variance = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    return (((wide - mean) * lax.rsqrt(variance + eps)).astype(x.dtype) * weight + bias,)


def max_pool(x, kernel, stride=None, padding=(0, 0)):
    window, steps = (1, 1, *kernel), (1, 1, *(stride or kernel))
    return (lax.reduce_window(x, -jnp.inf, lax.max, window, steps, [(0, 0), (0, 0), *((p, p) for p in padding)]),)


def arange(start, end, step=1, dtype=None, **_):
    return jnp.arange(start, end, step, dtype=DTYPES.get(dtype))


def split(x, sizes, axis=0):
    return jnp.split(x, numpy.cumsum(sizes)[:-1].tolist(), axis)


def cut(x, axis=0, start=0, end=None, step=1):
    return lax.slice_in_dim(x, start or 0, min(end if end is not None else x.shape[axis], x.shape[axis]), step, axis)


OPS = {
    "aten.add.Tensor": lambda a, b: a + b,
    "aten.sub.Tensor": lambda a, b: a - b,
    "aten.mul.Tensor": lambda a, b: a * b,
    "aten.mul.Scalar": lambda a, b: a * jnp.asarray(b, a.dtype),
    "aten.mm.default": lambda a, b: a @ b,
    "aten.bmm.default": lambda a, b: a @ b,
    "aten.addmm.default": lambda c, a, b: c + a @ b,
    "aten.view.default": lambda x, shape: x.reshape(shape),
    "aten.permute.default": lambda x, axes: x.transpose(axes),
    "aten.expand.default": lambda x, shape: jnp.broadcast_to(x, [x.shape[i - len(shape) + x.ndim] if n == -1 else n for i, n in enumerate(shape)]),
    "aten.unsqueeze.default": lambda x, axis: jnp.expand_dims(x, axis),
    "aten.clone.default": lambda x, **_: x,
    "aten._to_copy.default": lambda x, dtype=None, **_: x.astype(DTYPES.get(dtype, x.dtype)),
    "aten.convolution.default": convolution,
    "aten._native_batch_norm_legit_no_training.default": batch_norm,
    "aten.native_layer_norm.default": layer_norm,
    "aten.relu.default": jax.nn.relu,
    "aten.hardtanh.default": lambda x, low=-1.0, high=1.0: jnp.clip(x, low, high),
    "aten.gelu.default": lambda x, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    "aten._softmax.default": lambda x, axis, _half: jax.nn.softmax(x, axis),
    "aten.embedding.default": lambda w, ids, *_: w[ids],
    "aten.mean.dim": lambda x, axes, keep=False: x.mean(tuple(axes), keepdims=keep),
    "aten.max_pool2d_with_indices.default": max_pool,
    "aten.split_with_sizes.default": split,
    "aten.slice.Tensor": cut,
    "aten.full.default": lambda shape, value, dtype=None, **_: jnp.full(shape, value, DTYPES.get(dtype)),
    "aten.full_like.default": lambda x, value, **_: jnp.full_like(x, value),
    "aten.scalar_tensor.default": lambda value, dtype=None, **_: jnp.asarray(value, DTYPES.get(dtype)),
    "aten.arange.start_step": arange,
    "aten.where.self": jnp.where,
    "aten.le.Scalar": lambda a, b: a <= b,
    "aten.eq.Scalar": lambda a, b: a == b,
    "aten.any.dim": lambda x, axis, keep=False: x.any(axis, keepdims=keep),
    "aten.logical_not.default": jnp.logical_not,
    "aten.logical_and.default": jnp.logical_and,
}


def converted(model, inputs):
    """A function of inputs and weights, and the weights."""
    with torch.inference_mode():
        exported = torch.export.export(model, tuple(inputs)).run_decompositions()
    signature, state = exported.graph_signature, {**exported.state_dict, **exported.constants}
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
    weights = {name: array(state[target]) for name, target in named.items()}
    missing = {str(n.target) for n in exported.graph.nodes if n.op == "call_function" and "getitem" not in str(n.target)} - set(OPS)
    if missing:
        raise NotImplementedError(f"JAX has no function for {', '.join(sorted(missing))}")

    def function(weights, *inputs):
        values, given = {}, iter(inputs)
        for node in exported.graph.nodes:
            if node.op == "placeholder":
                values[node] = weights[node.name] if node.name in weights else next(given)
            elif node.op == "call_function":
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
                name = str(node.target)
                values[node] = args[0][args[1]] if "getitem" in name else OPS[name](*args, **kwargs)
            elif node.op == "output":
                return [values[n] for n in node.args[0]]

    return function, weights


def array(x):
    """A tensor of torch in JAX; integers are of 32 bits there."""
    x = x.detach().cpu()
    return jnp.asarray(x.float().numpy(), DTYPES[x.dtype]) if x.is_floating_point() else jnp.asarray(x.numpy().astype(numpy.int32))


def measure(model, inputs, seconds, tf32):
    """The times of JAX, and its outputs. It has no events: the time of the computation is that of a run among many in a row."""
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if tf32 else "highest")
    function, weights = converted(model, inputs)
    run, fixed = jax.jit(function), [array(x) for x in inputs]
    outputs = jax.block_until_ready(run(weights, *fixed))
    for _ in range(3):
        jax.block_until_ready(run(weights, *fixed))
    walls, times, end = [], [], time.perf_counter() + seconds
    while len(walls) < 5 or time.perf_counter() < end:
        begun = time.perf_counter()
        jax.block_until_ready(run(weights, *fixed))
        walls.append(1e3 * (time.perf_counter() - begun))
        begun = time.perf_counter()
        jax.block_until_ready([run(weights, *fixed) for _ in range(8)])
        times.append(1e3 * (time.perf_counter() - begun) / 8)
    walls, times = sorted(walls), sorted(times)
    numbers = {"device_ms": times[len(times) // 2], "device_min_ms": times[0], "median_ms": walls[len(walls) // 2], "min_ms": walls[0], "runs": 9 * len(walls)}
    where = jax.devices()[0].platform
    return {**numbers, "how": f"in a row on {where}"}, [numpy.asarray(y.astype(jnp.float32), numpy.float64) for y in outputs]
