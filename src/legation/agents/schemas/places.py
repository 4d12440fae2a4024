"""Where a publisher's package or program lies on this machine. Nothing is installed or started to find it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from legation.agents.install import InstallFolder

_AGENTS: Final = ("claude", "codex", "opencode", "amp")


@dataclass(frozen=True, slots=True)
class Places:
    """Folders with a `node_modules`, and the PATH to look in after them."""

    folders: tuple[Path, ...]
    path: str = ""

    @classmethod
    def of(cls, data_dir: Path | None, extra: Iterable[Path], environ: Mapping[str, str]) -> Places:
        """Those named, then what Legation has installed, then PATH."""
        installed = [
            folder.version(each.version)
            for agent in _AGENTS
            if data_dir
            for folder in (InstallFolder.of(data_dir, agent),)
            for each in folder.versions()
        ]
        return cls((*extra, *installed), environ.get("PATH", os.defpath))

    def package(self, name: str) -> Path | None:
        """The newest one of an npm package."""
        found = [folder / "node_modules" / name for folder in self.folders]
        there = [folder for folder in found if (folder / "package.json").is_file()]
        return max(there, key=lambda folder: _ordered(version_of(folder)), default=None)

    def program(self, patterns: Iterable[str], on_path: str) -> Path | None:
        """The first one; patterns are for below `node_modules`."""
        for pattern in patterns:
            for folder in self.folders:
                for found in sorted((folder / "node_modules").glob(pattern)):
                    return found
        on = shutil.which(on_path, path=self.path)
        return Path(on) if on else None


class Package(msgspec.Struct):
    version: str
    claude_code_version: str = msgspec.field(default="", name="claudeCodeVersion")


def package_of(folder: Path) -> Package:
    return msgspec.json.decode((folder / "package.json").read_bytes(), type=Package)


def version_of(folder: Path) -> str:
    return package_of(folder).version


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))
