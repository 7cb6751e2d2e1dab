"""Images of a training on one core: how many a second `of-opt train` reads, decodes, crops at random, scales, mirrors and normalizes.

    cargo build --release
    python3 bindings/python/benches/train_images.py [--of-opt target/release/of-opt] [--images 600] [--size 500x375] [--quality 90] [--rounds 5]

The images are noise whose spectrum falls like that of photographs, as JPEG files. All make float samples of 3x224x224. of-opt trains a network
that is almost free: the mean of each channel and a linear layer; its figure is that of its last epochs, steps included. The others make
samples alone: simplejpeg and Pillow decode and scale, and NumPy normalizes; torchvision's transforms do the same with Pillow, as the data
sets of PyTorch do. The first line is simplejpeg that only decodes. Rounds alternate, and the median counts. It needs numpy, pillow,
simplejpeg, torch, torchvision and onnx.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Epochs that of-opt trains; the first one starts with an empty queue.
EPOCHS = 4
# Different images, each of which is in several files.
PICTURES = 24
BATCH = 32


def photograph(rng, width, height):
    """Noise whose amplitudes fall with the frequency, as those of photographs do."""
    frequencies = numpy.hypot(numpy.fft.fftfreq(height)[:, None], numpy.fft.rfftfreq(width)[None, :])
    amplitudes = 1 / numpy.maximum(frequencies, 1 / width)
    shape = (3, *amplitudes.shape)
    waves = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) * amplitudes
    pixels = numpy.fft.irfft2(waves, s=(height, width))
    # The channels of photographs are much alike.
    pixels = pixels.mean(0) + 0.2 * (pixels - pixels.mean(0))
    pixels = 128 + 50 * pixels / pixels.std()
    return numpy.clip(pixels, 0, 255).astype(numpy.uint8).transpose(1, 2, 0)


def write_images(folder, count, size, quality):
    """Folders of two classes; returns the files and their mean bytes."""
    from PIL import Image

    rng, pictures, files = numpy.random.default_rng(0), [], []
    for _ in range(PICTURES):
        out = io.BytesIO()
        Image.fromarray(photograph(rng, *size)).save(out, "JPEG", quality=quality)
        pictures.append(out.getvalue())
    for number in range(count):
        path = os.path.join(folder, "ab"[number % 2], f"{number:05}.jpg")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(pictures[number % PICTURES])
        files.append(path)
    return files, sum(map(len, pictures)) / len(pictures)


def write_network(path):
    from onnx import TensorProto, helper, numpy_helper, save

    weight = numpy.random.default_rng(1).standard_normal((2, 3)).astype(numpy.float32)
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight", "bias"], ["y"], transB=1),
    ]
    tensors = [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(numpy.zeros(2, numpy.float32), "bias")]
    value = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    graph = helper.make_graph(nodes, "mean", [value("x", ["n", 3, SIDE, SIDE])], [value("y", ["n", 2])], tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def of_opt(options, folder):
    network = os.path.join(folder, "mean.onnx")
    write_network(network)
    numbers = lambda values: ",".join(map(str, values))
    command = [options.of_opt, "train", network, "--data", os.path.join(folder, "images"), "--batch", str(BATCH)]
    command += ["--epochs", str(EPOCHS), "--random-crop", "0.08", "--random-flip", "--threads", "1", "--json"]
    command += ["--image-mean", numbers(MEAN), "--image-std", numbers(STD), "-o", os.path.join(folder, "trained.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "RAYON_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-2000:])
    rates = [json.loads(line)["samples_per_second"] for line in done.stdout.splitlines() if line.startswith("{")]
    return statistics.median(rates[1:])


def part(rng, width, height):
    """A part as torchvision's RandomResizedCrop draws it."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        sides = numpy.exp(rng.uniform(numpy.log(3 / 4), numpy.log(4 / 3)))
        w, h = round((area * sides) ** 0.5), round((area / sides) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
            return left, top, left + w, top + h
    return 0, 0, width, height


def samples(kind, files):
    """Makes one sample of each file."""
    import simplejpeg
    from PIL import Image

    rng = numpy.random.default_rng(2)
    mean, std = (numpy.array(of, numpy.float32).reshape(3, 1, 1) for of in (MEAN, STD))
    transform = None
    if kind == "torchvision":
        import torch
        from torchvision import transforms

        torch.set_num_threads(1)
        transform = transforms.Compose([
            transforms.RandomResizedCrop(SIDE),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ])
    for path in files:
        if transform is not None:
            transform(Image.open(path).convert("RGB"))
            continue
        with open(path, "rb") as file:
            pixels = simplejpeg.decode_jpeg(file.read(), fastdct=True)
        if kind == "decoding":
            continue
        box = part(rng, pixels.shape[1], pixels.shape[0])
        shown = numpy.asarray(Image.fromarray(pixels).resize((SIDE, SIDE), Image.BILINEAR, box=box))
        if rng.random() < 0.5:
            shown = shown[:, ::-1]
        (shown.transpose(2, 0, 1).astype(numpy.float32) / 255 - mean) / std


def rate(kind, files):
    # Libraries are loaded, and files are in the page cache.
    samples(kind, files[:32])
    began = time.perf_counter()
    samples(kind, files)
    return len(files) / (time.perf_counter() - began)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of-opt", default="target/release/of-opt")
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--size", default="500x375")
    parser.add_argument("--quality", type=int, default=90)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        size = tuple(map(int, options.size.split("x")))
        files, mean = write_images(os.path.join(folder, "images"), options.images, size, options.quality)
        print(f"{options.size}, {mean / 1000:.0f} kB each, images a second on one core")
        peers = {"simplejpeg, decoding alone": "decoding", "simplejpeg, Pillow, NumPy": "simplejpeg", "torchvision, Pillow": "torchvision"}
        rates = {name: [] for name in [*peers, "of-opt train"]}
        for _ in range(options.rounds):
            for name, kind in peers.items():
                rates[name].append(rate(kind, files))
            rates["of-opt train"].append(of_opt(options, folder))
    own = statistics.median(rates["of-opt train"])
    print("| | images a second | of-opt to it |\n|---|---:|---:|")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"| {name} | {median:.0f} | {own / median:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
