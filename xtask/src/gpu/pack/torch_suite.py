"""The cases: kernels one by one and whole networks, defined with torch, which also gives what is right and is a peer.

A suite is a module with the functions `cases`, `facts`, `prepare`, `compare` and `peer`. `run.py --suite FILE` runs another one.
"""

import copy
import functools
import importlib.metadata
import importlib.util
import math
import re

import numpy
import torch
import torch.export
from torch.nn import functional as F

import models
import peers

# What the exporter imports is imported once, before children are forked.
if importlib.util.find_spec("onnxscript"):
    import onnxscript  # noqa: F401

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# The error of a result, relative to the norm of what is right, at most: of kernels, and of networks.
TOLERANCES = {"f32": (2e-5, 2e-4), "tf32": (2e-3, 1e-2), "f16": (2e-3, 2e-2), "bf16": (1e-2, 1e-1)}


class Function(torch.nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


# How NumPy's files call the elements of results.
FILES = {"f32": "f4", "f16": "f2", "bf16": "V2"}

# What each case computes, by name.
BUILDERS = {}


def numbers(*shape):
    return ("numbers", shape)


def words(count, *shape):
    return (count, shape)


def case(out, name, group, dtype, inputs, build, *, small=False, kind="kernel", flops=0, products=False, libraries=False, gradient=False, peers=("torch",)):
    """Adds a case. `products` says that it multiplies: f32 then has variants with tensor cores. `libraries` adds a variant whose
    products and convolutions are calls of NVIDIA's libraries."""
    variants, tf32 = {"ours": ""}, products and dtype == "f32"
    if tf32:
        variants["ours+tf32"] = "+tf32"
    if libraries:
        precise = "+tf32" if tf32 else ""
        variants[f"ours{precise}+lib"] = f"{precise}+cublaslt+cudnn"
    found = []
    for peer in peers:
        # JAX and Triton take tensor cores where they may.
        found += {True: ["torch", "torch+tf32"] if peer == "torch" else [f"{peer}+tf32"], False: [peer]}[tf32]
    name = f"{name}_{dtype}"
    BUILDERS[name] = build
    out.append({
        "name": name, "group": group, "kind": kind, "dtype": dtype, "inputs": inputs, "small": small, "variants": variants,
        "peers": found, "gradient": gradient, **({"flops": flops} if flops else {}),
    })


def cases():
    """Small cases of all kinds first, then what matters most."""
    out = []
    for dtype in DTYPES:
        small_kernels(functools.partial(case, out, dtype=dtype, small=True))
    for dtype in ("f32", "f16"):
        products(functools.partial(case, out, dtype=dtype, products=True), dtype)
        rows(functools.partial(case, out, dtype=dtype, peers=("torch", "compile")))
    matmul(functools.partial(case, out, dtype="bf16", products=True), 4096, 4096, 4096)
    networks(out)
    return out


def small_kernels(add):
    matmul(functools.partial(add, products=True), 64, 96, 80)
    attend(functools.partial(add, products=True), 1, 2, 80, 32, True)
    convolve(functools.partial(add, products=True), 1, 8, 14, 16, 3, 1, 1)
    row_wise(add, 33, 100)
    elementwise(add, 1000)


def products(add, dtype):
    sizes = [(4096, 4096, 4096), (1024, 1024, 1024), (128, 768, 3072), (1, 4096, 4096)]
    for m, k, n in sizes + ([(8192, 8192, 8192), (16, 4096, 4096), (1000, 1000, 1000)] if dtype == "f16" else []):
        matmul(add, m, k, n)
    add("matmul_batch_12x384x64x384", "matmul", inputs=[numbers(12, 384, 64), numbers(12, 64, 384)], build=lambda: torch.matmul, libraries=True, flops=2 * 12 * 384 * 64 * 384)
    add("linear_gelu_2048x768x3072", "matmul", inputs=[numbers(2048, 768)], build=linear_gelu, libraries=True, flops=2 * 2048 * 768 * 3072, peers=("torch", "compile"))
    for shape in [(1, 12, 1024, 64, False), (4, 16, 2048, 64, True)] + ([(1, 32, 2048, 128, True)] if dtype == "f16" else []):
        attend(add, *shape)
    for shape in [(8, 3, 224, 64, 7, 2, 1), (8, 64, 56, 64, 3, 1, 1), (8, 512, 28, 128, 1, 1, 1), (8, 192, 28, 192, 3, 1, 192)]:
        convolve(add, *shape)


def rows(add):
    row_wise(add, 4096, 768)
    row_wise(add, 128, 32768)
    add("column_max_4096x4096", "reduction", inputs=[numbers(4096, 4096)], build=lambda: functools.partial(torch.amax, dim=0))
    add("sum_all_4096x4096", "reduction", inputs=[numbers(4096, 4096)], build=lambda: lambda x: torch.sum(x, dtype=x.dtype))
    elementwise(add, 1 << 24)
    add("transpose_4096x4096", "elementwise", inputs=[numbers(4096, 4096)], build=lambda: lambda x: x.transpose(0, 1) + 1)
    add("max_pool_8x64x112", "pool", inputs=[numbers(8, 64, 112, 112)], build=lambda: torch.nn.MaxPool2d(3, 2, 1))


def matmul(add, m, k, n):
    triton = ("torch", "triton") if min(m, k, n) >= 1024 else ("torch",)
    inputs = [numbers(m, k), numbers(k, n)]
    add(f"matmul_{m}x{k}x{n}", "matmul", inputs=inputs, build=lambda: torch.matmul, libraries=m * k * n > 1 << 20, flops=2 * m * k * n, peers=triton)


def attend(add, batch, heads, length, size, causal):
    """Attention, and for short heads its gradient: a fifth product, and each forward product twice."""
    flops, inputs = 4 * batch * heads * length * length * size // (2 if causal else 1), [numbers(batch, heads, length, size)] * 3
    name, build = f"attention{'_causal' if causal else ''}_{batch}x{heads}x{length}x{size}", functools.partial(attention, causal)
    add(name, "attention", inputs=inputs, build=build, flops=flops)
    if size <= 64:
        add(f"{name}_gradient", "attention gradient", inputs=inputs, build=build, gradient=True, flops=7 * flops // 2)


def convolve(add, batch, channels, size, filters, kernel, stride, groups):
    edge = (size + 2 * (kernel // 2) - kernel) // stride + 1
    flops = 2 * batch * filters * edge * edge * channels // groups * kernel * kernel
    name = f"conv_{batch}x{channels}x{size}_{filters}x{kernel}_s{stride}_g{groups}"
    build = functools.partial(convolution, channels, filters, kernel, stride, groups)
    add(name, "convolution", inputs=[numbers(batch, channels, size, size)], build=build, libraries=size > 14, flops=flops)


def row_wise(add, count, columns):
    inputs = [numbers(count, columns)]
    add(f"softmax_{count}x{columns}", "softmax", inputs=inputs, build=lambda: functools.partial(F.softmax, dim=-1))
    add(f"layer_norm_{count}x{columns}", "layer norm", inputs=inputs, build=functools.partial(layer_norm, columns))
    add(f"row_sum_{count}x{columns}", "reduction", inputs=inputs, build=lambda: lambda x: torch.sum(x, -1, dtype=x.dtype))


def elementwise(add, count):
    add(f"gelu_{count}", "elementwise", inputs=[numbers(count)], build=lambda: F.gelu)
    add(f"multiply_add_{count}", "elementwise", inputs=[numbers(count)] * 3, build=lambda: lambda a, b, c: a * b + c)


def networks(out):
    for name, build, inputs, dtypes in [
        ("resnet50_b1", models.resnet50, [numbers(1, 3, 224, 224)], ["f32", "f16"]),
        ("bert_base_1x128", models.bert_base, [words(30522, 1, 128)], ["f32", "f16"]),
        ("gpt2_1x512", models.gpt2, [words(50257, 1, 512)], ["f32", "bf16"]),
        ("mobilenet_v2_b1", models.mobilenet_v2, [numbers(1, 3, 224, 224)], ["f32", "f16"]),
        ("resnet50_b32", models.resnet50, [numbers(32, 3, 224, 224)], ["f16"]),
        ("bert_base_8x384", models.bert_base, [words(30522, 8, 384)], ["f16"]),
    ]:
        for dtype in dtypes:
            network = functools.partial(lambda build: models.random_weights(build()), build)
            peers = ("torch", "eager", "compile", "jax")
            case(out, name, "network", dtype, inputs, network, kind="model", products=True, libraries=True, peers=peers)


def linear_gelu():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(768, 3072), torch.nn.GELU(approximate="tanh"))


def attention(causal):
    return functools.partial(F.scaled_dot_product_attention, is_causal=causal)


def layer_norm(columns):
    torch.manual_seed(1)
    norm = torch.nn.LayerNorm(columns)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    return norm


def convolution(channels, filters, kernel, stride, groups):
    torch.manual_seed(1)
    return torch.nn.Conv2d(channels, filters, kernel, stride, kernel // 2, groups=groups)


def module(case):
    """What a case computes."""
    built = BUILDERS[case["name"]]()
    built = built if isinstance(built, torch.nn.Module) else Function(built)
    return built.eval().to(DTYPES[case["dtype"]])


def inputs_of(case):
    """The inputs of a case, the same in every process. Those of a gradient end with the weights of the results."""
    generator = torch.Generator().manual_seed(7)
    out = []
    for kind, shape in case["inputs"]:
        if kind == "numbers":
            out.append(torch.randn(shape, generator=generator).to(DTYPES[case["dtype"]]))
        else:
            out.append(torch.randint(0, kind, shape, generator=generator))
    if case["gradient"]:
        out.append(torch.randn(case["inputs"][0][1], generator=generator).to(DTYPES[case["dtype"]]))
    return out


def compute(case, model, inputs):
    """The outputs of a case; of a gradient, the result and the gradients of the inputs."""
    if not case["gradient"]:
        with torch.inference_mode():
            return [model(*inputs)]
    inputs, weight = [x.detach().requires_grad_() for x in inputs[:-1]], inputs[-1]
    y = model(*inputs)
    return [y, *torch.autograd.grad(y, inputs, weight)]


def prepare(case, folder, machine):
    """Writes the inputs of a case, what it must give, and its model."""
    torch.set_num_threads(2)
    inputs, model = inputs_of(case), module(case)
    (folder / "inputs").mkdir()
    (folder / "expected").mkdir()
    for i, x in enumerate(inputs):
        save(folder / "inputs" / f"input_{i}.npy", x)
    # What is right is computed in f64, from the same rounded weights and inputs.
    exact = [x.double() if x.is_floating_point() else x for x in inputs]
    for i, y in enumerate(compute(case, copy.deepcopy(model).double(), exact)):
        numpy.save(folder / "expected" / f"output_{i}.npy", y.detach().numpy())
    file = folder / "model.onnx"
    given = inputs[:-1] if case["gradient"] else inputs
    with torch.inference_mode():
        torch.onnx.export(model, tuple(given), file, dynamo=True, opset_version=20, verbose=False)
    return with_gradient(file, case, machine) if case["gradient"] else file


def with_gradient(file, case, machine):
    """The model as IR text, with the gradients of its inputs as further results. One more input weighs the result."""
    text = file.with_suffix(".of")
    machine.run("import", file, "-o", text)
    whole = text.read_text()
    head = re.search(r"func @main\((.*?)\) -> .*?\{\n", whole)
    names = re.findall(r"(%\w+): (tensor<[^>]*>)", head[1])
    result = re.search(r" *of\.return (%[\w.#]+) : \((tensor<[^>]*>)\).*\n", whole)
    value, kind = result[1], result[2]
    types = ", ".join(t for _, t in names)
    lines = f"  %of_weighed = of.mul {value}, %of_weight : ({kind}, {kind}) -> {kind}\n"
    grads = ", ".join(f"%of_grad{i}" for i in range(len(names)))
    operands = ", ".join(name for name, _ in names)
    lines += f"  {grads} = of.gradient %of_weighed, {operands} : ({kind}, {types}) -> ({types})\n"
    lines += f"  of.return {value}, {grads} : ({kind}, {types}) -> ()\n"
    arguments = ", ".join([*(f"{name}: {t}" for name, t in names), f"%of_weight: {kind}"])
    body = whole[head.end() : result.start()] + lines + whole[result.end() :]
    text.write_text(f"{whole[: head.start()]}func @main({arguments}) -> ({kind}, {types}) {{\n{body}")
    return text


def save(file, x):
    """Writes a tensor as of-opt reads it: bf16 are elements of two bytes of no type, as ml_dtypes saves them."""
    x = x.detach().cpu().contiguous()
    numpy.save(file, x.view(torch.int16).numpy().view("V2") if x.dtype == torch.bfloat16 else x.numpy())


def load(file):
    """The numbers of a file, as f64."""
    x = numpy.load(file)
    if x.dtype.kind == "V":
        x = (x.view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
    return x.astype(numpy.float64)


def compare(case, variant, expected, got):
    """The largest error of all outputs, relative to the norm of what is right."""
    worst = 0.0
    for file in sorted(expected.iterdir()):
        want, have = load(file), load(got / file.name)
        kind = numpy.load(got / file.name, mmap_mode="r").dtype.str[1:]
        if kind != FILES[case["dtype"]]:
            return {"ok": False, "why": f"{file.stem} has elements of {kind} and must have {FILES[case['dtype']]}"}
        if want.shape != have.shape:
            return {"ok": False, "why": f"{file.stem} has shape {have.shape} and must have {want.shape}"}
        worst = max(worst, error(have, want))
    return judged(case, "tf32" if "tf32" in variant else case["dtype"], worst)


def error(have, want):
    if not numpy.isfinite(have).all():
        return math.inf
    return float(numpy.linalg.norm(have - want) / max(numpy.linalg.norm(want), 1e-30))


def judged(case, precision, worst):
    limit = TOLERANCES[precision][case["kind"] == "model"]
    if math.isfinite(worst) and worst <= limit:
        return {"ok": True, "error": worst, "limit": limit}
    shown = worst if math.isfinite(worst) else None
    return {"ok": False, "error": shown, "limit": limit, "why": f"the error is {worst:.3g}, and {limit} is allowed"}


def peer(case, name, folder, seconds):
    """Measures torch, torch.compile, Triton or JAX, and says how far its result is from what is right."""
    model, inputs = module(case), inputs_of(case)
    program = functools.partial(compute, case)
    found, outputs = peers.measure(name, model, inputs, program, seconds, case)
    worst = max(error(y, load(folder / "expected" / f"output_{i}.npy")) for i, y in enumerate(outputs))
    return {**found, "error": worst if math.isfinite(worst) else None}


def facts():
    """Versions, and what the GPU reaches in a large copy and a large product."""
    found = {"torch": torch.__version__}
    for name in ("triton", "jax", "numpy", "onnxscript"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return {**found, **peers.ceilings()}
