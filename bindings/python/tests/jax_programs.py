"""Functions of JAX and flax that tests compare: by name, the function and its arguments."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

random = np.random.default_rng(0)


def floats(*shape, scale=1.0):
    return (random.standard_normal(shape) * scale).astype(np.float32)


X, Y, ROW = floats(4, 6), floats(4, 6), floats(6)
IMAGE, KERNEL = floats(2, 8, 8, 3), floats(3, 3, 3, 4, scale=0.3)
INDEX = np.int32(2)
INTS = random.integers(-50, 50, (4, 6)).astype(np.int32)
DIVISORS = np.where(INTS == 0, 3, INTS)[::-1].copy()
BITS = random.integers(0, 2**32, (4, 6), dtype=np.uint32)
NEAR_ZERO = np.array([1e-7, -1e-5, 1e-3, 0.1, -0.3, 0.49, 0.6, -0.9, 0.99], np.float32)
CORNERS_Y = np.array([0.0, -0.0, 0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan], np.float32)
CORNERS_X = np.array([1, 1, -1, -1, 0, 0, np.inf, -np.inf, 1], np.float32)
NHWC = ("NHWC", "HWIO", "NHWC")


def each(*functions):
    return lambda x: [f(x) for f in functions]


def convolve(x, w, strides=(1, 1), padding="SAME", **rest):
    return lax.conv_general_dilated(x, w, strides, padding, dimension_numbers=NHWC, **rest)


def gradients(loss, arguments):
    return jax.grad(lambda *a: (loss(*a) ** 2).sum(), arguments)


def mlp_loss(p, x):
    return ((jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"]) ** 2).mean()


PROGRAMS = {
    "binary": (
        lambda a, b: (
            a + b, a - b, a * b, a / b, jnp.maximum(a, b), jnp.minimum(a, b), lax.rem(a, b), jnp.arctan2(a, b),
            jnp.abs(a) ** b,
        ),
        (X, Y),
    ),
    "unary": (
        each(
            jnp.abs, jnp.exp, jnp.expm1, jnp.sin, jnp.cos, jnp.tan, jnp.tanh, jnp.sinh, jnp.cosh, jnp.floor, jnp.ceil,
            jnp.round, jnp.sign, jnp.negative, jax.nn.sigmoid, jnp.cbrt, lax.round, jnp.isfinite, jnp.isinf, jnp.isnan,
            lax.erf, lax.erfc, jnp.arcsinh, jnp.arctan, jnp.square,
        ),
        (X * 2,),
    ),
    "positive": (
        each(jnp.log, jnp.log1p, jnp.sqrt, lax.rsqrt, lax.lgamma, lax.digamma, jnp.arccosh),
        (np.abs(X) + np.float32(1.01),),
    ),
    "gamma_negative": (
        each(lax.lgamma, lax.digamma),
        (np.array([-0.3, -1.7, -2.2, 0.2, 0.7, 5.0, 30.0, -10.4], np.float32),),
    ),
    "near_zero": (each(jnp.log1p, jnp.expm1, lax.erf_inv, jnp.arcsin, jnp.arccos, jnp.arctanh), (NEAR_ZERO,)),
    "atan2_corners": (jnp.arctan2, (CORNERS_Y, CORNERS_X)),
    "integers": (
        lambda a, b: (
            a + b, a * b, a // 7, a % 7, lax.div(a, b), lax.rem(a, b), a & b, a | b, a ^ b, ~a, a << 2, a >> 1,
            lax.shift_right_logical(a, jnp.int32(3)), jnp.abs(a), jnp.sign(a), a**2, lax.population_count(a), lax.clz(a),
        ),
        (INTS, DIVISORS),
    ),
    "unsigned": (
        lambda a: (
            a * a, a >> 5, a << 7, a ^ (a >> 3), a.astype(jnp.float32), lax.bitcast_convert_type(a, jnp.int32),
            lax.bitcast_convert_type(a >> 9 | jnp.uint32(0x3F800000), jnp.float32),
        ),
        (BITS,),
    ),
    "narrow_integers": (
        lambda a: (a.astype(jnp.uint8) + jnp.uint8(200), a.astype(jnp.int8) * jnp.int8(3), a.astype(jnp.int16)),
        (INTS,),
    ),
    "truth_values": (
        lambda a: (
            (a > 0) & (a < 1), (a > 0) | (a < -1), ~(a > 0), jnp.any(a > 1, 1), jnp.all(a < 2, 0), (a > 0) ^ (a < 1),
            jnp.where(a > 0, a, 0), (a > 0).astype(jnp.int32), (a > 0).sum(),
        ),
        (X,),
    ),
    "conversions": (
        lambda a: (
            a.astype(jnp.int32), a.astype(jnp.bfloat16).astype(jnp.float32), a.astype(jnp.float16), a.astype(bool),
            lax.reduce_precision(a, 5, 10),
        ),
        (X * 3,),
    ),
    "bfloat16": (
        lambda a: (a @ a.T, jax.nn.softmax(a.astype(jnp.float32)).astype(jnp.bfloat16), a.sum()),
        (X.astype(jnp.bfloat16),),
    ),
    "reductions": (
        lambda a: (
            a.sum(), a.sum(0), a.max(1), a.min(1), a.prod(0), a.mean(), a.var(1), a.std(), jax.nn.logsumexp(a, 1),
            jnp.argmax(a, 1), jnp.argmin(a, 0), jnp.argmax(a), jax.nn.softmax(a), jax.nn.log_softmax(a),
        ),
        (X,),
    ),
    "integer_reductions": (lambda a: (a.sum(), a.max(1), a.min(1), a.prod(0), jnp.argmax(a, 1)), (INTS,)),
    "products": (
        lambda a, b, c, v: (
            a @ b, jnp.einsum("bqhd,bkhd->bhqk", c, c), jnp.dot(v, v), a[0] @ b, jnp.outer(v, v),
            jnp.einsum("ij,kj->ik", a, a), jnp.tensordot(c, c, ((1, 3), (1, 3))),
        ),
        (X, floats(6, 5), floats(2, 3, 4, 5), ROW),
    ),
    "shapes": (
        lambda a: (
            a.T, a.reshape(3, 8), a[None], jnp.broadcast_to(a, (2, 4, 6)), jnp.concatenate([a, a], 1),
            jnp.stack([a, a], 1), jnp.pad(a, ((1, 2), (0, 1))), a[::-1], a[1:3, ::2], jnp.tile(a, (2, 1)),
            jnp.repeat(a, 2, 0), jnp.roll(a, 1, 0), lax.pad(a, 0.5, ((1, -1, 2), (-2, 0, 0))), jnp.arange(5), jnp.eye(3),
            jnp.tril(a), jnp.split(a, 2, 1),
        ),
        (X,),
    ),
    "indices": (
        lambda a, i: (
            a[i], a[jnp.array([1, 2])], a[:, i], a[jnp.array([0, -1]), jnp.array([2, 3])],
            jnp.take(a, jnp.array([[0, 1], [3, 9]]), axis=0), jnp.take_along_axis(a, jnp.argsort(a, 1), 1),
            a[jnp.array([3, 1]), 1:3], lax.dynamic_slice(a, (i, i + 3), (2, 2)),
            lax.dynamic_slice(a, (jnp.int32(9), i), (3, 1)), a.at[jnp.array([7])].get(mode="fill", fill_value=-1),
        ),
        (X, INDEX),
    ),
    "updates": (
        lambda a, i, v: (
            a.at[i].set(1.0), a.at[i, 1].add(2.0), a.at[jnp.array([0, 0, 3])].add(1.0), a.at[:, i].multiply(3.0),
            a.at[jnp.array([9, 1])].set(5.0), a.at[jnp.array([9, 1])].add(5.0),
            a.at[jnp.array([2]), jnp.array([1])].max(9.0), a.at[1:3].set(0.0),
            lax.dynamic_update_slice(a, jnp.ones((2, 2)), (i, i)), lax.dynamic_update_slice(a, jnp.ones((1, 6)), (i, 0)),
            lax.dynamic_update_slice(a, jnp.ones((4, 1)), (0, i)), a.at[0].set(v),
        ),
        (X, INDEX, ROW),
    ),
    "sort": (
        lambda a: (
            jnp.sort(a), jnp.argsort(a), jnp.sort(a, 0, descending=True), lax.top_k(a, 2), jnp.median(a),
            lax.sort((jnp.round(a), a), num_keys=2)[1], lax.sort((a, a * 2, -a), num_keys=1),
        ),
        (X,),
    ),
    "integer_sort": (
        lambda a: (
            jnp.sort(a), jnp.argsort(a, 0), jnp.lexsort((a[0], a[1] // 20)),
            jnp.searchsorted(jnp.sort(a[0]), jnp.array([0, 5])),
        ),
        (INTS,),
    ),
    "scan": (lambda a: lax.scan(lambda c, b: (c + b, c * b), jnp.zeros(6), a), (X,)),
    "reverse_scan": (lambda a: lax.scan(lambda c, b: (c * 0.5 + b, c * b), jnp.zeros(6), a, reverse=True), (X,)),
    "square_scan": (lambda a: lax.scan(lambda c, b: (c * 0.5 + b[None], (c, b)), jnp.zeros((6, 4)), a.T), (X,)),
    # The stacked value is read, too: each row is the sum of those before it.
    "scan_of_rows": (
        lambda a: lax.fori_loop(0, 4, lambda i, c: c.at[i].set(c.sum(0) + a[i] + c.reshape(-1)[:6]), jnp.zeros((4, 6))),
        (X,),
    ),
    "nested_scan": (
        lambda a: lax.scan(lambda c, b: lax.scan(lambda d, e: (d + e, d * e), c, b), 0.0, a),
        (X,),
    ),
    "counted_loop": (lambda a: lax.fori_loop(1, 5, lambda i, c: c * 0.9 + a[i % 4] * i, a[0]), (X,)),
    "open_loop": (
        lambda a: lax.while_loop(lambda c: c[0].sum() < 100, lambda c: (c[0] * 2, c[1] + 1), (jnp.abs(a), 0)),
        (X,),
    ),
    "branches": (
        lambda a, i: (
            lax.cond(i > 0, lambda a: a + 1, lambda a: a * 2, a),
            lax.switch(i, [lambda a: a + 1, lambda a: a * 2, lambda a: a - 3, lambda a: a], a),
        ),
        (X, INDEX),
    ),
    "convolutions": (
        lambda a, w: (
            convolve(a, w), convolve(a, w, (2, 2), "VALID"), convolve(a, w, (1, 1), ((2, 2), (2, 2)), rhs_dilation=(2, 2)),
            lax.conv_transpose(a, w, (2, 2), "SAME", dimension_numbers=NHWC),
            lax.conv_general_dilated(a.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), (1, 1), "SAME"),
            convolve(a, w[:, :, :1].repeat(3, 3)[..., :6], feature_group_count=3),
        ),
        (IMAGE, KERNEL),
    ),
    "convolution_gradients": (gradients(lambda a, w: convolve(a, w, (2, 2)), (0, 1)), (IMAGE, KERNEL)),
    "group_convolution_gradients": (
        gradients(lambda a, w: convolve(a, w, feature_group_count=3), (0, 1)),
        (IMAGE, floats(3, 3, 1, 6, scale=0.3)),
    ),
    "convolution_1d": (
        lambda a, w: lax.conv_general_dilated(a, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")),
        (floats(2, 9, 3), floats(3, 3, 5)),
    ),
    "pools": (
        lambda a: (
            nn.max_pool(a, (2, 2), (2, 2)), nn.avg_pool(a, (2, 2), (2, 2)), nn.max_pool(a, (3, 3), (2, 2), "SAME"),
            nn.avg_pool(a, (3, 3), (1, 1), "SAME"),
            lax.reduce_window(a, jnp.inf, lax.min, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
            lax.reduce_window(a, 0.0, lax.add, (2, 2, 1, 1), (1, 1, 1, 1), "VALID"),
            lax.reduce_window(a[0, :, 0, 0], 1.0, lax.add, (3,), (2,), "SAME"),
        ),
        (IMAGE,),
    ),
    "pool_gradients": (
        each(
            jax.grad(lambda a: (nn.max_pool(a, (2, 2), (2, 2)) ** 2).sum()),
            jax.grad(lambda a: (nn.max_pool(a, (3, 3), (2, 2), "SAME") ** 2).sum()),
            jax.grad(lambda a: (nn.avg_pool(a, (3, 3), (2, 2), "SAME") ** 2).sum()),
        ),
        (IMAGE,),
    ),
    "cumulative": (
        lambda a: (jnp.cumsum(a, 1), jnp.cumprod(a, 0), lax.cummax(a, axis=1), lax.cumsum(a, axis=1, reverse=True)),
        (X,),
    ),
    "random": (
        lambda seed: (
            jax.random.normal(jax.random.PRNGKey(seed), (3, 4)),
            jax.random.bernoulli(jax.random.PRNGKey(seed), 0.3, (7,)),
            jax.random.randint(jax.random.PRNGKey(seed), (4,), 0, 100),
        ),
        (np.uint32(7),),
    ),
    "activations": (
        each(
            lambda a: jax.nn.one_hot(jnp.argmax(a, 1), 6), lambda a: jnp.clip(a, -1, 1), jax.nn.gelu, jax.nn.silu,
            jax.nn.elu, jax.nn.softplus, jax.nn.leaky_relu, jax.nn.relu6, jnp.linalg.norm, jnp.cov,
        ),
        (X,),
    ),
    "maps": (
        each(lambda a: lax.map(lambda r: r * 2, a), lambda a: jax.vmap(lambda r, s: r @ s)(a, a)),
        (X,),
    ),
    "mlp_gradient": (
        jax.value_and_grad(mlp_loss),
        ({"w1": floats(6, 8), "b1": floats(8), "w2": floats(8, 3)}, X),
    ),
    "constants": (
        lambda a: a + jnp.asarray(Y) + jnp.asarray(np.arange(240, dtype=np.float32).reshape(40, 6))[2:6] + 3 * jnp.ones(6),
        (X,),
    ),
}
