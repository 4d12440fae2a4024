"""Finding an agent on this machine: what to start, without starting anything."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

import legation
from legation.agents.beginning import AskingModes, Beginning, must_not_be_obeyed
from legation.agents.catalogue.entry import Direct, Entry, Packaged, Stance, Way
from legation.agents.catalogue.node import find_node
from legation.agents.driver import DriverName
from legation.agents.install.folder import Installed, InstallFolder
from legation.agents.install.target import Target

How = Literal["installed", "on PATH", "built in", "custom"]
_PARENTS_LOOKED_AT = 5  # folders up from a program on PATH to the package that it is of


@dataclass(frozen=True, slots=True)
class Start:
    """A command line, the variables to add to a clean environment, and who speaks to what is started so. What the
    folder adds to it is added by `within`."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    driver: DriverName = "acp"
    trusted: Stance = field(default_factory=Stance)
    untrusted: Stance = field(default_factory=Stance)
    obeys: tuple[str, ...] = ()
    beginning: Beginning = field(default_factory=Beginning)
    modes: AskingModes = field(default_factory=AskingModes)
    fs: bool = True

    def within(self, folder: Path, *, trusted: bool) -> Start:
        """How it starts in a folder, whose own configuration for it counts only if it is trusted. Blocks."""
        if not trusted:
            must_not_be_obeyed(folder, self.obeys)
        stance = self.trusted if trusted else self.untrusted
        quoted = json.dumps(str(folder), ensure_ascii=False)
        return replace(
            self,
            argv=(*self.argv, *(each.replace("{folder}", quoted) for each in stance.args)),
            env={**self.env, **stance.env},
            beginning=stance.beginning if trusted else replace(stance.beginning, obeys=self.obeys),
        )


@dataclass(frozen=True, slots=True)
class Program:
    """One that was found; `script` is for Node, of version `node` or later."""

    how: How
    path: Path
    version: str | None = None
    argv: tuple[str, ...] = ()
    node: int | None = None
    helpers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finder:
    data_dir: Path
    environ: Mapping[str, str]
    target: Target | None  # None: nothing can be installed on such a machine

    def installed(self, entry: Entry, wanted: str | None) -> Installed | None:
        """The version that the lock wants, else the one installed last."""
        folder = InstallFolder.of(self.data_dir, entry.package)
        found = folder.find(wanted) if wanted else None
        return found or next(iter(folder.versions()), None)

    def find(self, entry: Entry, program: Packaged | Direct, wanted: str | None) -> Program | None:
        if isinstance(program, Direct):
            return self._direct(entry, program)
        installed = self.installed(entry, wanted)
        if installed and self.target:
            found = self._inside(installed, program, self.target)
            if found:
                return found
        return self._on_path(program)

    def _direct(self, entry: Entry, program: Direct) -> Program | None:
        path = self._which(program.argv[0])
        how: How = "built in" if entry.origin == "built in" else "custom"
        version = legation.__version__ if how == "built in" else None
        return Program(how, Path(path), version, (path, *program.argv[1:])) if path else None

    def _inside(self, installed: Installed, program: Packaged, target: Target) -> Program | None:
        folder = InstallFolder.of(self.data_dir, installed.agent).version(installed.version)
        path = folder / target.fill(program.inside)
        helpers = {name: str(folder / target.fill(inside)) for name, (inside, _) in program.helpers.items()}
        if not path.is_file():
            return None
        return Program("installed", path, installed.version, (str(path),), program.node, helpers)

    def _on_path(self, program: Packaged) -> Program | None:
        found = self._which(program.on_path)
        if not found:
            return None
        helpers = {name: path for name, (_, other) in program.helpers.items() if (path := self._which(other))}
        return Program("on PATH", Path(found), _version_near(Path(found)), (found,), None, helpers)

    def _which(self, name: str) -> str | None:
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))

    def start(self, program: Program, way: Way) -> Start:
        """Raises `Unavailable` where Node is needed and not here."""
        node = (find_node(program.node, self.environ),) if program.node else ()
        argv = (*node, *program.argv, *way.args)
        env = {**way.env, **program.helpers}
        return Start(argv, env, way.driver, way.trusted, way.untrusted, way.obeys)


def _version_near(program: Path) -> str | None:
    """From the npm package that a program on PATH is of; none where it is of no package."""
    for folder in program.resolve().parents[:_PARENTS_LOOKED_AT]:
        try:
            found = msgspec.json.decode((folder / "package.json").read_bytes(), type=_PackageJson)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
        return found.version
    return None


class _PackageJson(msgspec.Struct):
    version: str
