"""`legation up`: from its start to its first answer, by the clock and by its processor time, and what it holds when nothing
happens."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

from bench.measure import emit

RUNS = 5
SETTLE = 2.0  # seconds after which an idle server has nothing left to do


def run(home: str) -> tuple[float, float, float, float]:
    """Seconds to the line that says it is up, of its processor to the first answer, to the end after a TERM; megabytes when
    idle (PSS)."""
    env = {"PATH": os.environ["PATH"], "HOME": home}
    started = time.perf_counter()
    argv = [sys.executable, "-m", "legation", "up", "--port", "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout is not None
        try:
            # Its name in the link is a browser's: not every resolver knows it.
            said = re.match(rb"Legation is up: http://[^/]+:(\d+)/", process.stdout.readline())
            assert said is not None
            ready = time.perf_counter() - started
            with urlopen(f"http://127.0.0.1:{said[1].decode()}/v1/health", timeout=20) as health:
                assert health.status == 200
            cpu = _cpu(process.pid)
            time.sleep(SETTLE)
            memory = _pss(process.pid)
            ending = time.perf_counter()
            process.send_signal(signal.SIGTERM)
            process.wait(20)
            return ready, cpu, time.perf_counter() - ending, memory
        finally:
            process.kill()  # else a figure that failed is waited for as long as the server runs


def _cpu(pid: int) -> float:
    """Add up its threads, in nanoseconds that the kernel counted: its ticks are a hundredth of a second."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


def _pss(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        run(home)  # the first one compiles, and makes the database
        runs = [run(home) for _ in range(RUNS)]
    ready, cpu, stop, memory = (statistics.median(column) for column in zip(*runs, strict=True))
    emit({"ready s": ready, "CPU s": cpu, "stop s": stop, "idle MB": memory})


if __name__ == "__main__":
    main()
