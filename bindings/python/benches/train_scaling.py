"""Training on 1, 4, 8, 16 and 32 devices: samples a second, and the speed-up over one, next to PyTorch's DistributedDataParallel.

    cargo xtask benchmark --python PYTHON [digits] [transformer] [resnet50] [bert_base] [--devices 1,4,8,16,32] [--real 4]
        [--rounds 5] [--steps 5] [--with of-opt,eager] [--mesh FILE.toml] [--json FILE] [--markdown FILE]

Models, data, optimizers and losses are those of `train_steps.py`: all train the same model from the same weights on the same samples, a batch
for each device, on this machine. A device is a core. Up to --real devices are ranks that are processes; each of --rounds runs starts all
variants anew, one after another, and the median of the runs is shown. Where the machine has fewer cores than devices, ranks share them, and
the speed-up is limited by the cores.

All numbers of devices are also simulated from the plan that `of-opt train --compile-only` writes: with a core for each device, and links as fast
as `of-opt measure` found that of two processes here, or as --mesh FILE says, whose only axis gets the number of devices. A simulated figure
is a prediction, and is marked as such. Losses of the first step differ by 1e-4 at most, or the exit code is 1.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import train_steps

# Memory that a simulated plan may take: it is compiled for all devices, and executed on none.
ANY_MEMORY = "1000TB"
# What the exporter says of counters of batch normalizations, which no training reads.
warnings.filterwarnings("ignore", message="ONNX Preprocess - Removing mutation")


def mesh_of(text, devices):
    """A description of a mesh with one axis, with this number of devices."""
    text, count = re.subn(r"(?m)^devices *=.*$", f"devices = {devices}", text)
    if count != 1:
        sys.exit("the mesh must have one axis")
    return text


def simulated(name, devices, mesh, options):
    """Predicted seconds of a step, and the samples of a device's batch."""
    with tempfile.TemporaryDirectory() as folder:
        samples, arguments = train_steps.write_training(name, folder, 1, devices, is_open=True)
        flags = ["--batch", str(samples * devices), "--plan", "step.plan", "--compile-only", "--memory", ANY_MEMORY]
        said(options, folder, [*arguments, *flags, "--mesh", mesh])
        report = json.loads(said(options, folder, ["simulate", "step.plan", "--mesh", mesh, "--json"]))
        return report["step_ms"] / 1e3, samples


def said(options, folder, arguments):
    """What of-opt prints."""
    done = subprocess.run([options.of_opt, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip()[-2000:])
    return done.stdout


def real(name, devices, mesh, options):
    """The median of the runs of each variant, in seconds a step, and the first losses."""
    steps = argparse.Namespace(of_opt=options.of_opt, steps=options.steps, threads=1, ranks=devices, mesh=mesh)
    times, losses = {variant: [] for variant in options.variants}, {}
    for _ in range(options.rounds):
        for variant in options.variants:
            result = train_steps.run(name, variant, steps)
            times[variant].append(statistics.median(result["times"]))
            losses[variant] = result["losses"][0]
    return {variant: statistics.median(seconds) for variant, seconds in times.items()}, losses


def numbers(text):
    return [int(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help=", ".join(train_steps.MODELS))
    parser.add_argument("--devices", type=numbers, default=[1, 4, 8, 16, 32])
    parser.add_argument("--real", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--with", dest="variants", type=lambda text: text.split(","), default=["of-opt", "eager"])
    parser.add_argument("--of-opt", default="target/release/of-opt", type=os.path.abspath)
    parser.add_argument("--mesh")
    parser.add_argument("--json")
    parser.add_argument("--markdown")
    options = parser.parse_args()
    names = options.names or train_steps.MODELS
    for known, given in [(train_steps.MODELS, names), (train_steps.VARIANTS, options.variants)]:
        if unknown := set(given) - set(known):
            parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(known)}")
    if min(options.devices) < 1 or options.rounds < 1 or options.steps < 2 or "jax" in options.variants:
        parser.error("devices and rounds are positive, steps are 2 or more, and JAX has no ranks")
    if options.mesh:
        with open(options.mesh) as file:
            mesh = file.read()
    else:
        mesh = said(options, ".", ["measure", "--mesh", "cpu[2]"])

    rows, is_equal = [], True
    head = ["model", "devices", "samples"]
    head += [column for variant in options.variants for column in (f"{variant}, samples/s", "speed-up")]
    head += ["simulated of-opt, samples/s", "speed-up"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    print("\n".join(lines), flush=True)
    for name in names:
        first = {}
        for devices in sorted(set(options.devices)):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "mesh.toml")
                with open(path, "w") as file:
                    file.write(mesh_of(mesh, devices))
                predicted, batch = simulated(name, devices, path, options)
                seconds, losses = real(name, devices, path, options) if devices <= options.real else ({}, {})
            is_equal &= all(abs(a - b) <= train_steps.TOLERANCE * abs(b) for a in losses.values() for b in losses.values())
            cells = [name, str(devices), str(batch * devices)]
            for variant, took in [*((v, seconds.get(v)) for v in options.variants), ("simulated", predicted)]:
                if took is None:
                    cells += ["", ""]
                    continue
                rate = batch * devices / took
                # A simulated speed-up is over a simulated step of one device.
                own = first.setdefault(variant, rate)
                cells += [f"{rate:.1f}", f"{rate / own:.2f}"]
            rows.append({"model": name, "devices": devices, "batch": batch, "seconds": seconds, "simulated_seconds": predicted})
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
            # Long runs are interrupted; what is finished is kept.
            for file, text in [(options.json, json.dumps(rows, indent=1)), (options.markdown, "\n".join(lines) + "\n")]:
                if file:
                    with open(file, "w") as out:
                        out.write(text)
    if not is_equal:
        print("losses of the first step differ")
    sys.exit(0 if is_equal else 1)


if __name__ == "__main__":
    main()
