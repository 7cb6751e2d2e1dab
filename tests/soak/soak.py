#!/usr/bin/env python3
"""Runs the ranks of a mesh at full load, and checks that the memory of each stays the same within 1 %.

A job of N processes trains nothing and reads nothing: it repeats the steps of a plan with transfers. The resident memory of
each rank is read every second; the first tenth of the time is left out.

The allocator runs without huge pages: otherwise the system merges its small pages some minutes later, which adds the rest of a
huge page to the memory of a rank, once.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def children(pid):
    """The processes that a process started."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def resident(pid):
    """Bytes of a process in memory or in swap: its own and its share of shared memory, without mapped files, whose pages the
    system drops and reads again as it likes."""
    counted = ("Pss_Anon", "Pss_Shmem", "SwapPss")
    lines = (line.split() for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return sum(int(size) * 1024 for name, size, _ in lines if name.rstrip(":") in counted)


def metrics(program, folder):
    """What the ranks count, by metric and rank."""
    text = subprocess.run([program, "why-stuck", folder, "--metrics"], check=True, capture_output=True, text=True).stdout
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--transport", default="auto")
    options = parser.parse_args()
    program = str(TARGET / "release/of-opt")
    with tempfile.TemporaryDirectory() as folder:
        model, plan, flight = f"{folder}/soak.of", f"{folder}/soak.plan", f"{folder}/flight"
        pathlib.Path(model).write_text(MODEL.replace("RANKS", str(options.ranks)))
        subprocess.run([program, "compile", model, "--mesh", f"cpu[{options.ranks}]", "-q", "-o", plan], check=True)
        job = subprocess.Popen(
            [program, "run", plan, "--shape", "x=64x256", "--ranks", str(options.ranks), "--iterations", "1000000000",
             "--threads", "1", "--transport", options.transport, "--flight-recorder", flight, "--peer-timeout", "10s"],
            stdout=subprocess.DEVNULL, env={**os.environ, "MIMALLOC_ALLOW_THP": "0"})
        try:
            return watch(job, program, flight, options)
        finally:
            for pid in children(job.pid):
                os.kill(pid, 15)
            job.terminate()
            job.wait()


def watch(job, program, flight, options):
    seconds = options.minutes * 60
    time.sleep(5)
    ranks = children(job.pid)
    if len(ranks) != options.ranks:
        sys.exit(f"{len(ranks)} of {options.ranks} ranks run")
    start, samples = time.time(), {pid: [] for pid in ranks}
    before = metrics(program, flight)
    while time.time() - start < seconds:
        if job.poll() is not None:
            sys.exit("the ranks ended")
        if time.time() - start > seconds / 10:
            for pid in ranks:
                samples[pid].append(resident(pid))
        time.sleep(1)
    after, took = metrics(program, flight), time.time() - start
    steps = {key: (after[key] - before[key]) / took for key in after if key.startswith("of_rank_steps_total")}
    sent = sum(after[key] - before[key] for key in after if key.startswith("of_rank_sent_bytes_total"))
    worst = 0
    for pid, memory in samples.items():
        change = max(memory) / min(memory) - 1
        worst = max(worst, change)
        print(f"process {pid}: {min(memory) / 2**20:.2f} to {max(memory) / 2**20:.2f} MiB, {100 * change:.2f} %")
    print(f"{options.ranks} ranks, {took / 60:.1f} minutes, {min(steps.values()):.0f} steps/s, {sent / took / 1e6:.0f} MB/s sent")
    if min(steps.values()) == 0:
        sys.exit("a rank did not go on")
    if worst > 0.01:
        sys.exit(f"the memory of a rank changed by {100 * worst:.2f} %")


MODEL = """
of.mesh @m {devices = "cpu", shape = [RANKS]}
func @main(%x: tensor<64x256xf32, #of.sbp<@m, [B]>>) -> (tensor<64x256xf32, #of.sbp<@m, [B]>>) {
  %xt = of.transpose %x {perm = [1, 0]} : (tensor<64x256xf32, #of.sbp<@m, [B]>>) -> tensor<256x64xf32, #of.sbp<@m, [B]>>
  %t = of.tanh %x : (tensor<64x256xf32, #of.sbp<@m, [B]>>) -> tensor<64x256xf32, #of.sbp<@m, [S(1)]>>
  %u = of.tanh %xt : (tensor<256x64xf32, #of.sbp<@m, [B]>>) -> tensor<256x64xf32, #of.sbp<@m, [S(0)]>>
  %p = of.matmul %t, %u : (tensor<64x256xf32, #of.sbp<@m, [S(1)]>>, tensor<256x64xf32, #of.sbp<@m, [S(0)]>>) -> tensor<64x64xf32, #of.sbp<@m, [P(sum)]>>
  %y = of.sharding_constraint %p {sharding = #of.sbp<@m, [B]>} : (tensor<64x64xf32, #of.sbp<@m, [P(sum)]>>) -> tensor<64x64xf32, #of.sbp<@m, [B]>>
  %z = of.matmul %y, %x : (tensor<64x64xf32, #of.sbp<@m, [B]>>, tensor<64x256xf32, #of.sbp<@m, [B]>>) -> tensor<64x256xf32, #of.sbp<@m, [B]>>
  of.return %z : (tensor<64x256xf32, #of.sbp<@m, [B]>>) -> ()
}
"""

if __name__ == "__main__":
    main()
