"""`legation trust` with a real `legation up`, and what `legation exec` makes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.command import json_lines, legation
from tests.cli.server_process import running

from legation.errors import STATUS, Code

pytestmark = pytest.mark.heavy  # a process or more for each test


@pytest.fixture
def up(home: Path) -> Iterator[Path]:
    with running(home) as server:
        server.line()
        yield home


ALONE = ("--permission-timeout", "1h")


@pytest.fixture
def project(home: Path) -> Path:
    folder = home / "project"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return folder


@pytest.fixture
def codex_acp(home: Path) -> Path:
    """A program of that name, which only notes how it was started."""
    program, noted = home / "bin" / "codex-acp", home / "noted"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {noted}\n')
    program.chmod(0o755)
    return noted


def started(home: Path, project: Path, noted: Path, *flags: str) -> str:
    """The last argument that the agent was started with: it does not answer, which is no matter here. Not by the server, which
    has another PATH: with a setting of its own `exec` runs by itself."""
    noted.unlink(missing_ok=True)
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    legation(
        home, "exec", "--agent", "codex-acp", "go", "--unattended", *ALONE, *flags, cwd=project, PATH=path
    )
    return noted.read_text().splitlines()[-1]


def test_a_folder_is_trusted_listed_and_trusted_no_more(up: Path, project: Path, codex_acp: Path) -> None:
    assert "no folder is trusted" in legation(up, "trust").stdout
    no, yes = (f'projects={{"{project}"={{trust_level="{level}"}}}}' for level in ("untrusted", "trusted"))
    assert started(up, project, codex_acp) == no

    done = legation(up, "trust", ".", cwd=project)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"trusted {project}: what it says to agents counts from now on; "
        f"end it with: legation trust remove {project}\n"
    )
    (listed,) = json_lines(legation(up, "trust", "--json").stdout)
    assert (listed["folder"], listed["state"]) == (str(project), "trusted")
    assert str(project) in legation(up, "trust").stdout
    assert started(up, project, codex_acp) == yes

    moved = project.rename(up / "moved")
    assert "gone" in legation(up, "trust").stdout
    assert legation(up, "trust", "remove", str(project)).stdout == f"no longer trusted: {project}\n"
    assert "no folder is trusted" in legation(up, "trust").stdout
    again = legation(up, "trust", "remove", str(moved))
    assert again.returncode == STATUS[Code.NOT_FOUND].exit
    assert "it is not trusted by itself" in again.stderr


def test_one_run_is_trusted_by_a_flag(home: Path, project: Path, codex_acp: Path) -> None:
    assert started(home, project, codex_acp, "--trust").endswith('={trust_level="trusted"}}')
    assert started(home, project, codex_acp).endswith('={trust_level="untrusted"}}')


def test_a_list_that_cannot_be_read_starts_nothing(home: Path, project: Path, codex_acp: Path) -> None:
    file = home / ".local/share/legation/trust/local.json"
    file.parent.mkdir(parents=True, mode=0o700)
    file.write_text("nonsense")
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    done = legation(home, "exec", "--agent", "codex-acp", "go", cwd=project, PATH=path)
    assert done.returncode == STATUS[Code.CONFIG_INVALID].exit
    assert done.stderr.startswith(f"legation: cannot use {file}: it is no list of trusted folders")
    assert not codex_acp.exists()


def test_without_a_server_it_says_how_to_get_one(home: Path, project: Path) -> None:
    done = legation(home, "trust", str(project))
    assert done.returncode == STATUS[Code.UNAVAILABLE].exit
    assert "legation up" in done.stderr
