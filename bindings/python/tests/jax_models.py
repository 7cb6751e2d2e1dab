"""Models in the way of flax' examples, small: by name, the function and its arguments, the parameters first."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

random = np.random.default_rng(1)


def floats(*shape):
    return random.standard_normal(shape).astype(np.float32)


class Mlp(nn.Module):
    """examples/mnist, before it had convolutions."""

    @nn.compact
    def __call__(self, x):
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(64)(x))
        return nn.log_softmax(nn.Dense(10)(x))


class Cnn(nn.Module):
    """examples/mnist."""

    @nn.compact
    def __call__(self, x):
        x = nn.avg_pool(nn.relu(nn.Conv(8, (3, 3))(x)), (2, 2), (2, 2))
        x = nn.avg_pool(nn.relu(nn.Conv(16, (3, 3))(x)), (2, 2), (2, 2))
        x = x.reshape((x.shape[0], -1))
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x)))


class ResNetBlock(nn.Module):
    """examples/imagenet: the stem and two bottlenecks, with statistics of the training."""

    @nn.compact
    def __call__(self, x):
        norm = lambda: nn.BatchNorm(use_running_average=True)
        x = nn.relu(norm()(nn.Conv(8, (7, 7), (2, 2), padding=[(3, 3), (3, 3)], use_bias=False)(x)))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for strides in (1, 2):
            y = nn.relu(norm()(nn.Conv(8, (1, 1), use_bias=False)(x)))
            y = nn.relu(norm()(nn.Conv(8, (3, 3), (strides, strides), use_bias=False)(y)))
            y = norm()(nn.Conv(32, (1, 1), use_bias=False)(y))
            x = nn.relu(norm()(nn.Conv(32, (1, 1), (strides, strides), use_bias=False)(x)) + y)
        return nn.Dense(10)(x.mean((1, 2)))


class Seq2Seq(nn.Module):
    """examples/seq2seq: an LSTM reads a sequence, and one that begins with its state writes another."""

    @nn.compact
    def __call__(self, source, target):
        encoder = nn.RNN(nn.OptimizedLSTMCell(16), return_carry=True)
        decoder = nn.RNN(nn.OptimizedLSTMCell(16))
        carry, _ = encoder(source)
        return nn.Dense(target.shape[-1])(decoder(target, initial_carry=carry))


class Gru(nn.Module):
    """A bidirectional GRU, as in examples/sst2 with another cell."""

    @nn.compact
    def __call__(self, x):
        return nn.Bidirectional(nn.RNN(nn.GRUCell(12)), nn.RNN(nn.GRUCell(12)))(x)


class TransformerBlock(nn.Module):
    """examples/lm1b: embedding, causal attention, a feed-forward network."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(50, 32)(tokens)
        x = x + self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], 32))
        mask = nn.make_causal_mask(tokens)
        for _ in range(2):
            x = x + nn.MultiHeadDotProductAttention(4, deterministic=True)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(32)(nn.gelu(nn.Dense(64)(nn.LayerNorm()(x))))
        return nn.Dense(50)(nn.LayerNorm()(x))


class Vae(nn.Module):
    """examples/vae: with the noise as an argument."""

    @nn.compact
    def __call__(self, x, noise):
        h = nn.relu(nn.Dense(64)(x))
        mean, logvar = nn.Dense(8)(h), nn.Dense(8)(h)
        z = mean + noise * jnp.exp(0.5 * logvar)
        return nn.sigmoid(nn.Dense(x.shape[-1])(nn.relu(nn.Dense(64)(z)))), mean, logvar


class GraphNetwork(nn.Module):
    """examples/ogbg_molpcba: messages along edges, summed at nodes."""

    @nn.compact
    def __call__(self, nodes, senders, receivers):
        for _ in range(2):
            messages = nn.Dense(16)(nodes)[senders]
            nodes = nn.relu(jax.ops.segment_sum(messages, receivers, nodes.shape[0]) + nn.Dense(16)(nodes))
        return nn.Dense(2)(nodes.sum(0))


def model(module, *arguments):
    parameters = module.init(jax.random.PRNGKey(0), *arguments)
    # Statistics and biases other than zeros and ones.
    parameters = jax.tree.map(lambda p: np.asarray(p) + np.abs(floats(*p.shape)) * np.float32(0.05), parameters)
    return module.apply, (parameters, *arguments)


def sgd_step(parameters, x, labels):
    """A step of training, as examples/mnist takes it."""

    def loss(p):
        one_hot = jax.nn.one_hot(labels, 10)
        return -(one_hot * nn.log_softmax(Cnn().apply(p, x))).sum(-1).mean()

    value, gradients = jax.value_and_grad(loss)(parameters)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients)


IMAGES = floats(2, 28, 28, 1)
TOKENS = random.integers(0, 50, (2, 7)).astype(np.int32)
SENDERS, RECEIVERS = random.integers(0, 9, (2, 20)).astype(np.int32)

MODELS = {
    "mlp": model(Mlp(), IMAGES),
    "cnn": model(Cnn(), IMAGES),
    "resnet_block": model(ResNetBlock(), floats(2, 32, 32, 3)),
    "seq2seq": model(Seq2Seq(), floats(2, 6, 5), floats(2, 4, 5)),
    "gru": model(Gru(), floats(2, 6, 5)),
    "transformer_block": model(TransformerBlock(), TOKENS),
    "vae": model(Vae(), floats(3, 40), floats(3, 8)),
    "graph_network": model(GraphNetwork(), floats(9, 4), SENDERS, RECEIVERS),
    "training_step": (sgd_step, (model(Cnn(), IMAGES)[1][0], IMAGES, np.array([3, 7], np.int32))),
}
