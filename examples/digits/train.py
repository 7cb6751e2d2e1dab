#!/usr/bin/env python3
"""Trains a small CNN on scikit-learn's handwritten digits (1,797 images of 8x8 pixels) and writes, into the folder of this file,

  digits.onnx          the model: image [N, 1, 8, 8] with values 0..16 -> probability [N, 10]
  images.npy           eight images that it was not trained on
  images.txt           the same as text, to look at, with their labels
  labels.txt           names of the ten classes
  untrained.onnx       the network before training: image [N, 1, 8, 8] -> scores [N, 10]
  train.npz, test.npz  the images and labels that it is trained and tested on

Needs: pip install torch onnx scikit-learn.   Takes about ten seconds on one core.
"""
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).parent
torch.manual_seed(0)

data = load_digits()
x = torch.tensor(data.images, dtype=torch.float32)[:, None]
y = torch.tensor(data.target)
train_x, test_x, train_y, test_y = train_test_split(x, y, test_size=360, random_state=0, stratify=y)


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )
        self.classify = nn.Linear(32 * 2 * 2, 10)

    def forward(self, image):
        return self.scores(image).softmax(1)

    def scores(self, image):
        return self.classify(self.features(image / 16.0).flatten(1))


class Scores(nn.Module):
    def __init__(self, digits):
        super().__init__()
        self.digits = digits

    def forward(self, image):
        return self.digits.scores(image)


def export(model, name, output, **options):
    torch.onnx.export(model.eval(), (test_x[:1],), HERE / name, dynamo=False, opset_version=17, input_names=["image"],
                      output_names=[output], dynamic_axes={"image": {0: "N"}, output: {0: "N"}}, **options)


model = Digits()
# Folding would merge the batch normalisations, which training needs, into the convolutions.
export(Scores(model), "untrained.onnx", "scores", do_constant_folding=False)
for name, images, labels in [("train", train_x, train_y), ("test", test_x, test_y)]:
    np.savez_compressed(HERE / f"{name}.npz", image=images.numpy().astype(np.uint8), labels=labels.numpy().astype(np.uint8))
optimizer = torch.optim.Adam(model.parameters(), 2e-3)
for epoch in range(20):
    model.train()
    for batch in torch.randperm(len(train_x)).split(64):
        loss = nn.functional.nll_loss(model(train_x[batch]).clamp_min(1e-9).log(), train_y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
print(f"accuracy on {len(test_x)} images that were held out: {accuracy:.4f}")

export(model, "digits.onnx", "probability")
picked = [int((test_y == d).nonzero()[0]) for d in (7, 0, 3, 9, 1, 4, 8, 2)]
np.save(HERE / "images.npy", test_x[picked].numpy())
(HERE / "labels.txt").write_text("\n".join(map(str, range(10))) + "\n")
shades = " .:-=+*#%@"
with open(HERE / "images.txt", "w") as f:
    for i, k in enumerate(picked):
        f.write(f"image {i}: a handwritten {int(test_y[k])}\n")
        for row in test_x[k, 0].numpy():
            f.write("    " + "".join(shades[min(9, int(v * 10 / 17))] * 2 for v in row).rstrip() + "\n")
        f.write("\n")
