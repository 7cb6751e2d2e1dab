"""One other program on one model, on the GPU: python3 peers.py NAME CASE SECONDS. Prints milliseconds as JSON, or fails."""

import json
import pathlib
import sys
import time


def timed(run, seconds):
    """Least and median milliseconds of a run that waits for the GPU."""
    for _ in range(5):
        run()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    times.sort()
    return {"min_ms": times[0], "median_ms": times[len(times) // 2], "runs": len(times)}


def of_torch(case, seconds, compiled):
    """The model of that name in torchvision: how long it takes does not depend on its weights."""
    import torch
    import torchvision

    model = torchvision.models.get_model(case.name, weights=None).eval().cuda()
    if compiled:
        model = torch.compile(model, mode="max-autotune")
    x = torch.rand(1, 3, 224, 224)

    def run():
        with torch.inference_mode():
            model(x.cuda()).cpu()

    return {**timed(run, seconds), "version": torch.__version__}


def of_onnxruntime(case, seconds):
    import numpy
    import onnxruntime

    if not (case / "model.onnx").exists():
        raise SystemExit("the model was too large to be packed")
    session = onnxruntime.InferenceSession(case / "model.onnx", providers=["CUDAExecutionProvider"])
    if "CUDAExecutionProvider" not in session.get_providers():
        raise SystemExit("onnxruntime has no CUDA here")
    random = numpy.random.default_rng(0)
    kinds = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64, "tensor(uint8)": numpy.uint8}

    def made_up(i):
        dims = [d if isinstance(d, int) else 1 for d in i.shape]
        kind = kinds[i.type]
        return random.random(dims, numpy.float32) if kind is numpy.float32 else numpy.ones(dims, kind)

    feeds = {i.name: made_up(i) for i in session.get_inputs()}
    return {**timed(lambda: session.run(None, feeds), seconds), "version": onnxruntime.__version__}


def main():
    name, case, seconds = sys.argv[1], pathlib.Path(sys.argv[2]), float(sys.argv[3])
    found = of_onnxruntime(case, seconds) if name == "onnxruntime" else of_torch(case, seconds, name == "torch.compile")
    print(json.dumps(found))


main()
