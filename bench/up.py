"""`legation up`: from its start to its first answer, and what it holds when nothing happens."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.measure import emit

RUNS = 5
SETTLE = 2.0  # seconds after which an idle server has nothing left to do


def run(home: str) -> tuple[float, float, float]:
    """Seconds to the line that says it is up, seconds to the end after a TERM, megabytes when idle (PSS)."""
    env = {"PATH": os.environ["PATH"], "HOME": home}
    started = time.perf_counter()
    argv = [sys.executable, "-m", "legation", "up", "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        assert b"is up" in process.stdout.readline()
        ready = time.perf_counter() - started
        time.sleep(SETTLE)
        memory = _pss(process.pid)
        ending = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        return ready, time.perf_counter() - ending, memory


def _pss(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        run(home)  # the first one compiles, and makes the database
        runs = [run(home) for _ in range(RUNS)]
    ready, stop, memory = (statistics.median(column) for column in zip(*runs, strict=True))
    emit({"ready s": ready, "stop s": stop, "idle MB": memory})


if __name__ == "__main__":
    main()
