"""A command that is forked is as one that is started: its streams, its exit code, its folder, its environment, its limit."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.command import environment
from tests.cli.command_server import run_command

pytestmark = pytest.mark.heavy

LIMIT = 60.0
LONG = "x" * 200_000  # more than a pipe holds


def started(home: Path, *argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "legation", *argv],
        input=stdin, env=environment(home), cwd=home, capture_output=True, text=True, timeout=LIMIT,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "stdin"),
    [
        (("--version",), ""),
        (("--version",), LONG),
        (("policy", "--help"), ""),
        (("nothing",), ""),
        (("tokens",), ""),
        (("exec", "\udcff"), ""),
        (("exec", "--agent", "rehearsal", "--yes", "-"), "#!rehearse\nsay " + LONG),
    ],
)
def test_it_says_and_ends_as_one_that_is_started(home: Path, argv: tuple[str, ...], stdin: str) -> None:
    own = started(home, *argv, stdin=stdin)
    done = run_command(argv, environment(home), home, stdin, LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (own.returncode, own.stdout, own.stderr)


def test_one_that_takes_too_long_is_killed(home: Path) -> None:
    (home / "token").write_text("t" * 40)
    argv = ("receiver", "--token-file", "token")  # it goes on until it is told to stop
    with pytest.raises(subprocess.TimeoutExpired):
        run_command(argv, environment(home), home, "", 2.0)
    deadline = time.monotonic() + LIMIT
    while any(_leads_to(each, home) for each in Path("/proc").glob("[0-9]*/cwd")):
        assert time.monotonic() < deadline, "it is still there"


def _leads_to(link: Path, home: Path) -> bool:
    try:
        return link.readlink() == home
    except OSError:
        return False
