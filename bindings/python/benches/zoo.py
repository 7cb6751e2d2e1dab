"""The models of the zoo against PyTorch: names and shapes of parameters, outputs, losses and gradients.

    cargo build --release
    python3 bindings/python/benches/zoo.py [--of-opt target/release/of-opt] [--only NAME]

Each model of `of-opt zoo` is also a module of torchvision or transformers, or one that is written here with the structure of its
reference (MLPerf, facebookresearch/dlrm, DeepCTR-Torch, insightface), whose names it has. Its state dict is the file of the setting
`weights`. Compared are the names and shapes of all parameters, the outputs of `of-opt run`, the outputs of onnxruntime on the exported
model, the loss of a step of `of-opt train`, running statistics, and gradients, which are the differences that one step of SGD makes. PyTorch
computes in f64. Differences are at most 1e-4 of the largest number of a tensor, for gradients of the norm. In networks of many ReLUs
and batch normalisations of small batches, rounding switches some ReLUs, and gradients in any f32 differ by more: there the limit is five
times the difference of PyTorch's own f32, which is the last column. The last line is the number of models that are equal. It needs torch, torchvision, transformers, safetensors and onnxruntime.
"""

import argparse
import copy
import fnmatch
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors.numpy import load_file, save_file
from torch import nn
from torch.nn import functional

TOLERANCE = 1e-4
# How much further from f64 than PyTorch's f32 gradients may be, where ReLUs switch by rounding.
SPREAD = 5
# Large, so that the difference of two f32 parameters has all digits of the gradient.
RATE = 1e4


class Ncf(nn.Module):
    """NeuMF of MLPerf's recommendation benchmark."""

    def __init__(self, users, items, factors, layers):
        super().__init__()
        self.mf_user_embed = nn.Embedding(users, factors)
        self.mf_item_embed = nn.Embedding(items, factors)
        self.mlp_user_embed = nn.Embedding(users, layers[0] // 2)
        self.mlp_item_embed = nn.Embedding(items, layers[0] // 2)
        self.mlp = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(layers))
        self.final = nn.Linear(layers[-1] + factors, 1)

    def forward(self, user, item):
        product = self.mf_user_embed(user) * self.mf_item_embed(item)
        x = torch.cat((self.mlp_user_embed(user), self.mlp_item_embed(item)), dim=1)
        for layer in self.mlp:
            x = functional.relu(layer(x))
        return self.final(torch.cat((product, x), dim=1))


class WideLinear(nn.Module):
    def __init__(self, rows, dense):
        super().__init__()
        self.embedding_dict = nn.ModuleDict({f"C{i + 1}": nn.Embedding(n, 1) for i, n in enumerate(rows)})
        self.weight = nn.Parameter(torch.randn(dense, 1))

    def forward(self, dense, sparse):
        wide = [table(sparse[:, i]) for i, table in enumerate(self.embedding_dict.values())]
        return torch.cat(wide, dim=-1).sum(dim=-1, keepdim=True) + dense @ self.weight


class Deep(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x):
        for layer in self.linears:
            x = functional.relu(layer(x))
        return x


class Prediction(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(1))


class WideDeep(nn.Module):
    """DeepCTR-Torch's WDL."""

    def __init__(self, rows, size, dense, layers):
        super().__init__()
        self.embedding_dict = nn.ModuleDict({f"C{i + 1}": nn.Embedding(n, size) for i, n in enumerate(rows)})
        self.linear_model = WideLinear(rows, dense)
        self.dnn = Deep([len(rows) * size + dense, *layers])
        self.dnn_linear = nn.Linear(layers[-1], 1, bias=False)
        self.out = Prediction()

    def forward(self, dense, sparse):
        deep = [table(sparse[:, i]) for i, table in enumerate(self.embedding_dict.values())]
        deep = self.dnn_linear(self.dnn(torch.cat([*deep, dense], dim=1)))
        return self.linear_model(dense, sparse) + deep + self.out.bias


class Dlrm(nn.Module):
    """DLRM_Net of facebookresearch/dlrm, without its last sigmoid."""

    def __init__(self, rows, size, dense, bottom, top):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(n, size, mode="sum") for n in rows)
        pairs = (len(rows) + 1) * len(rows) // 2
        self.bot_l = self.perceptron([dense, *bottom], True)
        self.top_l = self.perceptron([size + pairs, *top], False)

    @staticmethod
    def perceptron(widths, is_closed):
        layers = []
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            layers.append(nn.Linear(a, b))
            if is_closed or i + 2 < len(widths):
                layers.append(nn.ReLU())
        return nn.Sequential(*layers)

    def forward(self, dense, sparse):
        x = self.bot_l(dense)
        vectors = [table(sparse[:, i : i + 1]) for i, table in enumerate(self.emb_l)]
        all = torch.cat([x, *vectors], dim=1).view(x.shape[0], -1, x.shape[1])
        products = torch.bmm(all, all.transpose(1, 2))
        i, j = torch.tril_indices(all.shape[1], all.shape[1], offset=-1)
        return self.top_l(torch.cat([x, products[:, i, j]], dim=1))


class Table(nn.Module):
    def __init__(self, rows, size):
        super().__init__()
        self.embedding = nn.Embedding(rows, size)
        self.size = size

    def forward(self, tokens):
        return self.embedding(tokens) * math.sqrt(self.size)


class Positions(nn.Module):
    def __init__(self, count, size):
        super().__init__()
        factors = torch.exp(-torch.arange(0, size, 2).double() * math.log(10000) / size)
        at = torch.arange(0, count).double().reshape(count, 1)
        table = torch.zeros((count, size), dtype=torch.float64)
        table[:, 0::2], table[:, 1::2] = torch.sin(at * factors), torch.cos(at * factors)
        self.register_buffer("pos_embedding", table)

    def forward(self, x):
        return x + self.pos_embedding[: x.shape[1]].to(x.dtype)


class Translation(nn.Module):
    """Seq2SeqTransformer of PyTorch's tutorial on translation, with the batch first."""

    def __init__(self, layers, hidden, heads, inner, source, target, positions):
        super().__init__()
        self.transformer = nn.Transformer(hidden, heads, layers, layers, inner, dropout=0.0, batch_first=True)
        self.generator = nn.Linear(hidden, target)
        self.src_tok_emb = Table(source, hidden)
        self.tgt_tok_emb = Table(target, hidden)
        self.positional_encoding = Positions(positions, hidden)

    def forward(self, source, target):
        x, y = (self.positional_encoding(e(t)) for e, t in ((self.src_tok_emb, source), (self.tgt_tok_emb, target)))
        future = torch.ones(y.shape[1], y.shape[1]).triu(1).bool()
        mixed = self.transformer(
            x, y, tgt_mask=future, src_key_padding_mask=source == 1, tgt_key_padding_mask=target == 1,
            memory_key_padding_mask=source == 1,
        )  # fmt: skip
        return self.generator(mixed)


class ImprovedBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        return y + (x if self.downsample is None else self.downsample(x))


class Head(nn.Module):
    def __init__(self, classes, features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features))


class ArcFace(nn.Module):
    """insightface's IResNet with the margin softmax of its losses.py."""

    def __init__(self, layers, width, features, classes, size, scale, margin):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.prelu = nn.PReLU(width)
        inputs = width
        for i, count in enumerate(layers):
            blocks = []
            for k in range(count):
                blocks.append(ImprovedBlock(inputs, width << i, 2 if k == 0 else 1))
                inputs = width << i
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.bn2 = nn.BatchNorm2d(inputs)
        self.fc = nn.Linear(inputs * (size // 16) ** 2, features)
        self.features = nn.BatchNorm1d(features)
        self.head = Head(classes, features)
        self.scale, self.margin = scale, margin

    def forward(self, image):
        x = self.prelu(self.bn1(self.conv1(image)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.features(self.fc(torch.flatten(self.bn2(x), 1)))

    def loss(self, image, labels):
        x = functional.normalize(self(image))
        cosines = functional.linear(x, functional.normalize(self.head.weight)).clamp(-1, 1)
        at = torch.arange(len(labels))
        target = cosines[at, labels]
        moved = target * math.cos(self.margin) - torch.sqrt(1 - target**2) * math.sin(self.margin)
        limit = math.cos(math.pi - self.margin)
        moved = torch.where(target > limit, moved, target - math.sin(math.pi - self.margin) * self.margin)
        scores = cosines.clone()
        scores[at, labels] = moved
        return functional.cross_entropy(self.scale * scores, labels)


class Backbone(nn.Module):
    """torchvision's ResNet-34 as MLPerf's SSD has it: without the last stage, and with steps of 1 in the third."""

    def __init__(self, layers):
        super().__init__()
        from torchvision.models.resnet import BasicBlock, ResNet

        parts = list(ResNet(BasicBlock, [*layers, 1]).children())
        self.layer1 = nn.Sequential(*parts[:6])
        self.layer2 = nn.Sequential(*parts[6:7])
        for block in self.layer2[0]:
            block.conv1.stride = (1, 1)
            if block.downsample is not None:
                block.downsample[0].stride = (1, 1)

    def forward(self, image):
        return self.layer2(self.layer1(image))


def default_boxes():
    """MLPerf's dboxes300_coco, as centres and sides."""
    boxes, sides = [], [21, 45, 99, 153, 207, 261, 315]
    maps = zip([38, 19, 10, 5, 3, 1], [8, 16, 32, 64, 100, 300], [[2], [2, 3], [2, 3], [2, 3], [2], [2]], strict=True)
    for at, (extent, step, ratios) in enumerate(maps):
        small, large = sides[at] / 300, sides[at + 1] / 300
        sizes = [(small, small), (math.sqrt(small * large),) * 2]
        for ratio in ratios:
            w, h = small * math.sqrt(ratio), small / math.sqrt(ratio)
            sizes += [(w, h), (h, w)]
        for w, h in sizes:
            for i, j in itertools.product(range(extent), repeat=2):
                boxes.append(((j + 0.5) * step / 300, (i + 0.5) * step / 300, w, h))
    return torch.tensor(boxes, dtype=torch.float64).clamp(0, 1)


class Ssd(nn.Module):
    """MLPerf's SSD300 with its Encoder and Loss."""

    def __init__(self, layers, classes):
        super().__init__()
        self.model = Backbone(layers)
        self.classes = classes
        channels, more = [256, 512, 512, 256, 256, 256], [(256, 2, 1), (256, 2, 1), (128, 2, 1), (128, 1, 0), (128, 1, 0)]
        self.additional_blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, inner, 1), nn.ReLU(), nn.Conv2d(inner, b, 3, stride, padding), nn.ReLU())
            for (a, b), (inner, stride, padding) in zip(itertools.pairwise(channels), more, strict=True)
        )
        counts = [4, 6, 6, 6, 4, 4]
        self.loc = nn.ModuleList(nn.Conv2d(c, 4 * n, 3, padding=1) for c, n in zip(channels, counts, strict=True))
        self.conf = nn.ModuleList(nn.Conv2d(c, classes * n, 3, padding=1) for c, n in zip(channels, counts, strict=True))

    def forward(self, image):
        maps = [self.model(image)]
        for block in self.additional_blocks:
            maps.append(block(maps[-1]))
        places = [head(m).flatten(2).reshape(len(image), 4, -1) for head, m in zip(self.loc, maps, strict=True)]
        scores = [head(m).flatten(2).reshape(len(image), self.classes, -1) for head, m in zip(self.conf, maps, strict=True)]
        return torch.cat(places, 2), torch.cat(scores, 2)

    def encode(self, boxes, labels):
        from torchvision.ops import box_iou

        centres = default_boxes()
        corners = torch.cat([centres[:, :2] - centres[:, 2:] / 2, centres[:, :2] + centres[:, 2:] / 2], dim=1)
        overlap = box_iou(boxes, corners)
        best, object = overlap.max(dim=0)
        _, default = overlap.max(dim=1)
        best.index_fill_(0, default, 2.0)
        for i, d in enumerate(default):
            object[d] = i
        found = best > 0.5
        out = corners.clone()
        out[found] = boxes[object[found]]
        classes = torch.zeros(len(corners), dtype=torch.long)
        classes[found] = labels[object[found]]
        return torch.cat([(out[:, :2] + out[:, 2:]) / 2, out[:, 2:] - out[:, :2]], dim=1).T, classes

    def loss(self, image, boxes, labels):
        places, scores = (y.double() for y in self(image))
        boxes = boxes.double()
        encoded = [self.encode(b[own > 0], own[own > 0]) for b, own in zip(boxes, labels, strict=True)]
        wanted, classes = torch.stack([e[0] for e in encoded]), torch.stack([e[1] for e in encoded])
        centres = default_boxes().T[None]
        differences = 10 * (wanted[:, :2] - centres[:, :2]) / centres[:, 2:]
        sides = 5 * (wanted[:, 2:] / centres[:, 2:]).log()
        found = classes > 0
        each = functional.smooth_l1_loss(places, torch.cat([differences, sides], 1), reduction="none").sum(1)
        place_loss = (found * each).sum(1)
        entropy = functional.cross_entropy(scores, classes, reduction="none")
        negative = entropy.clone()
        negative[found] = 0
        rank = negative.sort(1, descending=True)[1].sort(1)[1]
        mined = rank < (3 * found.sum(1)).clamp(max=found.shape[1])[:, None]
        score_loss = (entropy * (found.double() + mined.double())).sum(1)
        count = found.sum(1)
        return ((place_loss + score_loss) * (count > 0) / count.clamp(min=1e-6)).mean()


class Case:
    """A model: its settings, its module, inputs and labels, and the loss of the module."""

    def __init__(self, settings, module, inputs, labels, loss, flags, outputs=None):
        self.settings, self.module, self.inputs, self.labels = settings, module, inputs, labels
        self.loss, self.flags = loss, flags
        self.outputs = outputs or (lambda module, inputs: [module(*inputs.values())])


def ids(low, high, *dims):
    return torch.randint(low, high, dims)


def classes_loss(module, inputs, labels):
    return functional.cross_entropy(module(*inputs.values()), labels["labels"])


def clicks_loss(module, inputs, labels):
    return functional.binary_cross_entropy_with_logits(module(*inputs.values()), labels["labels"])


def probabilities(module, inputs):
    return [torch.sigmoid(module(*inputs.values()))]


def tokens_loss(logits, labels):
    return functional.cross_entropy(logits.transpose(1, 2), labels["labels"])


def resnet50():
    from torchvision.models.resnet import Bottleneck, ResNet

    module = ResNet(Bottleneck, [3, 4, 6, 3], num_classes=10)
    data, labels = {"image": torch.randn(8, 3, 64, 64)}, {"labels": ids(0, 10, 8)}
    return Case("classes=10,size=64", module, data, labels, classes_loss, ["--loss", "cross-entropy"])


def bert():
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    )  # fmt: skip
    mask = torch.ones(4, 16, dtype=torch.long)
    mask[1, 10:] = 0
    # transformers gives token 0 no gradient as an input: it fills texts up.
    data = {"input_ids": ids(1, 64, 4, 16), "token_type_ids": ids(0, 2, 4, 16), "attention_mask": mask}
    labels = {"labels": ids(0, 64, 4, 16), "next_sentence_label": ids(0, 2, 4)}
    labels["labels"][:, ::2] = -100

    def outputs(module, inputs):
        out = module(**inputs)
        return [out.prediction_logits, out.seq_relationship_logits]

    def loss(module, inputs, labels):
        return module(**inputs, **labels).loss

    return Case("small", BertForPreTraining(config), data, labels, loss, ["--loss", "output"], outputs)


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    data = {"input_ids": ids(0, 64, 4, 16)}
    flags = ["--loss", "cross-entropy", "--class-axis", "-1"]

    def loss(module, inputs, labels):
        return tokens_loss(module(**inputs).logits, labels)

    return Case("small", GPT2LMHeadModel(config), data, {"labels": ids(0, 64, 4, 16)}, loss, flags,
                lambda module, inputs: [module(**inputs).logits])  # fmt: skip


def clicks(module, data, settings="small"):
    labels = {"labels": ids(0, 2, len(next(iter(data.values()))), 1).float()}
    return Case(settings, module, data, labels, clicks_loss, ["--loss", "bce"], probabilities)


def ncf():
    return clicks(Ncf(100, 80, 8, [16, 16, 8]), {"user": ids(0, 100, 8), "item": ids(0, 80, 8)})


ROWS = [50, 20, 100, 7]


def criteo():
    return {"dense": torch.randn(8, 13), "sparse": torch.stack([ids(0, rows, 8) for rows in ROWS], dim=1)}


def wide_deep():
    return clicks(WideDeep(ROWS, 4, 13, [16, 8]), criteo())


def dlrm():
    return clicks(Dlrm(ROWS, 4, 13, [8, 4], [16, 1]), criteo())


def transformer():
    module = Translation(2, 32, 2, 64, 32, 32, 64)
    source, target, labels = ids(2, 32, 4, 12), ids(2, 32, 4, 10), ids(2, 32, 4, 10)
    source[0, 9:], target[2, 7:], labels[2, 7:] = 1, 1, -100
    flags = ["--loss", "cross-entropy", "--class-axis", "-1"]

    def loss(module, inputs, labels):
        return tokens_loss(module(*inputs.values()), labels)

    return Case("small", module, {"source": source, "target": target}, {"labels": labels}, loss, flags)


def arcface_resnet50():
    module = ArcFace([1, 1, 1, 1], 8, 16, 10, 32, 16, 0.5)

    def loss(module, inputs, labels):
        return module.loss(inputs["image"], labels["labels"])

    labels = {"labels": ids(0, 10, 8)}
    return Case("small", module, {"image": torch.randn(8, 3, 32, 32)}, labels, loss, ["--loss", "output"])


def ssd_resnet34():
    module = Ssd([1, 1, 1], 4)
    corner = torch.rand(2, 3, 2, dtype=torch.float64) * 0.5
    boxes = torch.cat([corner, corner + 0.15 + 0.3 * torch.rand(2, 3, 2, dtype=torch.float64)], dim=2)
    # The second image has two objects, the list of which is filled up.
    labels = {"boxes": boxes, "labels": torch.tensor([[1, 2, 3], [2, 3, 0]])}

    def loss(module, inputs, labels):
        return module.loss(inputs["image"], labels["boxes"], labels["labels"])

    return Case("layers=1-1-1,classes=4", module, {"image": torch.randn(2, 3, 300, 300)}, labels, loss,
                ["--loss", "output"], lambda module, inputs: list(module(*inputs.values())))  # fmt: skip


def mask_rcnn():
    from torchvision.models.detection import MaskRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
    from torchvision.models.detection.image_list import ImageList
    from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
    from torchvision.models.resnet import Bottleneck, ResNet
    from torchvision.ops import FrozenBatchNorm2d

    channels, hidden, classes, size, most = 32, 64, 4, 256, 12
    body = ResNet(Bottleneck, [1, 1, 1, 1], norm_layer=FrozenBatchNorm2d)
    layers = {f"layer{i + 1}": str(i) for i in range(4)}
    backbone = BackboneWithFPN(body, layers, [256, 512, 1024, 2048], channels)
    sides = ((32,), (64,), (96,), (128,), (192,))
    # All anchors and proposals are samples, so that none is drawn at random.
    module = MaskRCNN(
        backbone, rpn_anchor_generator=AnchorGenerator(sides, ((0.5, 1.0, 2.0),) * 5),
        rpn_pre_nms_top_n_train=60, rpn_pre_nms_top_n_test=50, rpn_post_nms_top_n_train=40, rpn_post_nms_top_n_test=30,
        rpn_batch_size_per_image=100000, box_batch_size_per_image=1000, box_detections_per_img=most,
        box_head=TwoMLPHead(channels * 49, hidden), box_predictor=FastRCNNPredictor(hidden, classes),
        mask_head=MaskRCNNHeads(channels, (channels,) * 4, 1), mask_predictor=MaskRCNNPredictor(channels, channels, classes),
    )  # fmt: skip
    for part in module.modules():
        if isinstance(part, FrozenBatchNorm2d):
            for buffer in part.buffers():
                buffer += 0.1 * torch.rand_like(buffer)
    # First values of the head give all anchors almost the same score, whose order is that of rounding.
    module.rpn.head.cls_logits.weight.data *= 100
    module.rpn.head.bbox_pred.weight.data *= 5
    module.roi_heads.box_predictor.cls_score.weight.data *= 5

    corner = torch.rand(2, 3, 2, dtype=torch.float64) * 120
    boxes = torch.cat([corner, corner + 20 + 110 * torch.rand(2, 3, 2, dtype=torch.float64)], dim=2).float()
    labels = torch.tensor([[1, 2, 3], [2, 3, 0]])
    masks = torch.zeros(2, 3, size, size, dtype=torch.uint8)
    for image in range(2):
        for i, (left, top, right, bottom) in enumerate(boxes[image].round().long().tolist()):
            masks[image, i, top:bottom, left:right] = 1
            masks[image, i, top : top + 10, left : left + 10] = 0
    data = {"image": torch.randn(2, 3, size, size)}

    def parts(module, image):
        return ImageList(image, [(size, size)] * len(image)), module.backbone(image)

    def loss(module, inputs, labels):
        targets = [
            {"boxes": b[own > 0], "labels": own[own > 0], "masks": m[own > 0]}
            for b, own, m in zip(labels["boxes"], labels["labels"], labels["masks"], strict=True)
        ]
        images, maps = parts(module, inputs["image"])
        proposals, first = module.rpn(images, maps, targets)
        _, second = module.roi_heads(maps, proposals, images.image_sizes, targets)
        return sum(first.values()) + sum(second.values())

    def outputs(module, inputs):
        images, maps = parts(module, inputs["image"])
        proposals, _ = module.rpn(images, maps)
        found, _ = module.roi_heads(maps, proposals, images.image_sizes)
        out = []
        for name, filler in [("boxes", [0.0, 0.0, 1.0, 1.0]), ("labels", 0), ("scores", 0.0), ("masks", None)]:
            rows = []
            for own in found:
                values = own[name].squeeze(1) if name == "masks" else own[name]
                rest = most - len(values)
                # Masks that fill lists up are of no detection.
                more = torch.zeros(rest, 28, 28) if filler is None else torch.tensor([filler] * rest).reshape(rest, *values.shape[1:])
                rows.append(torch.cat([values, more.to(values)]))
            out.append(torch.stack(rows))
        return out

    settings = (
        f"layers=1-1-1-1,channels={channels},hidden={hidden},classes={classes},size={size},anchors=32-64-96-128-192,candidates=60,"
        f"proposals=40,test_candidates=50,test_proposals=30,anchor_samples=100000,box_samples=1000,detections={most},objects=3"
    )
    return Case(settings, module, data, {"boxes": boxes, "labels": labels, "masks": masks}, loss, ["--loss", "output"], outputs)


CASES = [resnet50, bert, gpt2, ncf, wide_deep, dlrm, transformer, arcface_resnet50, ssd_resnet34, mask_rcnn]


def run(of_opt, arguments, folder):
    done = subprocess.run([of_opt, *arguments], capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise RuntimeError(f"of-opt {' '.join(arguments[:2])}: {done.stderr.strip()[-1500:]}")
    return done.stdout


def difference(ours, theirs, floor=0.0):
    """The largest difference, relative to the largest number."""
    scale = max(float(numpy.abs(theirs).max(initial=0.0)), floor, 1e-30)
    return float(numpy.abs(ours.astype(numpy.float64) - theirs).max(initial=0.0)) / scale


def distance(ours, theirs, floor):
    """The norm of the difference, relative to the norm."""
    return float(numpy.linalg.norm(ours.astype(numpy.float64) - theirs)) / max(float(numpy.linalg.norm(theirs)), floor)


def as_double(values):
    return {name: v.double() if v.is_floating_point() else v for name, v in values.items()}


def check(make, of_opt, folder):
    """Prints the differences of a model, and returns whether they are small."""
    import onnxruntime

    torch.manual_seed(7)
    name, case = make.__name__, make()
    case.module.float()
    for parameter in case.module.parameters():
        # Norms and biases that are all 1 or 0 would hide errors.
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    state = {k: v.detach().clone().numpy() for k, v in case.module.state_dict().items()}
    save_file({k: numpy.ascontiguousarray(v) for k, v in state.items()}, os.path.join(folder, "state.safetensors"))
    text = f"zoo:{name}:{case.settings},weights=state.safetensors"
    data = {k: v.float() if v.is_floating_point() else v for k, v in {**case.inputs, **case.labels}.items()}
    numpy.savez(os.path.join(folder, "data.npz"), **{k: v.numpy() for k, v in data.items()})
    data = as_double(data)
    inputs, labels = {k: data[k] for k in case.inputs}, {k: data[k] for k in case.labels}

    run(of_opt, ["export", text, "-o", "model.onnx"], folder)
    session = onnxruntime.InferenceSession(os.path.join(folder, "model.onnx"), providers=["CPUExecutionProvider"])
    feeds = {k: v.numpy() if not v.is_floating_point() else v.float().numpy() for k, v in inputs.items()}
    single = copy.deepcopy(case.module).train()
    case.module.double().eval()
    with torch.no_grad():
        expected = [y.numpy() for y in case.outputs(case.module, inputs)]
    exported = [difference(y, e) for y, e in zip(session.run(None, feeds), expected, strict=True)]
    for k, v in feeds.items():
        numpy.save(os.path.join(folder, f"{k}.npy"), v)
    files = [f"{k}={k}.npy" for k in feeds]
    run(of_opt, ["run", text, "--inputs", *files, "--outputs", "out", "--output-format", "npy"], folder)
    own = [numpy.load(os.path.join(folder, "out", f"output_{i}.npy")) for i in range(len(expected))]
    ran = [difference(y, e) for y, e in zip(own, expected, strict=True)]

    batch = str(len(next(iter(data.values()))))
    flags = ["--data", "data.npz", *case.flags, "--optimizer", "sgd", "--learning-rate", str(RATE), "--schedule", "constant"]
    out = run(of_opt, ["train", text, *flags, "--batch", batch, "--epochs", "1", "--json", "-o", "after.safetensors"], folder)
    loss = json.loads(out.splitlines()[-1])["loss"]
    after = load_file(os.path.join(folder, "after.safetensors"))
    case.module.train()
    case.module.zero_grad()
    expected_loss = case.loss(case.module, inputs, labels)
    expected_loss.backward()
    lower = [{k: v.float() if v.is_floating_point() else v for k, v in part.items()} for part in (inputs, labels)]
    case.loss(single, *lower).backward()
    single = {k: p.grad.numpy() for k, p in single.named_parameters()}
    gradients = {k: p.grad.numpy() for k, p in case.module.named_parameters()}
    # Gradients that are 0 but for rounding are compared with the largest of all.
    floor = 1e-3 * max(float(numpy.linalg.norm(g)) for g in gradients.values())
    unused = [s for s in (UNUSED.get(name, [])) + ["*.num_batches_tracked"]]
    known = {k for k in state if not any(fnmatch.fnmatch(k, pattern) for pattern in unused)}
    same_names = known == set(after) and all(tuple(after[k].shape) == tuple(state[k].shape) for k in known)
    worst, where, rounding = 0.0, "", 0.0
    for k, gradient in gradients.items():
        if k in after:
            rounding = max(rounding, distance(single[k], gradient, floor))
            own = (state[k].astype(numpy.float64) - after[k]) / RATE
            d = distance(own, gradient, floor)
            worst, where = max((worst, where), (d, k))
    statistics = [difference(after[k], b.numpy()) for k, b in case.module.named_buffers() if k in after]
    loss_difference = abs(loss - expected_loss.item()) / abs(expected_loss.item())
    figures = [max(exported), max(ran), loss_difference, max(statistics, default=0.0), worst]
    is_equal = same_names and all(f <= TOLERANCE for f in figures[:-1]) and worst <= max(TOLERANCE, SPREAD * rounding)
    count = sum(v.size for k, v in state.items() if k in known)
    columns = "  ".join(f"{f:10.1e}" for f in [*figures, rounding])
    names = "same names" if same_names else f"names differ: {sorted(known ^ set(after))[:4]}"
    print(f"{name:18} {count:9}  {columns}  {names}{'' if is_equal else f'  DIFFERENT, {where}'}", flush=True)
    return is_equal


UNUSED = {
    "bert": ["bert.embeddings.position_ids", "cls.predictions.decoder.*"],
    "gpt2": ["lm_head.weight", "*.attn.bias", "*.attn.masked_bias"],
    "transformer": ["positional_encoding.pos_embedding"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--of-opt", default="target/release/of-opt")
    parser.add_argument("--only")
    options = parser.parse_args()
    torch.set_num_threads(2)
    cases = [make for make in CASES if options.only in (None, make.__name__)]
    titles = ["exported", "run", "loss", "statistics", "gradients", "PyTorch's"]
    print(f"{'model':18} {'numbers':>9}  " + "  ".join(f"{t:>10}" for t in titles))
    equal = 0
    for make in cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                equal += check(make, os.path.abspath(options.of_opt), folder)
            except Exception as error:  # of one model, which is reported and counted
                print(f"{make.__name__:18} {error}", flush=True)
    print(f"{equal} of {len(cases)} models are equal to PyTorch's")
    sys.exit(0 if equal == len(cases) else 1)


if __name__ == "__main__":
    main()
