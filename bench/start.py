"""The processor time of a command from its start to its end, its interpreter's included."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from bench.measure import emit

RUNS = 5


def run(argv: list[str]) -> tuple[float, float]:
    started = time.perf_counter()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode} of {' '.join(argv)}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - started


def main(args: list[str]) -> None:
    argv = [sys.executable, *args]
    run(argv)  # the first one compiles
    runs = [run(argv) for _ in range(RUNS)]
    cpu, wall = (statistics.median(column) for column in zip(*runs, strict=True))
    emit({"CPU s": cpu, "wall s": wall})


if __name__ == "__main__":
    main(sys.argv[1:-1])
