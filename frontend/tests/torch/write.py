"""Writes the files of this folder: `python3 write.py` with torch, torchvision and transformers.

`layers.txt` has the parameters of layers, as in their state dicts, and what PyTorch computes in f64, `gradients.txt` the gradients of some.
Inputs and parameters are made by `ramp`, which `layers.rs` has, too. `zoo/` has the names and extents of the parameters of the zoo's models. Modules that are in no
package are those of `bindings/python/benches/zoo.py`.
"""

import pathlib
import sys
import textwrap

import torch
from torch import nn
from torch.nn import functional

here = pathlib.Path(__file__).parent
sys.path.insert(0, str(here.parents[2] / "bindings/python/benches"))


def ramp(dims, salt):
    """Numbers from -0.5 to 0.5; the operations are those of f32, so that they are exactly the same in Rust."""
    count = torch.Size(dims).numel()
    whole = (torch.arange(count) * 37 + salt * 53) % 101
    return (whole.float() / 101.0 - 0.5).reshape(dims)


class Attention(nn.Module):
    """Multi-head attention with a projection of its own for queries, keys and values."""

    def __init__(self, size, heads, is_causal=False):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(size, size) for _ in range(4))
        self.heads, self.is_causal = heads, is_causal

    def forward(self, x, y=None, mask=None):
        y = x if y is None else y

        def split(t):
            return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = split(self.q_proj(x)), split(self.k_proj(y)), split(self.v_proj(y))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.is_causal)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    """A recurrent network that returns all results one by one, with the names of its parameters."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, *initial):
        if len(initial) == 0:
            y, last = self.network(x)
        else:
            y, last = self.network(x, initial if isinstance(self.network, nn.LSTM) else initial[0])
        return (y, *last) if isinstance(last, tuple) else (y, last)


def recurrent(kind, **options):
    return Recurrent(kind(3, 4, batch_first=True, **options))


def f(*dims):
    """An input of floats."""
    return ("f32", dims)


def mask(*dims):
    """An input of booleans, of which the first of a row is true."""
    return ("bool", dims)


def cases():
    """Name, module and inputs."""
    sequence, state = f(2, 5, 3), f(1, 2, 4)
    yield "linear", nn.Linear(3, 4), f(2, 5, 3)
    yield "conv_1d", nn.Conv1d(3, 2, 3, stride=2, padding=1), f(2, 3, 7)
    yield "conv_2d_groups_dilation", nn.Conv2d(4, 6, (3, 2), padding=2, dilation=2, groups=2), f(1, 4, 4, 5)
    yield "conv_3d_no_bias", nn.Conv3d(2, 3, (2, 1, 2), bias=False), f(1, 2, 3, 2, 3)
    yield "conv_transpose_1d", nn.ConvTranspose1d(3, 2, 3, stride=2, padding=1, output_padding=1), f(2, 3, 4)
    two = nn.ConvTranspose2d(4, 6, (3, 2), stride=2, padding=1, groups=2, dilation=2)
    yield "conv_transpose_2d_groups_dilation", two, f(1, 4, 3, 3)
    yield "conv_transpose_2d_no_bias", nn.ConvTranspose2d(2, 3, 2, stride=2, bias=False), f(1, 2, 2, 3)
    yield "conv_transpose_3d", nn.ConvTranspose3d(2, 2, (2, 1, 2), stride=2), f(1, 2, 2, 2, 2)
    yield "layer_norm", nn.LayerNorm(6), f(2, 3, 6)
    yield "rms_norm", nn.RMSNorm(6, eps=1e-6), f(2, 3, 6)
    yield "group_norm", nn.GroupNorm(2, 4), f(2, 4, 2, 3)
    yield "instance_norm", nn.InstanceNorm2d(3), f(2, 3, 3, 4)
    yield "instance_norm_affine", nn.InstanceNorm1d(3, affine=True), f(2, 3, 7)
    yield "batch_norm", nn.BatchNorm2d(3), f(2, 3, 2, 2)
    yield "max_pool_1d", nn.MaxPool1d(3, stride=2, padding=1), f(2, 2, 6)
    yield "max_pool_2d", nn.MaxPool2d((2, 3)), f(2, 2, 4, 6)
    yield "avg_pool_2d", nn.AvgPool2d((2, 3), stride=2, padding=1), f(1, 2, 5, 6)
    yield "avg_pool_3d", nn.AvgPool3d(2), f(1, 2, 4, 2, 4)
    yield "global_avg_pool", nn.AdaptiveAvgPool2d(1), f(2, 3, 4, 5)
    yield "global_max_pool", nn.AdaptiveMaxPool3d(1), f(2, 3, 2, 3, 2)
    yield "adaptive_avg_pool_1d_more", nn.AdaptiveAvgPool1d(5), f(1, 2, 3)
    yield "adaptive_avg_pool_2d_equal", nn.AdaptiveAvgPool2d((2, 3)), f(1, 2, 4, 6)
    yield "adaptive_avg_pool_2d", nn.AdaptiveAvgPool2d((3, 4)), f(1, 2, 5, 4)
    yield "adaptive_avg_pool_3d", nn.AdaptiveAvgPool3d((2, 3, 1)), f(1, 2, 3, 4, 5)
    yield "adaptive_max_pool_2d_equal", nn.AdaptiveMaxPool2d((2, 1)), f(1, 2, 4, 3)
    yield "adaptive_max_pool_2d", nn.AdaptiveMaxPool2d((3, 2)), f(1, 2, 7, 5)
    yield "relu", nn.ReLU(), f(2, 6)
    yield "leaky_relu", nn.LeakyReLU(0.1), f(2, 6)
    yield "elu", nn.ELU(1.5), f(2, 6)
    yield "gelu", nn.GELU(), f(2, 6)
    yield "silu", nn.SiLU(), f(2, 6)
    yield "hard_swish", nn.Hardswish(), f(2, 6)
    yield "mish", nn.Mish(), f(2, 6)
    yield "tanh", nn.Tanh(), f(2, 6)
    yield "sigmoid", nn.Sigmoid(), f(2, 6)
    yield "softplus", nn.Softplus(), f(2, 6)
    yield "prelu", nn.PReLU(3), f(2, 3, 2, 2)
    yield "prelu_rows", nn.PReLU(3), f(4, 3)
    yield "prelu_one", nn.PReLU(), f(2, 3, 2)
    yield "softmax", nn.Softmax(dim=1), f(2, 3, 4)
    yield "log_softmax", nn.LogSoftmax(dim=-1), f(2, 3, 4)
    for kind, name, states in ((nn.LSTM, "lstm", 2), (nn.GRU, "gru", 1)):
        yield name, recurrent(kind), sequence
        yield f"{name}_no_bias", recurrent(kind, bias=False), sequence
        yield f"{name}_initial", recurrent(kind), sequence, *[state] * states
        yield f"{name}_stacked", recurrent(kind, num_layers=3), sequence, *[f(3, 2, 4)] * states
        yield f"{name}_bidirectional", recurrent(kind, bidirectional=True), sequence
        both = recurrent(kind, num_layers=2, bidirectional=True)
        yield f"{name}_stacked_bidirectional", both, sequence, *[f(4, 2, 4)] * states
    yield "attention", Attention(8, 2), f(2, 3, 8)
    yield "attention_causal", Attention(8, 2, is_causal=True), f(2, 3, 8)
    yield "attention_to_others", Attention(8, 4), f(2, 3, 8), f(2, 4, 8)
    yield "attention_bool_mask", Attention(8, 2), f(2, 3, 8), f(2, 4, 8), mask(3, 4)
    yield "attention_bool_mask_of_samples", Attention(8, 2), f(2, 3, 8), f(2, 4, 8), mask(2, 1, 3, 4)
    yield "attention_float_mask", Attention(8, 2), f(2, 3, 8), f(2, 4, 8), f(2, 2, 3, 4)


def written(dims):
    return "x".join(map(str, dims))


def state_of(module):
    """The floats of a state dict, by their names in the layer."""
    state = module.network.state_dict(keep_vars=True) if isinstance(module, Recurrent) else module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if value.is_floating_point()}


# Layers of which gradients are compared: those that are no single op.
DIFFERENTIATED = [
    "conv_transpose_2d_groups_dilation", "group_norm", "instance_norm_affine", "adaptive_avg_pool_2d", "adaptive_max_pool_2d", "prelu",
    "lstm_initial", "lstm_stacked_bidirectional", "gru_initial", "gru_stacked_bidirectional",
]  # fmt: skip


def numbers(value):
    return textwrap.wrap(" ".join(f"{x:.7g}" for x in value.flatten().tolist()), 138)


def write_layers():
    lines = [f"# Written by write.py with torch {torch.__version__}"]
    gradients = [*lines, "# Of the sum of all outputs, each times a ramp: by the first input and by parameters."]
    for name, module, *inputs in cases():
        module.eval()
        lines.append(f"case {name}")
        for salt, (parameter, value) in enumerate(state_of(module).items(), 1):
            # Variances are positive.
            value.data = ramp(value.shape, salt) + (1.0 if parameter == "running_var" else 0.0)
            lines.append(f"parameter {parameter} {written(value.shape)}")
        given = []
        for number, (kind, dims) in enumerate(inputs):
            value = ramp(dims, 90 + number).double()
            if kind == "bool":
                value = value > -0.1
                value[..., 0] = True
            given.append(value)
            lines.append(f"input {kind} {written(dims)}")
        module.double()
        given[0].requires_grad_(name in DIFFERENTIATED)
        results = module(*given)
        results = results if isinstance(results, tuple) else (results,)
        for result in results:
            lines.extend([f"output {written(result.shape)}", *numbers(result)])
        if name in DIFFERENTIATED:
            sum((result * ramp(result.shape, 70 + i)).sum() for i, result in enumerate(results)).backward()
            gradients.append(f"case {name}")
            for parameter, value in [("x0", given[0]), *state_of(module).items()]:
                gradients.extend([f"gradient {parameter} {written(value.shape)}", *numbers(value.grad)])
    (here / "layers.txt").write_text("\n".join(lines) + "\n")
    (here / "gradients.txt").write_text("\n".join(gradients) + "\n")


def models():
    """The settings of each model of the zoo, and its module; without settings it is the published one."""
    import torchvision
    import transformers
    import zoo

    kaggle = [
        1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652, 2173, 4,
        7046547, 18, 15, 286181, 105, 142572,
    ]  # fmt: skip
    yield "resnet50", "", torchvision.models.resnet50()
    yield "bert", "", transformers.BertForPreTraining(transformers.BertConfig())
    yield "gpt2", "", transformers.GPT2LMHeadModel(transformers.GPT2Config())
    yield "ncf", "", zoo.Ncf(138493, 26744, 64, [256, 256, 128, 64])
    yield "wide_deep", "", zoo.WideDeep(kaggle, 4, 13, [256, 128])
    # The published tables of 16 features would take 2 GB in the test.
    yield "dlrm", "size=1,bottom=512-256-64-1", zoo.Dlrm(kaggle, 1, 13, [512, 256, 64, 1], [512, 256, 1])
    yield "transformer", "", zoo.Translation(6, 512, 8, 2048, 37000, 37000, 5000)
    yield "arcface_resnet50", "", zoo.ArcFace([3, 4, 14, 3], 64, 512, 85742, 112, 64.0, 0.5)
    yield "ssd_resnet34", "", zoo.Ssd([3, 4, 6], 81)
    mask_rcnn = torchvision.models.detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    yield "mask_rcnn", "", mask_rcnn


def write_zoo():
    import torchvision
    import transformers

    versions = f"torch {torch.__version__}, torchvision {torchvision.__version__}, transformers {transformers.__version__}"
    # Modules on this device have shapes and no values.
    with torch.device("meta"):
        for name, settings, module in models():
            lines = [f"# Written by write.py with {versions}", f"settings {settings}".rstrip()]
            for parameter, value in module.state_dict().items():
                if value.is_floating_point():
                    lines.append(f"{parameter} {written(value.shape)}")
            (here / "zoo" / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    write_layers()
    write_zoo()
