"""The catalogue of one data folder: the known agents, the owner's own, and where each is on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from legation.agents.catalogue import custom
from legation.agents.catalogue.agent import Agent, SignInState
from legation.agents.catalogue.entry import Direct, Entry, Packaged, Way
from legation.agents.catalogue.found import Finder, Program, Start
from legation.agents.catalogue.home import LOCAL, home_of
from legation.agents.catalogue.known import KNOWN
from legation.agents.install.folder import Installed, InstallFolder
from legation.agents.install.installer import Progress, install, uninstall, unseen
from legation.agents.install.lock import Lock, shipped
from legation.agents.install.target import Target, here
from legation.agents.install.verify import Verified, verify
from legation.errors import CapabilityUnsupported, InvalidParams, LegationError, NotFound, Unavailable
from legation.secret import Secret


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
        """With `executes` the rehearsal agent runs what its prompts say: for whoever has a shell here anyhow."""
        self._executes = executes
        self.data_dir = data_dir
        self.environ = environ
        self.lock = lock or shipped()
        self._custom_file = custom_file or data_dir / custom.FILE
        self._finder = Finder(data_dir, environ, _target())

    # What there is.

    def entries(self) -> tuple[Entry, ...]:
        taken = {name for entry in KNOWN for name in (entry.name, *entry.aliases)}
        return (*KNOWN, *custom.read(self._custom_file, {*taken, LOCAL}))

    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries())

    def entry(self, name: str) -> Entry:
        """By name or alias."""
        entries = self.entries()
        for entry in entries:
            if name in (entry.name, *entry.aliases):
                return entry
        known = [entry.name for entry in entries]
        spelt = [*known, *(alias for entry in entries for alias in entry.aliases)]
        near = get_close_matches(name.lower(), spelt, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)};"
        raise NotFound(f"cannot find agent {name!r}; {hint} a stanza in {self._custom_file} adds your own")

    # How it is here.

    def agents(self) -> tuple[Agent, ...]:
        return tuple(self._describe(entry) for entry in self.entries())

    def agent(self, name: str) -> Agent:
        return self._describe(self.entry(name))

    def start(self, name: str) -> Start:
        """How to start it. Variables of ours that the owner's stanza names are in it, with their values."""
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
    ) -> Installed | None:
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

    def _installable(self, entry: Entry) -> Entry | None:
        if entry.origin == "custom":
            raise InvalidParams(
                f"cannot install {entry.name}: it is your own; put its program where its stanza says it is"
            )
        return None if entry.origin == "built in" else entry

    # Inside.

    def _found(self, entry: Entry, program: Packaged | Direct) -> Program:
        found = self._finder.find(entry, program, self._wanted(entry))
        if found is None:
            raise Unavailable(
                f"cannot start {entry.name}: it is not on this machine; {_remedy(entry, program)}"
            )
        return found

    def _wanted(self, entry: Entry) -> str | None:
        release = self.lock.wanted(entry.package)
        return release.version if release else None

    def _describe(self, entry: Entry) -> Agent:
        found, start, problem = None, Start(()), None
        try:
            way = entry.way
            found = self._found(entry, way.program)
            start = self._finder.start(found, way)
        except LegationError as error:
            problem = error.message
        credentials = {name: bool(self.environ.get(name)) for name in entry.credentials}
        return Agent(
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

    def _sign_in_state(self, entry: Entry, *, key_is_set: bool) -> SignInState:
        if not entry.needs_sign_in:
            return "not needed"
        home = home_of(self.data_dir, entry.name)
        files = entry.sign_in.files if entry.sign_in else ()
        if any((home / file).is_file() for file in files):
            return "signed in"
        if key_is_set:
            return "key"
        return "signed out" if files else "unknown"


def _remedy(entry: Entry, program: Packaged | Direct) -> str:
    if isinstance(program, Direct):
        return f"install {program.argv[0]!r}, or correct its stanza in {custom.FILE}"
    return f"get it with `legation agents install {entry.name}`"


def _target() -> Target | None:
    try:
        return here()
    except Unavailable:
        return None
