"""Runs a function in a child process of its own process group, with a time limit. Its result comes back as JSON.

A child is forked, so what the parent has imported need not be imported again. The parent must not touch the GPU: CUDA does not
survive a fork.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)


class Child:
    """A function that runs in a child process."""

    def __init__(self, function, seconds, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.result, self.log = folder / "result.json", folder / "log.txt"
        self.result.unlink(missing_ok=True)
        self.begun, self.seconds, self.status = time.monotonic(), seconds, None
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self.serve(function)
        try:
            os.setpgid(self.pid, self.pid)  # The child does so too: whoever is first.
        except OSError:
            pass

    def serve(self, function):
        """The child: writes what the function returns, or its error, and ends."""
        status = 1
        try:
            os.setpgid(0, 0)
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            try:
                result = function()
            except Exception as e:  # Whatever fails is a result of the case.
                traceback.print_exc()
                lines = str(e).strip().splitlines() or [""]
                kind = "" if isinstance(e, RuntimeError) else f"{type(e).__name__}: "
                result = {"ok": False, "why": f"{kind}{lines[0][:300]}"}
            part = self.result.with_suffix(".part")
            part.write_text(json.dumps(result))
            part.rename(self.result)
            sys.stdout.flush()
            status = 0
        finally:
            os._exit(status)

    def over(self):
        """Whether it has ended or its time has. Whatever it started ends with it."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
            elif time.monotonic() - self.begun > self.seconds:
                self.status = "no time"
                self.kill()
        if self.status is None:
            return False
        self.kill_group()
        return True

    def kill_group(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def kill(self):
        self.kill_group()
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass

    def outcome(self):
        """What the function returned, or why it did not return."""
        if self.status == "no time":
            return {"ok": False, "why": f"killed after {self.seconds:.0f} s"}
        try:
            return json.loads(self.result.read_text())
        except (OSError, json.JSONDecodeError):
            how = f"signal {os.WTERMSIG(self.status)}" if os.WIFSIGNALED(self.status) else f"exit code {self.status >> 8}"
            tail = self.log.read_text(errors="replace").strip().splitlines()[-1:] if self.log.exists() else []
            return {"ok": False, "why": f"the process ended with {how}: {' '.join(tail)[:300]}"}
