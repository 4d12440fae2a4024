"""Runs in the child, before the command, and becomes it: gives it its outputs or its terminal, and nothing else.

`python -I -S trampoline.py pipes <stdout> <stderr> <command> …`, or `… tty <terminal> <terminal> <command> …`, with the
numbers of descriptors that it was handed. Standard library only, and little of it: it is loaded for every process.

INV-P1  The command has 0, 1, 2 and no other descriptor, no signal blocked or ignored (a server that was started in the
        background ignores Ctrl-C, and would hand that on), and the very environment that was given.
INV-P2  If the command cannot be run, the number of the error is written to what was standard output here: the
        launcher's own pipe. If it can, that pipe closes with nothing in it.
"""

import contextlib
import fcntl
import os
import signal
import sys
import termios

FAILED = 127  # a shell's exit code for "cannot run it"


def main(kind: str, out: int, err: int, command: list[str]) -> None:
    report = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        _connect(kind, out, err)
        _forget_signals()
        os.execvpe(command[0], command, _given_environment())  # noqa: S606 - it is what this file is for
    except OSError as error:
        os.write(report, b"%d" % (error.errno or 0))
    os._exit(FAILED)


def _connect(kind: str, out: int, err: int) -> None:
    if kind == "tty":
        fcntl.ioctl(out, termios.TIOCSCTTY, 0)  # we lead a session of our own that has no terminal yet
        os.dup2(out, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    for each in {out, err} - {0, 1, 2}:
        os.close(each)


def _forget_signals() -> None:
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):  # KILL and STOP, and those of the C library
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _given_environment() -> dict[bytes, bytes]:
    """As the kernel has it: Python adds a variable of its own to `os.environ` where no locale is set."""
    with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 - pathlib takes longer to load than all the rest
        pairs = (each.partition(b"=") for each in file.read().split(b"\0") if each)
        return {name: value for name, _, value in pairs}


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
