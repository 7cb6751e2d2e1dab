"""Runs what `cargo xtask gpu pack` packed, on a machine with a GPU: python3 run.py [--seconds S].

Needs of-opt and the plans in this folder, Python and the GPU's driver; no Rust, no compiler, no network. Writes results.json and
results.md here. torch, torchvision and onnxruntime are measured where they are installed; what is not is named.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
# How far floats may differ from what is expected: of the expected number, and at all.
GRAPHS = ("1e-3", "1e-4")
MODELS = ("1e-3", "1e-3")


def of_opt(*args, seconds=300):
    """Status and last line of an error, or output."""
    try:
        done = subprocess.run([HERE / "of-opt", *map(str, args)], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False, f"no end after {seconds} s"
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return False, (lines or [f"exit code {done.returncode}"])[0]
    return True, done.stdout


def correct(case, tolerance, plan="model.plan"):
    """Whether a plan gives what is expected."""
    data = case / "test_data_set_0"
    relative, absolute = tolerance
    return of_opt("run", case / plan, "--inputs", data, "--expect", data, "--rtol", relative, "--atol", absolute)


def measured(case, seconds, plan="model.plan"):
    """Milliseconds of a run, the least and the median."""
    ok, text = of_opt("bench", case / plan, "--inputs", case / "test_data_set_0", "--max-seconds", seconds)
    if not ok:
        return {"error": text}
    found = json.loads(text.strip().splitlines()[-1])
    return {"min_ms": found["min_ms"], "median_ms": found["median_ms"]}


def machine():
    """What runs here."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        gpu = "no GPU"
    version = of_opt("--version")[1].strip()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    return {"gpu": gpu, "host": platform.processor() or platform.machine(), "of_opt": version, "date": date}


def with_library(case, seconds, plan):
    """The same model with calls of libraries."""
    if not (case / plan).exists():
        return {"error": "not packed"}
    ok, why = correct(case, MODELS, plan)
    return measured(case, seconds, plan) if ok else {"error": why}


def peers(case, seconds):
    """Other programs on the same model, in processes of their own; none where they are not installed."""
    out = {}
    for name, needs in [("torch", ["torch", "torchvision"]), ("torch.compile", ["torch", "torchvision"]), ("onnxruntime", ["onnxruntime"])]:
        lacking = [n for n in needs if importlib.util.find_spec(n) is None]
        if lacking:
            out[name] = {"error": f"{lacking[0]} is not installed"}
            continue
        command = [sys.executable, HERE / "peers.py", name, case, str(seconds)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            last = (done.stdout.strip() or done.stderr.strip() or "it says nothing").splitlines()[-1]
            out[name] = json.loads(last) if done.returncode == 0 else {"error": last}
        except (subprocess.TimeoutExpired, json.JSONDecodeError) as e:
            out[name] = {"error": str(e).splitlines()[0]}
    return out


def cases(kind):
    folder = HERE / kind
    return sorted(folder.iterdir()) if folder.is_dir() else []


def cell(m):
    return f"{m['min_ms']:.3f}" if "min_ms" in m else m["error"]


def markdown(results):
    """The tables of docs/gpu.md."""
    m, graphs = results["machine"], results["graphs"]
    failed = [g for g in graphs if not g["ok"]]
    lines = [f"{m['date']}, {m['gpu']}; {m['of_opt']}; plans for {results['arch']}.", ""]
    lines.append(f"Random graphs with ops on the GPU: {len(graphs) - len(failed)} of {len(graphs)} correct.")
    lines += [f"- graph {g['name']}: {g['why']}" for g in failed]
    if results["models"]:
        names = list(results["models"][0]["peers"])
        lines += ["", f"| model | correct | ours, ms | with cuBLASLt, ms | with cuDNN too, ms | {' | '.join(n + ', ms' for n in names)} |"]
        lines.append("|---" * (5 + len(names)) + "|")
        for r in results["models"]:
            row = [r["name"], "yes" if r["ok"] else r["why"], cell(r["ours"]), cell(r["cublaslt"]), cell(r["cudnn"]), *(cell(r["peers"][n]) for n in names)]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=2.0, help="to measure each model")
    seconds = arguments.parse_args().seconds
    os.chmod(HERE / "of-opt", 0o755)
    results = {"machine": machine(), "arch": (HERE / "arch").read_text().strip(), "graphs": [], "models": []}
    for case in cases("graphs"):
        ok, why = correct(case, GRAPHS)
        results["graphs"].append({"name": case.name, "ok": ok, "why": "" if ok else why})
    for case in cases("models"):
        ok, why = correct(case, MODELS)
        found = {"name": case.name, "ok": ok, "why": "" if ok else why, "ours": measured(case, seconds)}
        for library in ["cublaslt", "cudnn"]:
            found[library] = with_library(case, seconds, f"{library}.plan")
        found["peers"] = peers(case, seconds)
        results["models"].append(found)
        print(f"{case.name}: {'correct' if ok else why}, {cell(found['ours'])} ms", flush=True)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (HERE / "results.md").write_text(markdown(results))
    wrong = [r["name"] for r in results["graphs"] + results["models"] if not r["ok"]]
    print(f"{len(results['graphs'])} graphs, {len(results['models'])} models, {len(wrong)} wrong; results.json, results.md")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
