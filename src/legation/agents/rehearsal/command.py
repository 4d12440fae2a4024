"""Running a command in the working folder, in a process group that a cancel can end."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COMMAND_LIMIT = 600.0  # the command's time
POLL = 0.1  # how soon a cancel is noticed
OUTPUT_LIMIT = 1 << 16  # characters; the end of longer output is what matters


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    output: str
    cancelled: bool = False


def run(argv: Sequence[str], cwd: Path, cancelled: threading.Event, limit: float = COMMAND_LIMIT) -> Outcome:
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    )
    end = time.monotonic() + limit
    while True:
        try:
            output, _ = process.communicate(timeout=POLL)
            return Outcome(process.returncode, _tail(output))
        except subprocess.TimeoutExpired:
            if cancelled.is_set() or time.monotonic() > end:
                return Outcome(-signal.SIGKILL, _kill(process), cancelled=cancelled.is_set())


def shell(command: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", command)


def _kill(process: "subprocess.Popen[bytes]") -> str:
    os.killpg(process.pid, signal.SIGKILL)
    try:
        output, _ = process.communicate(timeout=POLL)
    except subprocess.TimeoutExpired:  # a daemon of the command holds the pipe
        return ""
    return _tail(output)


def _tail(output: bytes) -> str:
    return output.decode(errors="replace")[-OUTPUT_LIMIT:]
