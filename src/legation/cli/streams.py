"""Standard input, output and error, made usable however the command was started."""

from __future__ import annotations

import os
import sys

STORAGE_FAILED = 9  # as errors.STATUS has it


def make_streams_usable() -> None:
    """None may be closed: the next file opened would take its number, and our output would go into that file.
    A terminal that cannot show a character shows another in its place."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - they live as long as the process
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def end_output(code: int) -> int:
    """The exit code, once everything has been written; a reader that went away is no error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            # Else Python would try once more at its end, and complain.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if not isinstance(error, BrokenPipeError):
                code = code or STORAGE_FAILED
    return code
