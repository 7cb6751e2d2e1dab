"""Checks and measures of-opt on this machine's GPU. Each finished case is one line of $OUT/results.jsonl, written at once.

A run that is killed keeps all lines, and the next run continues after them. `bash run.sh --help` lists the flags; docs/gpu.md of
the project explains the phases.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import jobs
import libraries
from children import Child

PHASES = ["facts", "check", "sanitize", "kernels", "models", "ncu"]
# Seconds before the limit in which no case is running.
RESERVE = 5


class Results:
    """The lines of results.jsonl, and those of earlier runs."""

    def __init__(self, out, earlier, fresh, retry):
        self.file, self.lines = out / "results.jsonl", {}
        if fresh:
            self.file.unlink(missing_ok=True)
        for file in [] if fresh else [*earlier, self.file]:
            for line in read_lines(file):
                self.lines[key(line)] = line
        if retry:
            self.lines = {k: line for k, line in self.lines.items() if line["ok"]}
        # What earlier runs found stands in the file too, so that the newest file is complete.
        self.replace(self.lines.values())

    def replace(self, lines):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        part = self.file.with_suffix(".part")
        with open(part, "w") as f:
            f.write(text)
            f.flush()
            os.fsync(f.fileno())
        part.rename(self.file)

    def add(self, job, result):
        """Appends a line. It is on the disk when this returns."""
        line = {"phase": job.phase, "case": job.case, "part": job.part, "ok": False, **result}
        self.lines[key(line)] = line
        with open(self.file, "a") as f:
            f.write(json.dumps(line) + "\n")
            f.flush()
            os.fsync(f.fileno())
        return line


def key(line):
    return (line["phase"], line["case"], line["part"])


def read_lines(file):
    """The lines of a file that are whole: the last one of a killed run may not be."""
    found = []
    for text in file.read_text().splitlines() if file.exists() else []:
        try:
            line = json.loads(text)
            key(line)
            found.append(line)
        except (json.JSONDecodeError, KeyError, TypeError):
            print(f"{file}: a line is damaged and is left out", flush=True)
    return found


class Run:
    """The state of this call: how long it may take, and what is running."""

    def __init__(self, options, results, work):
        self.end = time.monotonic() + options.seconds
        self.options, self.results, self.work = options, results, work
        self.children = []
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)

    def stop(self, number, _frame):
        for child in self.children:
            child.kill_group()
        print(f"stopped by signal {number}; what is finished is in {self.results.file}", flush=True)
        os._exit(128 + number)

    def left(self):
        return self.end - time.monotonic() - RESERVE

    def all(self, todo, at_once):
        """Runs jobs, so many at once. Returns whether all had the time that they may take."""
        todo, running = list(todo), []
        while todo or running:
            while todo and len(running) < at_once and self.left() > 1:
                job = todo.pop(0)
                seconds = min(job.seconds, self.left())
                child = Child(job.function, seconds, self.work / "children" / job.name())
                self.children.append(child)
                running.append((job, child))
            for job, child in [pair for pair in running if pair[1].over()]:
                running.remove((job, child))
                self.children.remove(child)
                # The end of the call is no fault of the case: the next call runs it again.
                if child.status == "no time" and child.seconds < job.seconds:
                    continue
                self.show(self.results.add(job, {**child.outcome(), "seconds": round(time.monotonic() - child.begun, 2)}))
            if not running and self.left() <= 1:
                return False
            time.sleep(0.02)
        return True

    def show(self, line):
        words = " ".join(word for word in key(line) if word)
        numbers = [f"{line[n]:.4g} {unit}" for n, unit in (("device_ms", "ms"), ("error", "error")) if line.get(n) is not None]
        print(f"{words}: {'ok' if line['ok'] else line.get('why', 'failed')} {' '.join(numbers)}".rstrip(), flush=True)


def load_suite(file):
    """The module that defines the cases."""
    spec = importlib.util.spec_from_file_location("suite", file)
    suite = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(suite)
    return suite


def arguments():
    cores = os.cpu_count() or 1
    default_out = os.environ.get("OUT") or str(HERE / "out")
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--seconds", type=float, default=540, help="end before so many seconds (540)")
    p.add_argument("--phase", default=",".join(PHASES), help=f"phases, joined by commas ({','.join(PHASES)})")
    p.add_argument("--filter", default="", help="only cases whose name contains one of these texts, joined by commas")
    p.add_argument("--small", action="store_true", help="only the small cases")
    p.add_argument("--fresh", action="store_true", help="forget earlier results")
    p.add_argument("--retry", action="store_true", help="run failed cases again")
    p.add_argument("--arch", help="architecture of the GPU, or 'emulated' for the emulated one; found by nvidia-smi otherwise")
    p.add_argument("--out", type=pathlib.Path, default=default_out, help="folder of results ($OUT)")
    p.add_argument("--work", type=pathlib.Path, default=pathlib.Path(tempfile.gettempdir()) / "of-gpu", help="folder of models and plans, which later calls use again")
    p.add_argument("--suite", type=pathlib.Path, default=HERE / "torch_suite.py", help="Python file that defines the cases")
    p.add_argument("--case-seconds", type=float, default=120, help="time of a case at most (120)")
    p.add_argument("--measure-seconds", type=float, default=0.5, help="time of a measurement (0.5)")
    p.add_argument("--jobs", type=int, default=cores, help="processes that prepare cases at once (the number of cores)")
    p.add_argument("--worst", type=int, default=10, help="kernels that ncu looks at (10)")
    o = p.parse_args()
    o.phases = [phase for phase in o.phase.split(",") if phase]
    unknown = [phase for phase in o.phases if phase not in PHASES]
    if unknown:
        p.error(f"there is no phase '{unknown[0]}'; there are {', '.join(PHASES)}")
    return o


def main():
    o = arguments()
    o.out.mkdir(parents=True, exist_ok=True)
    o.work.mkdir(parents=True, exist_ok=True)
    os.chmod(HERE / "of-opt", 0o755)
    # Results of an earlier call may be next to the script, where they were copied to, or in the folder of work.
    machine = jobs.Machine(HERE, o.work, o.arch, o.measure_seconds)
    kept = o.work / f"results-{machine.arch}.jsonl"
    results = Results(o.out, [HERE / "results.jsonl", kept], o.fresh, o.retry)
    run = Run(o, results, o.work)
    suite = load_suite(o.suite)
    wanted = [text for text in o.filter.split(",") if text]
    cases = [c for c in suite.cases() if (not wanted or any(text in c["name"] for text in wanted)) and (c["small"] or not o.small)]
    if machine.arch.startswith("emulated"):
        # NVIDIA's libraries do not run on the emulated GPU.
        for c in cases:
            c["variants"] = {v: suffix for v, suffix in c["variants"].items() if "+cublaslt" not in suffix}
    complete = True
    for phase in o.phases:
        todo = [job for job in jobs.of_phase(phase, cases, suite, machine, results.lines, o) if job.key() not in results.lines]
        needed = {job.case for job in todo}
        first = [jobs.prepare(case, suite, machine, o) for case in cases if case["name"] in needed and not machine.is_ready(case)]
        first = [job for job in first if job.key() not in results.lines or results.lines[job.key()]["ok"]]
        complete = run.all(first, o.jobs) and complete
        todo = [job for job in todo if job.needs_nothing or machine.is_ready_name(job.case)]
        at_once = 4 if phase in ("check", "sanitize") else 1
        complete = run.all(todo, at_once) and complete
        kept.write_text(results.file.read_text())
    bad = [line for line in results.lines.values() if not line["ok"]]
    state = "all phases are done" if complete else "time is up; run it again to continue"
    print(f"{len(results.lines)} results, {len(bad)} not ok, in {results.file}; {state}", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
