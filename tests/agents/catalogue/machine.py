"""A machine for the catalogue: a data folder, an environment, and agents in it that are really the rehearsal agent."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tests.agents.install.local_registry import LocalRegistry, locked, tarball

from legation.agents.catalogue import Catalogue
from legation.agents.install.folder import RECORD, InstalledAgent
from legation.agents.install.lock import Lock, Release, here

# Whatever it is told: the arguments are those of the agent that it is in disguise.
REHEARSAL = f"#!/bin/sh\nexec {sys.executable} -m legation.agents.rehearsal\n"
CODEX = "node_modules/@zed-industries/codex-acp-linux-{cpu}"
CLAUDE = "node_modules/@anthropic-ai/claude-code-linux-{cpu}{musl}"


@dataclass
class Machine:
    root: Path

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}{os.pathsep}{os.defpath}", "HOME": str(self.root)}

    def catalogue(self, lock: Lock | None = None, **environ: str) -> Catalogue:
        return Catalogue(self.data, environ={**self.environ, **environ}, lock=lock)

    def program(self, path: Path, text: str = REHEARSAL) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def on_path(self, name: str, text: str = REHEARSAL) -> Path:
        return self.program(self.bin / name, text)

    def custom(self, text: str) -> None:
        self.data.mkdir(exist_ok=True)
        (self.data / "agents.toml").write_text(text)

    def installed(self, agent: str, template: str, program: str, text: str = REHEARSAL) -> Path:
        """As an earlier Legation may have left it: of a version that no lock has."""
        folder = self.data / "agents" / agent / "0.0.1"
        path = self.program(folder / here().fill(template) / program, text)
        (folder / RECORD).write_bytes(msgspec.json.encode(InstalledAgent(agent, "0.0.1", "", 1, ())))
        return path


def disguised(registry: LocalRegistry) -> Lock:
    """A lock by which `codex-acp` is the rehearsal agent, from that registry."""
    files = {"bin/codex-acp": REHEARSAL.encode()}
    body = tarball(files, ("bin/codex-acp",))
    at = here().fill(CODEX)
    package = locked(at.removeprefix("node_modules/"), body, files, ("bin/codex-acp",), at=at)
    registry.serve(package, body)
    return Lock({"codex-acp": (Release("7.0.0", (package,)),)})
