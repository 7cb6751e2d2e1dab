"""Networks by their published shapes, with random weights: how long a network takes does not depend on its weights."""

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    """He et al., "Deep Residual Learning for Image Recognition" (2015), the block of ResNet-50."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            *convolution(inputs, width, 1, 1), nn.ReLU(), *convolution(width, width, 3, stride), nn.ReLU(), *convolution(width, outputs, 1, 1)
        )
        self.shortcut = nn.Sequential(*convolution(inputs, outputs, 1, stride)) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


class InvertedResidual(nn.Module):
    """Sandler et al., "MobileNetV2" (2018)."""

    def __init__(self, inputs, outputs, stride, expand):
        super().__init__()
        width = inputs * expand
        first = [*convolution(inputs, width, 1, 1), nn.ReLU6()] if expand > 1 else []
        self.body = nn.Sequential(*first, *convolution(width, width, 3, stride, width), nn.ReLU6(), *convolution(width, outputs, 1, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.body(x) if self.adds else self.body(x)


def convolution(inputs, outputs, kernel, stride, groups=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(outputs)


def classifier(channels, classes):
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)


def resnet50():
    layers, inputs = [*convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(count):
            layers.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, *classifier(inputs, 1000))


def mobilenet_v2():
    layers, inputs = [*convolution(3, 32, 3, 2), nn.ReLU6()], 32
    for expand, outputs, count, stride in [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]:
        for i in range(count):
            layers.append(InvertedResidual(inputs, outputs, stride if i == 0 else 1, expand))
            inputs = outputs
    return nn.Sequential(*layers, *convolution(inputs, 1280, 1, 1), nn.ReLU6(), *classifier(1280, 1000))


class Layer(nn.Module):
    """A transformer layer: normalised before each part, as in GPT-2, or after it, as in BERT."""

    def __init__(self, width, heads, before, causal):
        super().__init__()
        self.heads, self.before, self.causal = heads, before, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (part.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward_part(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh" if self.before else "none"))

    def forward(self, x):
        if self.before:
            x = x + self.attend(self.norm1(x))
            return x + self.forward_part(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.forward_part(x))


class Transformer(nn.Module):
    """BERT (Devlin et al., 2018) or GPT-2 (Radford et al., 2019), without the head that BERT's task decides."""

    def __init__(self, words, length, width, heads, layers, causal):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads, causal, causal) for _ in range(layers))
        self.norm, self.causal = nn.LayerNorm(width), causal

    def forward(self, ids):
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        x = x if self.causal else self.norm(x)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.words.weight) if self.causal else x


def bert_base():
    return Transformer(30522, 512, 768, 12, 12, causal=False)


def gpt2():
    return Transformer(50257, 1024, 768, 12, 12, causal=True)


def random_weights(model):
    """Weights that keep the scale of activations, and statistics of batch normalisation that are not trivial."""
    torch.manual_seed(1)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.1, 0.1)
            nn.init.uniform_(part.running_var, 0.8, 1.2)
            nn.init.uniform_(part.weight, 0.4, 0.8)
        elif isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_in")
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)
    return model.eval()
