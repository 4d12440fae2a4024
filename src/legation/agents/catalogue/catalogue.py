"""The catalogue of one data folder: the known agents, the owner's own, and where each is on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from shutil import rmtree
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from legation.agents.catalogue.entries import (
    CUSTOM_FILE,
    KNOWN,
    MOCK,
    CatalogueEntry,
    Direct,
    Packaged,
    Way,
    read_custom,
)
from legation.agents.catalogue.program import Finder, FoundProgram, How, Start
from legation.agents.drivers import DriverName
from legation.agents.install.folder import InstalledAgent, InstallFolder, Verified, verify
from legation.agents.install.installer import Progress, install, uninstall, unseen
from legation.agents.install.lock import Lock, TargetMachine, here, shipped
from legation.clock import new_id
from legation.errors import (
    CapabilityUnsupported,
    InvalidParams,
    LegationError,
    NotFound,
    StorageFailed,
    Unavailable,
)
from legation.secret import Secret
from legation.store.datafolder import make_folder

# Homes of agents: one per workspace and agent, kept; signing in happens there, never in the user's HOME. The host gives
# agents the same home (host/agent.py); a test keeps the two equal.

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


SignInState = Literal["not needed", "signed in", "key", "signed out", "unknown"]
"""`key`: one of its variables is set here. `unknown`: it keeps its sign-in where it cannot be told."""


class LocalAgent(msgspec.Struct, frozen=True, kw_only=True):
    """`how` is None for what is not on this machine. `credentials` says which are set, never to what.

    `problem` says why it cannot be started, and what to do; None: it can.
    """

    name: str
    title: str
    how: How | None
    version: str | None
    wanted: str | None
    path: str | None
    driver: DriverName
    command: tuple[str, ...]
    env: dict[str, str]
    aliases: tuple[str, ...]
    credentials: dict[str, bool]
    sign_in: SignInState
    home: str
    problem: str | None

    @property
    def ready(self) -> bool:
        return self.problem is None

    @property
    def outdated(self) -> bool:
        return self.how == "installed" and self.wanted is not None and self.version != self.wanted


class Catalogue:
    """Reads the disk when asked, so that what was installed meanwhile is found. Starts nothing."""

    def __init__(
        self,
        data_dir: Path,
        *,
        environ: Mapping[str, str] = os.environ,
        lock: Lock | None = None,
        custom_file: Path | None = None,
        executes: bool = False,
    ) -> None:
        """Make a catalogue; with `executes` the rehearsal agent runs what its prompts say: for whoever has a shell here."""
        self._executes = executes
        self.data_dir = data_dir
        self.environ = environ
        self.lock = lock or shipped()
        self._custom_file = custom_file or data_dir / CUSTOM_FILE
        self._finder = Finder(data_dir, environ, _target())

    # What there is.

    def entries(self) -> tuple[CatalogueEntry, ...]:
        taken = {name for entry in KNOWN for name in (entry.name, *entry.aliases)} - {MOCK}
        own = read_custom(self._custom_file, {*taken, LOCAL})
        replaced = {entry.name for entry in own}
        return (*(entry for entry in KNOWN if entry.name not in replaced), *own)

    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries())

    def entry(self, name: str) -> CatalogueEntry:
        """Find an entry by name or alias."""
        entries = self.entries()
        for entry in entries:
            if name in (entry.name, *entry.aliases):
                return entry
        known = [entry.name for entry in entries]
        spelt = [*known, *(alias for entry in entries for alias in entry.aliases)]
        longer = [each for each in known if name.lower().startswith(f"{each}-")]  # claude-code, codex-cli
        near = longer or get_close_matches(name.lower(), spelt, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)};"
        raise NotFound(f"cannot find agent {name!r}; {hint} a stanza in {self._custom_file} adds your own")

    # How it is here.

    def agents(self) -> tuple[LocalAgent, ...]:
        return tuple(self._describe(entry) for entry in self.entries())

    def agent(self, name: str) -> LocalAgent:
        return self._describe(self.entry(name))

    def start(self, name: str) -> Start:
        """Tell how to start it. Variables of ours that the owner's stanza names are in it, with their values."""
        entry = self.entry(name)
        way = entry.way
        found = self._found(entry, way.program)
        start = self._finder.start(found, way)
        passed = {name: self.environ[name] for name in entry.passes if name in self.environ}
        executing = way.executing if self._executes else ()
        argv, env = (*start.argv, *executing), {**start.env, **passed}
        return replace(start, argv=argv, env=env, modes=entry.modes, fs=entry.fs)

    def sign_in(self, name: str) -> Start | None:
        """The program of the agent's own sign-in, to be run in its home; None: it signs in by ACP."""
        entry = self.entry(name)
        if entry.sign_in is None and entry.origin != "custom":
            raise CapabilityUnsupported(f"cannot sign in to {entry.name}: it needs none")
        if entry.sign_in is None or entry.sign_in.program is None:
            return None
        found = self._found(entry, entry.sign_in.program)
        way = Way("acp", entry.sign_in.program, entry.sign_in.args, entry.way.env)
        return self._finder.start(found, way)

    def keys(self, name: str) -> dict[str, Secret]:
        """The keys that are set here, under the names that the agent reads them by. Whether to pass one on is the
        caller's decision."""
        entry = self.entry(name)
        found = {}
        for each in reversed(entry.credentials):  # the first one of a name counts
            if value := self.environ.get(each):
                found[entry.synonyms.get(each, each)] = Secret(value, each)
        return found

    def version_of(self, name: str) -> str | None:
        return self.agent(name).version

    # Changing it.

    def folder(self, name: str) -> InstallFolder:
        return InstallFolder.of(self.data_dir, self.entry(name).package)

    def install(
        self, name: str, version: str | None = None, *, progress: Progress = unseen, again: bool = False
    ) -> InstalledAgent | None:
        """Blocks, for minutes perhaps. None for what needs no installation."""
        entry = self._installable(self.entry(name))
        if entry is None:
            return None
        release = self.lock.release(entry.package, version)
        return install(release, self.folder(name), environ=self.environ, progress=progress, again=again)

    def uninstall(self, name: str) -> tuple[str, ...]:
        return uninstall(self.folder(name))

    def verify(self, name: str) -> tuple[Verified, ...]:
        """One for each version that is installed."""
        folder = self.folder(name)
        releases = {each.version: each for each in self.lock.agents.get(folder.agent, ())}
        return tuple(verify(folder, each, releases.get(each.version)) for each in folder.versions())

    def _installable(self, entry: CatalogueEntry) -> CatalogueEntry | None:
        if entry.origin == "custom":
            raise InvalidParams(
                f"cannot install {entry.name}: it is your own; put its program where its stanza says it is"
            )
        if entry.get:
            raise CapabilityUnsupported(
                f"cannot install {entry.name}: this Legation's lock has it not; get it by {entry.get}"
            )
        return None if entry.origin == "built in" else entry

    # Inside.

    def _found(self, entry: CatalogueEntry, program: Packaged | Direct) -> FoundProgram:
        found = self._finder.find(entry, program, self._wanted(entry))
        if found is None:
            raise Unavailable(
                f"cannot start {entry.name}: it is not on this machine; {_remedy(entry, program)}"
            )
        return found

    def _wanted(self, entry: CatalogueEntry) -> str | None:
        release = self.lock.wanted(entry.package)
        return release.version if release else None

    def _describe(self, entry: CatalogueEntry) -> LocalAgent:
        found, start, problem = None, Start(()), None
        try:
            way = entry.way
            found = self._found(entry, way.program)
            start = self._finder.start(found, way)
        except LegationError as error:
            problem = error.message
        credentials = {name: bool(self.environ.get(name)) for name in entry.credentials}
        return LocalAgent(
            name=entry.name,
            title=entry.title,
            how=found.how if found else None,
            version=found.version if found else None,
            wanted=self._wanted(entry),
            path=str(found.path) if found else None,
            driver=entry.way.driver,
            command=start.argv,
            env=dict(start.env),
            aliases=entry.aliases,
            credentials=credentials,
            sign_in=self._sign_in_state(entry, key_is_set=any(credentials.values())),
            home=str(home_of(self.data_dir, entry.name)),
            problem=problem,
        )

    def _sign_in_state(self, entry: CatalogueEntry, *, key_is_set: bool) -> SignInState:
        if not entry.needs_sign_in:
            return "not needed"
        home = home_of(self.data_dir, entry.name)
        files = entry.sign_in.files if entry.sign_in else ()
        if any((home / file).is_file() for file in files):
            return "signed in"
        if key_is_set:
            return "key"
        return "signed out" if files else "unknown"


def _remedy(entry: CatalogueEntry, program: Packaged | Direct) -> str:
    if isinstance(program, Direct):
        return f"install {program.argv[0]!r}, or correct its stanza in {CUSTOM_FILE}"
    return f"get it by {entry.get}" if entry.get else f"get it with `legation agents install {entry.name}`"


def _target() -> TargetMachine | None:
    try:
        return here()
    except Unavailable:
        return None
