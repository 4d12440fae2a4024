"""Where agents live: a HOME of their own, kept, and a TMPDIR, not kept; and the list of who runs."""

from __future__ import annotations

import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Final
from urllib.parse import quote

from legation.errors import StorageFailed
from legation.host.options import AgentDefinition
from legation.ids import new_id
from legation.proc import Command, Registry, child_environment, reap
from legation.proc.registry import listed
from legation.store.datafolder import make_folder

LEFT_AFTER: Final = 600.0  # seconds: a sign-in under way has a temporary folder, and no child that is on file


@dataclass(frozen=True, slots=True)
class Where:
    """Where a session works, and where its agent is at home. Absolute."""

    cwd: str
    home: str | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """`data` is the user's data folder, or a temporary one that goes with the host."""

    data: Path
    temporary: bool
    workspace: str = "local"

    @classmethod
    def open(cls, data_dir: Path | None, workspace: str = "local") -> Places:
        """Also ends what a killed host left behind in the same folder. Blocks."""
        if data_dir is None:
            return cls(Path(tempfile.mkdtemp(prefix="legation-host-")), True, workspace)
        places = cls(data_dir, False, workspace)
        reap(places.children)
        places._sweep()
        return places

    def _sweep(self) -> None:
        """Temporary folders that a killed host left, with what was secret in them. Whoever else lives here keeps his."""
        if any(each.owner_lives for each in listed(self.children)):
            return
        young = time.time() - LEFT_AFTER
        for folder in (self.data / "agents" / self.workspace).glob("*/tmp/*"):
            with suppress(OSError):
                if folder.lstat().st_mtime < young:
                    rmtree(folder, ignore_errors=True)

    @property
    def children(self) -> Path:
        return self.data / "children"

    @property
    def registry(self) -> Registry:
        return Registry(self.children)

    def home(self, agent: str) -> Path:
        return self._place(agent) / "home"

    def _place(self, agent: str) -> Path:
        return self.data / "agents" / self.workspace / quote(agent, safe="")

    def command(self, definition: AgentDefinition) -> tuple[Command, Path]:
        """How to start it, and the temporary folder to remove when it has ended."""
        home, tmp = self.home(definition.name), self._place(definition.name) / "tmp" / new_id("tmp")
        try:
            for folder in (home, tmp):
                make_folder(folder)
        except OSError as error:
            raise StorageFailed(
                f"cannot write to {self.data}: {error.strerror}; choose another data folder"
            ) from error
        command = Command(
            argv=(definition.command, *definition.args),
            cwd=definition.cwd or Path.cwd(),
            env=child_environment(definition.env, home=home, tmp=tmp),
            name=definition.name,
        )
        return command, tmp

    def close(self) -> None:
        if self.temporary:
            rmtree(self.data, ignore_errors=True)
