"""Training steps of `of-opt train`, PyTorch (eager, channels last, torch.compile) and JAX: seconds a step, and the same losses.

    cargo build --release
    python3 bindings/python/benches/train_steps.py [digits] [transformer] [resnet50] [bert_base] [--of-opt target/release/of-opt]
        [--with of-opt,eager,channels-last,compile,jax] [--steps 8] [--threads 1] [--ranks 1] [--mesh FILE.toml]

All train one model from the same weights on the same batch: cross entropy, Adam (SGD with momentum for resnet50), constant rate. Each runs in a
process of its own, on as many cores as threads. JAX computes the same functions in jax.numpy, jitted with donated state, images in its
layout (NHWC). The first step compiles and is not measured; the time is the median of the others. The last column is the largest
difference from PyTorch's eager losses, of the first step and of all: above 1e-4 in the first step it is an error. Later losses of resnet50 part by
rounding alone, 100 times as far with each step; in f64 PyTorch and JAX are equal in 9 digits after four. With several ranks each has the
batch: of-opt's are processes on the mesh of FILE, PyTorch's are those of DistributedDataParallel over Gloo, and JAX is left out. It needs
torch, torchvision for resnet50, transformers for bert_base, and jax, without which JAX is left out with a line that says so.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

MODELS = ("digits", "transformer", "resnet50", "bert_base")
VARIANTS = ("of-opt", "eager", "channels-last", "compile", "jax")
# What the first loss may differ by, which no update has changed yet.
TOLERANCE = 1e-4
# Samples of the file of data are so many copies of the batch, the steps of one line of of-opt's losses.
COPIES = 4
SGD_RATE, MOMENTUM = 0.01, 0.9
ADAM_RATE, BETAS, EPSILON = 1e-4, (0.9, 0.999), 1e-8


def transformer():
    """A small GPT: two layers, 512 wide, 8 heads, 256 tokens of 1000."""
    import torch
    from torch import nn

    width, heads, length = 512, 8, 256

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, mask):
            batch = x.shape[0]
            qkv = self.qkv(self.norm1(x)).view(batch, length, 3, heads, width // heads)
            query, key, value = qkv.permute(2, 0, 3, 1, 4)
            scores = query @ key.transpose(-1, -2) / (width // heads) ** 0.5 + mask
            mixed = (torch.softmax(scores, -1) @ value).transpose(1, 2).reshape(batch, length, width)
            x = x + self.out(mixed)
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(1000, width)
            self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)
            self.register_buffer("mask", torch.triu(torch.full((length, length), -1e9), 1))

        def forward(self, x):
            x = self.tokens(x) + self.positions
            for block in self.blocks:
                x = block(x, self.mask)
            return self.head(self.norm(x))

    return Transformer(), torch.randint(0, 1000, (4, length)), torch.randint(0, 1000, (4, length))


def digits():
    import torch
    from torch import nn

    def layers(into, out):
        return [nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]

    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model = nn.Sequential(*layers(1, 16), *layers(16, 32), nn.MaxPool2d(2), *layers(32, 64), *tail)
    return model, torch.randn(32, 1, 8, 8), torch.randint(0, 10, (32,))


def resnet50():
    import torch
    import torchvision

    model = torchvision.models.resnet50(weights=None)
    return model, torch.randn(8, 3, 224, 224), torch.randint(0, 1000, (8,))


def bert_base():
    import torch
    from torch import nn
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, attn_implementation="eager")

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = BertModel(config, add_pooling_layer=False)
            self.head = nn.Linear(config.hidden_size, 1000)

        def forward(self, x):
            return self.head(self.bert(x).last_hidden_state)

    return Bert(), torch.randint(0, config.vocab_size, (8, 128)), torch.randint(0, 1000, (8, 128))


def build(name, threads):
    """A module of PyTorch, a batch and its labels."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    model, x, labels = globals()[name]()
    return model.train(), x, labels


def is_sgd(name):
    return name == "resnet50"


def train_torch(name, variant, options):
    import torch

    model, x, labels = build(name, options.threads)
    if variant == "channels-last":
        model, x = (part.to(memory_format=torch.channels_last) for part in (model, x))
    if is_sgd(name):
        optimizer = torch.optim.SGD(model.parameters(), lr=SGD_RATE, momentum=MOMENTUM)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=ADAM_RATE, betas=BETAS, eps=EPSILON)
    forward = model
    if options.ranks > 1:
        torch.distributed.init_process_group("gloo", f"file://{options.store}", rank=options.rank, world_size=options.ranks)
        forward = torch.nn.parallel.DistributedDataParallel(model)
    if variant == "compile":
        forward = torch.compile(forward)

    def step():
        optimizer.zero_grad()
        scores = forward(x)
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    result = measured(step, options.steps)
    if options.ranks > 1:
        torch.distributed.destroy_process_group()
    return result


def measured(step, steps):
    """The losses of steps, and the times of all but the first."""
    losses, times = [], []
    for _ in range(steps):
        began = time.perf_counter()
        losses.append(step())
        times.append(time.perf_counter() - began)
    return {"losses": losses, "times": times[1:]}


# The same functions in JAX. Parameters have the names of PyTorch, filters are HWIO, and `state` gets new running statistics.


def jax_linear(p, name, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def jax_layer_norm(p, name, x, epsilon=1e-5):
    import jax

    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + epsilon) * p[f"{name}.weight"] + p[f"{name}.bias"]


def jax_conv(p, name, x, stride, padding):
    import jax

    pads = [(padding, padding)] * 2
    layout = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, p[f"{name}.weight"], (stride, stride), pads, dimension_numbers=layout)
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def jax_batch_norm(p, state, name, x):
    import jax

    mean = x.mean((0, 1, 2))
    variance = ((x - mean) ** 2).mean((0, 1, 2))
    count = x.size // x.shape[-1]
    for kind, new in [("running_mean", mean), ("running_var", variance * count / (count - 1))]:
        state[f"{name}.{kind}"] = 0.9 * state[f"{name}.{kind}"] + 0.1 * new
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def jax_max_pool(x, size, stride, padding):
    import jax

    pads = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return jax.lax.reduce_window(x, -numpy.inf, jax.lax.max, (1, size, size, 1), (1, stride, stride, 1), pads)


def jax_attention(query, key, value, heads, mask=None):
    import jax

    batch, length, width = query.shape
    query, key, value = (x.reshape(batch, length, heads, width // heads) for x in (query, key, value))
    scores = jax.numpy.einsum("bqhd,bkhd->bhqk", query, key) / (width // heads) ** 0.5
    weights = jax.nn.softmax(scores if mask is None else scores + mask, -1)
    return jax.numpy.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, width)


def jax_digits(p, state, x):
    import jax

    for i in (0, 3, 7):
        x = jax.nn.relu(jax_batch_norm(p, state, str(i + 1), jax_conv(p, str(i), x, 1, 1)))
        x = jax_max_pool(x, 2, 2, 0) if i == 3 else x
    return jax_linear(p, "12", x.mean((1, 2)))


def jax_resnet50(p, state, x):
    import jax

    def part(x, conv, norm, stride, padding):
        return jax_batch_norm(p, state, norm, jax_conv(p, conv, x, stride, padding))

    x = jax_max_pool(jax.nn.relu(part(x, "conv1", "bn1", 2, 3)), 3, 2, 1)
    for layer, blocks in enumerate((3, 4, 6, 3), 1):
        for block in range(blocks):
            name = f"layer{layer}.{block}"
            stride = 2 if block == 0 and layer > 1 else 1
            y = jax.nn.relu(part(x, f"{name}.conv1", f"{name}.bn1", 1, 0))
            y = jax.nn.relu(part(y, f"{name}.conv2", f"{name}.bn2", stride, 1))
            y = part(y, f"{name}.conv3", f"{name}.bn3", 1, 0)
            x = part(x, f"{name}.downsample.0", f"{name}.downsample.1", stride, 0) if block == 0 else x
            x = jax.nn.relu(x + y)
    return jax_linear(p, "fc", x.mean((1, 2)))


def jax_transformer(p, state, x):
    import jax

    x = p["tokens.weight"][x] + p["positions"]
    mask = jax.numpy.triu(jax.numpy.full((x.shape[1], x.shape[1]), -1e9, "float32"), 1)
    for i in range(2):
        name = f"blocks.{i}"
        qkv = jax_linear(p, f"{name}.qkv", jax_layer_norm(p, f"{name}.norm1", x))
        query, key, value = jax.numpy.split(qkv, 3, -1)
        x = x + jax_linear(p, f"{name}.out", jax_attention(query, key, value, 8, mask))
        up = jax_linear(p, f"{name}.up", jax_layer_norm(p, f"{name}.norm2", x))
        x = x + jax_linear(p, f"{name}.down", jax.nn.gelu(up, approximate=False))
    return jax_linear(p, "head", jax_layer_norm(p, "norm", x))


def jax_bert_base(p, state, x):
    import jax

    def norm(name, x):
        return jax_layer_norm(p, f"{name}.LayerNorm", x, 1e-12)

    own = "bert.embeddings"
    tables = [p[f"{own}.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
    x = norm(own, tables[0][x] + tables[1][: x.shape[1]] + tables[2][0])
    for i in range(12):
        name = f"bert.encoder.layer.{i}"
        qkv = [jax_linear(p, f"{name}.attention.self.{kind}", x) for kind in ("query", "key", "value")]
        mixed = jax_linear(p, f"{name}.attention.output.dense", jax_attention(*qkv, 12))
        x = norm(f"{name}.attention.output", x + mixed)
        up = jax.nn.gelu(jax_linear(p, f"{name}.intermediate.dense", x), approximate=False)
        x = norm(f"{name}.output", x + jax_linear(p, f"{name}.output.dense", up))
    return jax_linear(p, "head", x)


def train_jax(name, options):
    # One thread is what a core has; more are XLA's own choice on the cores of the process.
    if options.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    from jax import numpy as jnp

    model, x, labels = build(name, options.threads)
    function = globals()[f"jax_{name}"]

    def array(tensor):
        values = tensor.detach().numpy()
        return jnp.array(values.transpose(2, 3, 1, 0) if values.ndim == 4 else values)

    parameters = {key: array(value) for key, value in model.named_parameters()}
    state = {key: array(value) for key, value in model.named_buffers() if "running" in key}
    x = jnp.array(x.numpy().transpose(0, 2, 3, 1) if x.dim() == 4 else x.numpy().astype("int32"))
    labels = jnp.array(labels.numpy().astype("int32"))
    del model
    zeros = {key: jnp.zeros_like(value) for key, value in parameters.items()}
    momenta = zeros if is_sgd(name) else (zeros, {key: jnp.zeros_like(value) for key, value in parameters.items()})

    def loss_of(parameters, state):
        new = dict(state)
        scores = function(parameters, new, x)
        scores = scores.reshape(-1, scores.shape[-1])
        picked = jnp.take_along_axis(jax.nn.log_softmax(scores), labels.reshape(-1, 1), 1)
        return -picked.mean(), new

    def update(parameters, momenta, gradients, number):
        tree = jax.tree_util.tree_map
        if is_sgd(name):
            momenta = tree(lambda m, g: MOMENTUM * m + g, momenta, gradients)
            return tree(lambda p, m: p - SGD_RATE * m, parameters, momenta), momenta
        first = tree(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, momenta[0], gradients)
        second = tree(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, momenta[1], gradients)
        rate, scale = ADAM_RATE / (1 - BETAS[0] ** number), jnp.sqrt(1 - BETAS[1] ** number)
        new = tree(lambda p, m, v: p - rate * m / (jnp.sqrt(v) / scale + EPSILON), parameters, first, second)
        return new, (first, second)

    def whole(parameters, state, momenta, number):
        (loss, state), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters, state)
        parameters, momenta = update(parameters, momenta, gradients, number)
        return loss, parameters, state, momenta

    whole = jax.jit(whole, donate_argnums=(0, 1, 2))
    number = 0

    def step():
        nonlocal parameters, state, momenta, number
        number += 1
        loss, parameters, state, momenta = whole(parameters, state, momenta, jnp.float32(number))
        jax.block_until_ready((loss, parameters, state, momenta))
        return float(loss)

    return measured(step, options.steps)


def write_training(name, folder, threads, batches, is_open=False):
    """Writes the exported model, with an open number of samples if asked for, and a file of so many copies of the batch.

    Gives the samples of the batch, and the arguments of `of-opt train` that do not depend on the number of ranks.
    """
    import torch

    model, x, labels = build(name, threads)
    axes = {"dynamic_axes": {"x": {0: "samples"}, "scores": {0: "samples"}}} if is_open else {}
    torch.onnx.export(
        model, (x,), os.path.join(folder, "model.onnx"), dynamo=False, do_constant_folding=False,
        training=torch.onnx.TrainingMode.TRAINING, input_names=["x"], output_names=["scores"], **axes,
    )  # fmt: skip
    copies = {"x": x.numpy(), "labels": labels.numpy()}
    copies = {key: numpy.concatenate([values] * batches) for key, values in copies.items()}
    numpy.savez(os.path.join(folder, "data.npz"), **copies)
    arguments = ["train", "model.onnx", "--data", "data.npz", "--schedule", "constant", "--no-shuffle", "--threads", str(threads)]
    arguments += [] if labels.dim() == 1 else ["--class-axis", "-1"]
    if is_sgd(name):
        arguments += ["--optimizer", "sgd", "--momentum", str(MOMENTUM), "--learning-rate", str(SGD_RATE)]
    else:
        arguments += ["--optimizer", "adam", "--learning-rate", str(ADAM_RATE)]
    return len(x), arguments


def train_ours(name, options):
    """`of-opt train` on the exported model, and on a file of copies of the batch."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from train_curves import losses_of

    with tempfile.TemporaryDirectory() as folder:
        ranks = options.ranks
        samples, arguments = write_training(name, folder, options.threads, COPIES * ranks, ranks > 1)
        # Lines of losses are of an epoch, and the first one has the first step.
        epochs = 1 + -(-options.steps // COPIES)
        command = [options.of_opt, *arguments, "--batch", str(samples * ranks), "--epochs", str(epochs), "--json"]
        command += ["--log-dir", "logs", "-o", "out.onnx"]
        if ranks > 1:
            command += ["--mesh", options.mesh or f"cpu[{ranks}]", "--ranks", str(ranks)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        times = [samples * ranks / line["samples_per_second"] for line in lines if "samples_per_second" in line]
        return {"losses": losses_of(os.path.join(folder, "logs"))[: options.steps], "times": times[1:]}


def child(name, variant, options):
    # Threads of libraries that are started later inherit it. Ranks share cores where there are not enough.
    cores, threads = sorted(os.sched_getaffinity(0), reverse=True), options.threads
    first, count = (0, threads * options.ranks) if variant == "of-opt" else (threads * options.rank, threads)
    os.sched_setaffinity(0, {cores[i % len(cores)] for i in range(first, first + count)})
    if variant == "of-opt":
        result = train_ours(name, options)
    elif variant == "jax":
        result = train_jax(name, options)
    else:
        result = train_torch(name, variant, options)
    print(json.dumps(result))


def run(name, variant, options):
    """The losses and times of a variant, in a process of its own; ranks of PyTorch are several. Times are those of the first rank."""
    command = [sys.executable, os.path.abspath(__file__), name, "--child", variant, "--of-opt", options.of_opt]
    command += ["--steps", str(options.steps), "--threads", str(options.threads), "--ranks", str(options.ranks)]
    command += ["--mesh", options.mesh] if options.mesh else []
    processes = 1 if variant == "of-opt" else options.ranks
    with tempfile.TemporaryDirectory() as folder:
        store = ["--store", os.path.join(folder, "store")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        ranks = [subprocess.Popen([*command, *store, "--rank", str(rank)], **pipes) for rank in range(processes)]
        printed = None
        for rank in ranks:
            out, errors = rank.communicate()
            if rank.returncode != 0:
                for other in ranks:
                    other.kill()
                raise RuntimeError(errors.strip()[-2000:])
            printed = printed or out
    return json.loads(printed.splitlines()[-1])


def difference(losses, wanted):
    return [abs(a - b) / abs(b) for a, b in zip(losses, wanted, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--with", dest="variants", default=",".join(VARIANTS))
    parser.add_argument("--of-opt", default="target/release/of-opt", type=os.path.abspath)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--mesh", type=os.path.abspath)
    for internal in ("--child", "--store"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names, variants = options.names or MODELS, options.variants.split(",")
    for known, given in [(MODELS, names), (VARIANTS, variants)]:
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if options.steps < 2:
        parser.error("--steps must be 2 or more: the first is not measured")
    if options.child:
        return child(names[0], options.child, options)
    if "jax" in variants and importlib.util.find_spec("jax") is None:
        print("jax is not installed (pip install 'jax[cpu]'): JAX is left out")
        variants.remove("jax")
    if options.ranks > 1 and "jax" in variants:
        variants.remove("jax")
    # Losses are compared with those of eager PyTorch, which comes first.
    variants = ["eager", *(v for v in variants if v != "eager")]
    columns = f"{'model':12} {'variant':14} {'median':>9} {'fastest':>9}"
    print(f"{columns}  differences of losses: first step, all steps", flush=True)
    is_equal = True
    for name in names:
        wanted = None
        for variant in variants:
            if variant == "channels-last" and name in ("transformer", "bert_base"):
                continue
            try:
                result = run(name, variant, options)
            except RuntimeError as error:  # of one variant, which is reported
                print(f"{name:12} {variant:14} {error}", flush=True)
                is_equal = False
                continue
            if variant == "eager":
                wanted = result["losses"]
            median, fastest = statistics.median(result["times"]), min(result["times"])
            off = difference(result["losses"], wanted) if wanted else [0.0]
            is_equal &= off[0] <= TOLERANCE
            mark = "" if off[0] <= TOLERANCE else "  DIFFERENT"
            print(f"{name:12} {variant:14} {median:9.4f} {fastest:9.4f}  {off[0]:.1e} {max(off):.1e}{mark}", flush=True)
    sys.exit(0 if is_equal else 1)


if __name__ == "__main__":
    main()
