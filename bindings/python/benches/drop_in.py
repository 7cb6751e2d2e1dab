"""Runs public programs that import onnxruntime, with onnxruntime and with this package in its place, and compares results and times.

    cargo xtask drop-in-packages && cargo xtask wheel --test
    PYTHONPATH=target/wheels/installed ~/.cache/of-opt/drop-in/bin/python3 bindings/python/benches/drop_in.py [NAME …]

Each program runs in a process of its own and is not changed: before it is imported, ``of_opt.onnxruntime.install()`` takes the name
``onnxruntime``. Sessions have one thread. All models come with the packages. A program whose package is missing is named, and is a
failure. The runtimes alternate; the table has the fastest calls, and the median of the rounds' ratios. ``cargo xtask wheel --test``
compares the results. silero_vad is not among the packages that it installs, as it needs torch; the same model is in faster_whisper.
"""

import argparse
import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 15
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


def one_thread(package):
    """Lets sessions of a package have one thread. Left alone, onnxruntime binds a second one to the other core, which taskset forbids."""

    class InferenceSession(package.InferenceSession):
        def __init__(self, model, sess_options=None, *arguments, **named):
            sess_options = sess_options or package.SessionOptions()
            sess_options.intra_op_num_threads = sess_options.inter_op_num_threads = 1
            super().__init__(model, sess_options, *arguments, **named)

    package.InferenceSession = InferenceSession


def child(name, runtime):
    """One program with one runtime: its result and the time of its first call, and then the time of a call for each line that it reads."""
    if runtime == "of_opt":
        import of_opt.onnxruntime

        of_opt.onnxruntime.install()
    import onnxruntime

    own = onnxruntime.__name__.startswith("of_opt")
    assert own == (runtime == "of_opt"), onnxruntime
    one_thread(onnxruntime)
    # Programs print, too.
    answers, sys.stdout = sys.stdout, sys.stderr
    start = time.perf_counter()
    run = {**PROGRAMS, **OTHERS}[name]()
    result = run()
    print(json.dumps({"result": result, "load": time.perf_counter() - start}), file=answers, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        again = run()
        print(time.perf_counter() - start, file=answers, flush=True)
        assert again == result, "two runs differ"


class Child:
    """A program in a process of its own."""

    def __init__(self, name, runtime):
        # Other libraries of the programs have one thread, too.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = ["taskset", "-c", "0", sys.executable, __file__, "--child", name, runtime]
        self.what, self.errors = f"{name} with {runtime}", tempfile.TemporaryFile("w+")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.errors.seek(0)
            raise SystemExit(f"{self.what} failed:\n{self.errors.read()}")
        return json.loads(line)

    def call(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.stdin.close()
        if self.process.wait():
            self.answer()


def compare(name, rounds):
    """The results of both runtimes, the times of their first calls, and those of each round, in which they alternate."""
    children, first = [], []
    for runtime in RUNTIMES:
        children.append(Child(name, runtime))
        first.append(children[-1].answer())
    times = [[child.call() for child in children] for _ in range(rounds)]
    for child in children:
        child.end()
    return first, times


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
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="calls with each runtime")
    parser.add_argument("--child", nargs=2)
    arguments = parser.parse_args()
    if arguments.child:
        return child(*arguments.child)
    wrong = 0
    print("| program | result | onnxruntime, ms | of_opt, ms | ratio | first call, s |")
    print("|---|---|---|---|---|---|")
    for name in arguments.names or PROGRAMS:
        package = PACKAGES.get(name, name)
        if importlib.util.find_spec(package) is None:
            print(f"| {name} | MISSING: pip install {package} | | | | |")
            wrong += 1
            continue
        (theirs, ours), times = compare(name, arguments.rounds)
        found = difference(theirs["result"], ours["result"])
        wrong += found is not None
        fastest = [1e3 * min(column) for column in zip(*times)]
        ratio = statistics.median(own / other for other, own in times)
        loads = f"{theirs['load']:.2f}, {ours['load']:.2f}"
        print(f"| {name} | {found or 'equal'} | {fastest[0]:.1f} | {fastest[1]:.1f} | {ratio:.2f} | {loads} |", flush=True)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
