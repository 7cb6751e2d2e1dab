"""Runs public programs that import onnxruntime, with onnxruntime and with this package in its place, and compares results and times.

    cargo xtask drop-in-packages && cargo xtask wheel --test
    PYTHONPATH=target/wheels/installed ~/.cache/of-opt/drop-in/bin/python3 bindings/python/benches/drop_in.py [NAME …]

Each program runs in a process of its own and is not changed: before it is imported, ``of_opt.onnxruntime.install()`` takes the name
``onnxruntime``. All models come with the packages. A program whose package is missing is named, and is a failure. The table has the
median time of a call. ``cargo xtask wheel --test`` compares the results. silero_vad is not among the packages that it installs, as it
needs torch; the same model is in faster_whisper.
"""

import argparse
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import time

ROUNDS = 7
RUNTIMES = ("onnxruntime", "of_opt")


def picture(text, size=(480, 120), font_size=48):
    """An RGB image of a text, with the font that Pillow has."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).text((20, 30), text, fill="black", font=ImageFont.load_default(font_size))
    return image


def png(image):
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def photograph(size=320):
    """A smooth pattern of colours, the same in every process."""
    import numpy as np

    y, x = np.mgrid[0:size, 0:size] / size
    waves = [np.sin(7 * x + k) * np.cos(5 * y * (k + 1)) for k in range(3)]
    return (127.5 * (1 + np.stack(waves, axis=-1))).astype(np.uint8)


def rapidocr():
    """Finds lines of text, their direction and their characters: three models."""
    import numpy as np
    from rapidocr_onnxruntime import RapidOCR

    engine = RapidOCR(intra_op_num_threads=1)
    page = np.asarray(picture("Tensor 2026\nPlan 42", (640, 200)))
    return lambda: [[box, text, float(score)] for box, text, score in engine(page)[0]]


def magika():
    """Tells the types of files by their content."""
    from magika import Magika

    classifier = Magika()
    samples = [
        b"def main():\n    import os\n    print(os.getcwd())\n" * 20,
        b"#include <stdio.h>\nint main(void) { return puts(\"x\") < 0; }\n" * 20,
        b"fn main() { let x: Vec<u8> = Vec::new(); println!(\"{x:?}\"); }\n" * 20,
        b"{\"a\": [1, 2, 3], \"b\": {\"c\": null}}\n" * 20,
        png(picture("x")),
    ]

    def run():
        results = [classifier.identify_bytes(sample) for sample in samples]
        return [[result.output.label, float(result.score)] for result in results]

    return run


def nudenet():
    """Detects parts of bodies in a picture: its network sees none here, so the raw scores are compared, too."""
    from nudenet import NudeDetector

    detector = NudeDetector()
    image = photograph()
    session = detector.onnx_session
    feed = {session.get_inputs()[0].name: image.transpose(2, 0, 1)[None].astype("float32") / 255}

    def run():
        scores = session.run(None, feed)[0]
        return [detector.detect(image), list(scores.shape), scores[0, :4, ::97].tolist()]

    return run


def ddddocr():
    """Reads a captcha."""
    import ddddocr

    reader = ddddocr.DdddOcr(show_ad=False)
    captcha = png(picture("a7Kp", (180, 80), 44))
    return lambda: reader.classification(captcha)


def silero_vad():
    """Finds speech in ten seconds of sound: 313 runs of a small recurrent model, whose state the program carries."""
    import torch
    from silero_vad import load_silero_vad

    model = load_silero_vad(onnx=True)
    t = torch.arange(160_000) / 16_000
    voice = sum(torch.sin(2 * torch.pi * 120 * k * t) / k for k in range(1, 20)) * (torch.sin(2 * torch.pi * 3 * t) > 0)
    sound = 0.1 * voice + 0.01 * torch.randn(160_000, generator=torch.Generator().manual_seed(1))
    return lambda: model.audio_forward(sound[None], 16_000)[0].tolist()


def faster_whisper():
    """Finds speech in ten seconds of sound before it is transcribed: a recurrent model, on all windows at a time."""
    import numpy as np
    from faster_whisper.vad import get_speech_timestamps, get_vad_model

    t = np.arange(160_000) / 16_000
    voice = sum(np.sin(2 * np.pi * 120 * k * t) / k for k in range(1, 20)) * (np.sin(2 * np.pi * 0.3 * t) > 0)
    sound = (0.1 * voice + 0.01 * np.random.default_rng(1).standard_normal(160_000)).astype(np.float32)
    probability = get_vad_model()

    def run():
        found = get_speech_timestamps(sound, threshold=0.1, min_silence_duration_ms=100)
        return [[[span["start"], span["end"]] for span in found], probability(sound[:159_744]).ravel().tolist()]

    return run


PROGRAMS = {f.__name__: f for f in (rapidocr, magika, nudenet, ddddocr, faster_whisper)}
# Programs that need more than what is installed for tests: only where they are named.
OTHERS = {f.__name__: f for f in (silero_vad,)}
PACKAGES = {"rapidocr": "rapidocr_onnxruntime"}


def child(name, runtime, rounds):
    """One program with one runtime: its result and times as JSON."""
    if runtime == "of_opt":
        import of_opt.onnxruntime

        of_opt.onnxruntime.install()
    import onnxruntime

    own = onnxruntime.__name__.startswith("of_opt")
    assert own == (runtime == "of_opt"), onnxruntime
    start = time.perf_counter()
    run = {**PROGRAMS, **OTHERS}[name]()
    result = run()
    load = time.perf_counter() - start
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        again = run()
        times.append(time.perf_counter() - start)
    assert again == result, "two runs differ"
    print(json.dumps({"result": result, "load": load, "seconds": statistics.median(times)}))


def run_child(name, runtime, rounds):
    # One thread: a program that leaves the number open would get another one from each runtime.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = ["taskset", "-c", "0", sys.executable, __file__, "--rounds", str(rounds), "--child", name, runtime]
    out = subprocess.run(command, capture_output=True, text=True, env=environment)
    if out.returncode:
        raise SystemExit(f"{name} with {runtime} failed:\n{out.stderr}")
    return json.loads(out.stdout.splitlines()[-1])


def difference(a, b, tolerance=2e-3):
    """The first difference of two results; None if they are equal but for rounding."""
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{len(a)} and {len(b)} items"
        return next((found for found in map(difference, a, b) if found), None)
    if isinstance(a, dict) and isinstance(b, dict):
        return difference(sorted(a.items()), sorted(b.items()))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return None if abs(a - b) <= tolerance * max(1, abs(a)) else f"{a} and {b}"
    return None if a == b else f"{a!r} and {b!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*PROGRAMS, *OTHERS, []], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="calls of which the table has the median time")
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        return child(*arguments.child, arguments.rounds)
    wrong = 0
    print("| program | result | onnxruntime, ms | of_opt, ms | ratio | first call, s |")
    print("|---|---|---|---|---|---|")
    for name in arguments.names or PROGRAMS:
        package = PACKAGES.get(name, name)
        if importlib.util.find_spec(package) is None:
            print(f"| {name} | MISSING: pip install {package} | | | | |")
            wrong += 1
            continue
        theirs, ours = (run_child(name, runtime, arguments.rounds) for runtime in RUNTIMES)
        found = difference(theirs["result"], ours["result"])
        wrong += found is not None
        times = 1e3 * theirs["seconds"], 1e3 * ours["seconds"]
        loads = f"{theirs['load']:.2f}, {ours['load']:.2f}"
        print(f"| {name} | {found or 'equal'} | {times[0]:.1f} | {times[1]:.1f} | {times[1] / times[0]:.2f} | {loads} |", flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
