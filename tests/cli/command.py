"""Runs the real command in its own process, with a clean environment and a data folder of its own."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.cli.command_server import ForkedCommand, is_own_start, run_command

LIMIT = 60.0  # seconds for one command: its time, with a lot to spare on a busy machine


def environment(home: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "USER": "tester", "LANG": "C.UTF-8", **more}


def legation(
    home: Path, *argv: str, stdin: str = "", cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    if not is_own_start(env):
        return run_command(argv, environment(home, **env), cwd or home, stdin, LIMIT)
    return subprocess.run(
        [sys.executable, "-m", "legation", *argv],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment(home, **env),
        cwd=cwd or home,
        timeout=LIMIT,
        start_new_session=True,  # no controlling terminal, whoever runs the tests
        check=False,
    )


def rehearse(*steps: str) -> str:
    return "\n".join(("#!rehearse", *steps))


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


class AtTerminal:
    """The command with a person at its terminal: a real pty."""

    def __init__(self, home: Path, *argv: str, cwd: Path | None = None, **env: str) -> None:
        self.text = ""
        self._fd, its = pty.openpty()
        given = environment(home, **{"TERM": "dumb", **env})
        self._process = ForkedCommand(
            argv, given, cwd or home, stdin=its, stdout=its, stderr=its, terminal=True
        )
        self.pid = self._process.pid
        os.close(its)

    def until(self, wanted: str) -> str:
        """Read until the text has come; what was shown so far."""
        deadline = time.monotonic() + LIMIT
        while wanted not in self.text:
            if not self._read(deadline):
                raise AssertionError(f"the command ended without saying {wanted!r}:\n{self.text}")
        return self.text

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"nothing came in time:\n{self.text}"
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.text += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> None:
        self.type("\x03")

    def end(self) -> int:
        deadline = time.monotonic() + LIMIT
        while self._read(deadline):
            pass
        os.close(self._fd)
        return self._process.wait(LIMIT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(LIMIT)
        os.close(self._fd)
