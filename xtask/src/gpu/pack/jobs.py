"""The jobs of each phase: what runs in a child process and becomes one line of the results."""

import csv
import datetime
import io
import json
import os
import platform
import shutil
import subprocess

import libraries

# Metrics that ncu reads, and their names in results.
METRICS = {
    "gpu__time_duration.sum": "time_us",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_percent",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_percent",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed": "l1_percent",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_percent",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_percent",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_percent",
    "launch__registers_per_thread": "registers",
    "launch__grid_size": "blocks",
}


class Job:
    """A function that gives the result of one part of one case."""

    def __init__(self, phase, case, part, seconds, function, needs_nothing=False):
        self.phase, self.case, self.part, self.seconds, self.function = phase, case, part, seconds, function
        # Whether it runs without the models and plans of its case.
        self.needs_nothing = needs_nothing

    def key(self):
        return (self.phase, self.case, self.part)

    def name(self):
        return "-".join(word for word in self.key() if word).replace("/", "_")


class Machine:
    """of-opt on this machine: where it is, what it finds, and the folders of cases."""

    def __init__(self, here, work, arch, measure_seconds):
        self.of_opt, self.work, self.measure_seconds = here / "of-opt", work, measure_seconds
        self.folders = libraries.library_folders()
        self.libraries, self.tools = libraries.find(self.folders), libraries.tools()
        self.environment = libraries.environment(work, self.libraries, self.folders)
        self.gpu = self.smi("name,driver_version,memory.total,clocks.max.sm")
        capability = self.smi("compute_cap")
        self.arch = arch or (f"sm_{capability.replace('.', '')}" if capability else "sm_90")

    def smi(self, query):
        """What nvidia-smi says of the first GPU, or nothing."""
        try:
            done = subprocess.run([self.tools["nvidia-smi"], f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=True, timeout=30)
            return done.stdout.strip().splitlines()[0]
        except (KeyError, OSError, IndexError, subprocess.SubprocessError):
            return ""

    def folder(self, name):
        return self.work / "cases" / self.arch / name

    def plan(self, name, variant):
        return self.folder(name) / f"{variant}.plan"

    def is_ready(self, case):
        return self.is_ready_name(case["name"])

    def is_ready_name(self, name):
        return (self.folder(name) / "ready").exists()

    def run(self, *args, before=(), status=False):
        """Runs of-opt. Its own time limit is that of the child process that calls this."""
        command = [*map(str, before), str(self.of_opt), *map(str, args)]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        print(f"> {' '.join(command)}\n{done.stdout}{done.stderr}")
        if status:
            return done
        if done.returncode != 0:
            raise RuntimeError(first_error(done))
        return done.stdout


def first_error(done):
    lines = [line for line in f"{done.stderr}\n{done.stdout}".splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return (errors or lines or [f"of-opt ended with {ended}"])[0]


def prepare(case, suite, machine, o):
    """Makes the model of a case, its inputs, what it must give, and a plan for each variant."""

    def function():
        folder = machine.folder(case["name"])
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = suite.prepare(case, folder, machine)
        refused = {}
        for variant, suffix in case["variants"].items():
            try:
                machine.run("compile", model, "-o", machine.plan(case["name"], variant), "--inputs", folder / "inputs", "--target", f"cuda:{machine.arch}{suffix}", "-v")
            except RuntimeError as e:
                refused[variant] = str(e)
        (folder / "ready").write_text("")
        result = {"ok": not refused}
        if refused:
            result.update(why=next(iter(refused.values())), refused=refused)
        return result

    return Job("prepare", case["name"], "", 4 * o.case_seconds, function)


def of_phase(phase, cases, suite, machine, lines, o):
    """The jobs of a phase."""
    if phase == "facts":
        return [Job("facts", "machine", "", 60, lambda: facts(suite, machine), needs_nothing=True)]
    if phase == "check":
        return [job("check", case, v, o.case_seconds, lambda case=case, v=v: check(case, v, suite, machine)) for case in cases for v in case["variants"]]
    if phase == "sanitize":
        names = ["memcheck", "racecheck"] if "compute-sanitizer" in machine.tools else []
        return [job("sanitize", c, tool, o.case_seconds, lambda c=c, tool=tool: sanitize(c, tool, machine)) for c in cases if c["small"] for tool in names]
    if phase == "ncu":
        names = slowest(lines, o.worst) if "ncu" in machine.tools else []
        by_name = {c["name"]: c for c in cases}
        return [job("ncu", by_name[name], v, o.case_seconds, lambda name=name, v=v: counters(name, v, machine)) for name, v in names if name in by_name]
    found = []
    for case in cases:
        if case["kind"] + "s" == phase:
            found += [job(phase, case, v, o.case_seconds, lambda case=case, v=v: ours(case, v, machine)) for v in case["variants"]]
            found += [job(phase, case, p, o.case_seconds, lambda case=case, p=p: peer(case, p, suite, machine)) for p in case["peers"]]
    return found


def job(phase, case, part, seconds, function):
    return Job(phase, case["name"], part, seconds, function)


def facts(suite, machine):
    """What this machine is, and what was found on it."""
    version = machine.run("--version").strip()
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    found = {
        "date": date, "of_opt": version, "gpu": machine.gpu or "no GPU", "arch": machine.arch, "host": platform.processor() or platform.machine(),
        "cores": os.cpu_count(), "python": platform.python_version(), "libraries": machine.libraries, "tools": machine.tools,
    }
    return {"ok": True, **found, **suite.facts()}


def check(case, variant, suite, machine):
    """Compares the outputs of a plan with what they must be."""
    plan, folder = planned(case, variant, machine), machine.folder(case["name"])
    out = folder / f"outputs-{variant}"
    machine.run("run", plan, "--inputs", folder / "inputs", "--outputs", out, "--output-format", "npy")
    result = suite.compare(case, variant, folder / "expected", out)
    shutil.rmtree(out)
    return {"group": case["group"], "precision": precision(case, variant), **result}


def planned(case, variant, machine):
    plan = machine.plan(case["name"], variant)
    if not plan.exists():
        raise RuntimeError("it was not compiled; see the line of phase 'prepare'")
    return plan


def precision(case, part):
    """How products of a part of a case are computed: two parts of one precision are compared."""
    return "tf32" if "tf32" in part else case["dtype"]


def sanitize(case, tool, machine):
    """Runs a plan under a tool of compute-sanitizer."""
    variant, folder = next(iter(case["variants"])), machine.folder(case["name"])
    plan, out = planned(case, variant, machine), folder / f"outputs-{tool}"
    before = [machine.tools["compute-sanitizer"], "--tool", tool, "--error-exitcode", "86", "--print-limit", "10"]
    done = machine.run("run", plan, "--inputs", folder / "inputs", "--outputs", out, before=before, status=True)
    shutil.rmtree(out, ignore_errors=True)
    reported = [line.strip("= ") for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.startswith("=========")]
    why = next((line for line in reported if "rror" in line or "azard" in line), first_error(done)) if done.returncode else ""
    return {"ok": done.returncode == 0, "group": case["group"], **({"why": why} if why else {"summary": (reported or [""])[-1]})}


def ours(case, variant, machine):
    """Measures a plan: how long the GPU computes, by CUDA events, and how long a run takes with its transfers."""
    plan, folder = planned(case, variant, machine), machine.folder(case["name"])
    text = machine.run("bench", plan, "--inputs", folder / "inputs", "--max-seconds", machine.measure_seconds, "--device-time")
    found = json.loads(text.strip().splitlines()[-1])
    times = {name: found[name] for name in ("device_ms", "device_min_ms", "median_ms", "min_ms", "load_ms")}
    return {"ok": True, "of": "ours", **described(case, variant), **times, "runs": found["iters"]}


def peer(case, name, suite, machine):
    """Measures another program on the same case."""
    found = suite.peer(case, name, machine.folder(case["name"]), machine.measure_seconds)
    return {"ok": True, "of": "peer", **described(case, name), **found}


def described(case, part):
    return {"group": case["group"], "precision": precision(case, part), **{n: case[n] for n in ("flops", "bytes") if n in case}}


def slowest(lines, count):
    """The kernels of ours that take longest relative to their fastest peer."""
    times = {}
    for line in lines.values():
        if line["phase"] == "kernels" and line["ok"]:
            ours, peers = times.setdefault((line["case"], line["precision"]), ({}, []))
            if line["of"] == "ours":
                ours[line["part"]] = line["device_ms"]
            else:
                peers.append(line["device_ms"])
    ratios = [(ms / min(peers), case, part) for (case, _), (ours, peers) in times.items() if peers for part, ms in ours.items() if "lib" not in part]
    return [(case, part) for _, case, part in sorted(ratios, reverse=True)[:count]]


def counters(name, variant, machine):
    """Reads ncu's counters of each kernel of a plan. The clocks stay as they are."""
    folder = machine.folder(name)
    before = [machine.tools["ncu"], "--csv", "--page", "raw", "--clock-control", "none", "--metrics", ",".join(METRICS)]
    done = machine.run("run", machine.plan(name, variant), "--inputs", folder / "inputs", "--outputs", folder / "outputs-ncu", before=before, status=True)
    shutil.rmtree(folder / "outputs-ncu", ignore_errors=True)
    kernels = read_counters(done.stdout)
    if not kernels:
        raise RuntimeError(first_error(done))
    return {"ok": True, "kernels": kernels}


def read_counters(text):
    """The table that ncu prints: a row of names, a row of units, and a row for each kernel."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    rows = list(csv.reader(io.StringIO("\n".join(lines[start:])))) if start is not None else []
    if len(rows) < 3:
        return []
    names, units = rows[0], rows[1]
    scale = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}
    kernels = []
    for row in rows[2:]:
        found = {}
        for name, unit, value in zip(names, units, row):
            try:
                if name in METRICS:
                    found[METRICS[name]] = round(float(value.replace(",", "")) * (scale.get(unit, 1) if name.startswith("gpu__time") else 1), 3)
            except ValueError:
                pass  # A counter that this GPU lacks.
        kernels.append(found)
    return kernels
