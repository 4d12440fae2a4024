"""Where an agent lives: one home per workspace and agent, kept; signing in happens there, never in the user's HOME.

The host gives agents the same home (host/agent.py); a test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Final
from urllib.parse import quote

from legation.errors import StorageFailed
from legation.ids import new_id
from legation.store.datafolder import make_folder

LOCAL: Final = "local"  # the workspace of whoever owns the machine


def home_of(data_dir: Path, agent: str, workspace: str = LOCAL) -> Path:
    return _place(data_dir, agent, workspace) / "home"


@contextmanager
def opened_home(data_dir: Path, agent: str, workspace: str = LOCAL) -> Iterator[tuple[Path, Path]]:
    """The home, and a temporary folder that goes."""
    home = home_of(data_dir, agent, workspace)
    tmp = _place(data_dir, agent, workspace) / "tmp" / new_id("tmp")
    try:
        for folder in (data_dir, home, tmp):
            make_folder(folder)
    except OSError as error:
        raise StorageFailed(
            f"cannot write to {data_dir}: {error.strerror}; choose another data folder"
        ) from error
    try:
        yield home, tmp
    finally:
        rmtree(tmp, ignore_errors=True)


def _place(data_dir: Path, agent: str, workspace: str) -> Path:
    return data_dir / "agents" / workspace / quote(agent, safe="")
