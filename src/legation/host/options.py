"""Values that a host is made with, an agent is started with and a session is kept with. Checked at once, frozen for good."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from legation.agents.driver import AskingModes, SessionStart
from legation.agents.drivers import DriverName
from legation.clock import Clock, SystemClock
from legation.errors import ConfigInvalid, InvalidParams
from legation.host.requests.handlers import (
    Approver,
    ExtensionHandler,
    FsHandler,
    QuestionHandler,
    TerminalHandler,
)
from legation.proc import Launcher
from legation.proc.lines import MAX_LINE, Redact, unchanged
from legation.store.codec import Backend
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.methods import McpServer
from legation.wire.action import MAX_PATH
from legation.wire.event_types import McpServerNames, SessionUpdated, Status
from legation.wire.events import Payload

MAX_DIRECTORIES: Final = 100  # each is looked up on the disk, for the session and for what it opens

Restart = Literal["never", "on-crash"]
_WORKSPACE = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)  # it names a folder


def trusts_nothing(_folder: str) -> bool:
    """Trust no folder: a repository's configuration is its own word, not its owner's."""
    return False


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pause before each restart in a row, in milliseconds."""

    initial_ms: float = 1000
    factor: float = 2
    max_ms: float = 30_000

    def seconds(self, attempt: int) -> float:
        """Return the pause; before the first restart `attempt` is 1."""
        return min(self.max_ms, self.initial_ms * self.factor ** (attempt - 1)) / 1000


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds; `settings.FIELDS` says whose time each is."""

    start: float = 60.0
    idle: float = 600.0
    permission: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """`fs`, `terminal` and `questions` say what the agents are offered, and nothing else is (INV-6).

    Without an `approver`, permissions wait for `respond_permission`. Without a `data_dir`, agents' homes are
    temporary. Without `storage`, events live in memory. Streams and homes are those of the `workspace`. `trusts` says
    of a folder whether an agent's own configuration in it counts. `forbidden` is what is opened for no agent, wherever
    it works: the data folder, unless more is said. `observe` is told what a session's stream is told of its turns and
    questions, by the session's id: at once, and it must neither wait nor raise.
    """

    restart: Restart = "never"
    restart_limit: int = 3
    restart_backoff: Backoff = Backoff()
    storage: Backend | None = None
    fs: FsHandler | Literal["default"] | None = "default"
    terminal: TerminalHandler | None = None
    questions: QuestionHandler | None = None
    extensions: ExtensionHandler | None = None
    approver: Approver | None = None
    kill_timeout_ms: float = 5000
    limits: Limits = Limits()
    max_line: int = MAX_LINE
    redact: Redact = unchanged
    data_dir: Path | None = None
    forbidden: ForbiddenPlaces | None = None
    workspace: str = "local"
    launcher: Launcher | None = None
    clock: Clock = field(default_factory=SystemClock)
    trusts: Callable[[str], bool] = trusts_nothing
    observe: Callable[[str, Payload], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefinition:
    """`env` is added to a clean environment; `cwd` is the host's own unless given; `meta` is the caller's."""

    command: str
    args: tuple[str, ...] = ()
    id: str | None = None
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    meta: Mapping[str, object] = field(default_factory=dict)
    driver: DriverName = "acp"
    beginning: SessionStart = field(default_factory=SessionStart)
    modes: AskingModes = field(default_factory=AskingModes)
    fs: bool = True  # whether it is offered what of `fs` the host has
    home: Path | None = None  # one that is not the host's to make

    @property
    def name(self) -> str:
        return self.id or Path(self.command).name


def resolve_host_options(options: HostOptions | Mapping[str, object] | None = None) -> HostOptions:
    """The options as they will be used; everything that is wrong with them in one `ConfigInvalid`."""
    given, problems = _read(HostOptions, options if options is not None else {})
    for name, kind in _PARTS.items():
        if isinstance(given[name], Mapping):
            part, wrong = _read(kind, given[name])
            given[name] = kind(**part)
            problems += [f"{name}: {problem}" for problem in wrong]
    _refuse("the host options", [*problems, *_option_problems(given)])
    if given["data_dir"] is not None:
        given["data_dir"] = Path(given["data_dir"]).absolute()
    return HostOptions(**given)


def resolve_agent_definition(definition: AgentDefinition | Mapping[str, object]) -> AgentDefinition:
    """The definition as it will be used: absolute, copied, frozen."""
    given, problems = _read(AgentDefinition, definition)
    _refuse("the agent definition", [*problems, *_definition_problems(given)])
    frozen = {name: MappingProxyType(dict(given[name])) for name in ("env", "meta")}
    place = Path(given["cwd"] or ".").resolve()
    home = Path(given["home"]).absolute() if given["home"] is not None else None
    return AgentDefinition(**{**given, **frozen, "args": tuple(given["args"]), "cwd": place, "home": home})


def _read(kind: type, given: object) -> tuple[dict[str, Any], list[str]]:
    """Return its fields, whatever types they claim, for they came from anywhere; and the names that are not its."""
    if isinstance(given, kind):
        return {each.name: getattr(given, each.name) for each in fields(kind)}, []
    if not isinstance(given, Mapping):
        raise ConfigInvalid(f"cannot use {type(given).__name__} as {kind.__name__}; give a mapping")
    values = {each.name: given[each.name] if each.name in given else _default(each) for each in fields(kind)}
    unknown = sorted(str(key) for key in given if key not in values)
    known = ", ".join(sorted(values))
    return values, [f"{name} is unknown; known are: {known}" for name in unknown]


def _default(of: Field[Any]) -> object:
    if of.default_factory is not MISSING:
        return of.default_factory()
    return None if of.default is MISSING else of.default


def _option_problems(given: dict[str, Any]) -> Iterator[str]:
    if given["restart"] not in ("never", "on-crash"):
        yield f"restart is {given['restart']!r}, not 'never' or 'on-crash'"
    numbers = {name: (given[name], least) for name, least in _LEAST.items()}
    for name, kind in _PARTS.items():
        if isinstance(given[name], kind):
            parts = {each.name: getattr(given[name], each.name) for each in fields(kind)}
            numbers |= {f"{name}.{part}": (value, 0) for part, value in parts.items()}
        else:
            yield f"{name} is no {kind.__name__}"
    for name, (value, least) in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            yield f"{name} is not a number from {least}"
    if isinstance(given["fs"], str) and given["fs"] != "default":
        yield f"fs is {given['fs']!r}, not 'default', None or a handler"
    if given["data_dir"] is not None and not isinstance(given["data_dir"], str | Path):
        yield "data_dir is not a path"
    if given["forbidden"] is not None and not isinstance(given["forbidden"], ForbiddenPlaces):
        yield "forbidden is no ForbiddenPlaces"
    if not isinstance(given["workspace"], str) or not _WORKSPACE.fullmatch(given["workspace"]):
        yield "workspace is not a name of letters, digits, `_` and `-`"


def _definition_problems(given: dict[str, Any]) -> Iterator[str]:
    for name in ("command", "id"):
        text = given[name]
        if not (name == "id" and text is None) and not (isinstance(text, str) and text.strip()):
            yield f"{name} is not a text"
    if not isinstance(given["args"], list | tuple) or not all(isinstance(arg, str) for arg in given["args"]):
        yield "args is not a list of texts"
    env = given["env"].items() if isinstance(given["env"], Mapping) else ((None, None),)
    if not all(isinstance(each, str) for pair in env for each in pair):
        yield "env is not a mapping of texts"
    if not isinstance(given["meta"], Mapping):
        yield "meta is not a mapping"
    for name in ("cwd", "home"):
        if given[name] is not None and not isinstance(given[name], str | Path):
            yield f"{name} is not a path"
    for name, kind in (("beginning", SessionStart), ("modes", AskingModes)):
        if not isinstance(given[name], kind):
            yield f"{name} is no {kind.__name__}"
    if given["driver"] not in get_args(DriverName):
        yield f"driver is {given['driver']!r}, not one of {', '.join(get_args(DriverName))}"


def _refuse(what: str, problems: list[str]) -> None:
    if problems:
        raise ConfigInvalid(f"cannot use {what}: {'; '.join(problems)}", {"problems": problems})


_LEAST = {"restart_limit": 0, "kill_timeout_ms": 0, "max_line": 1024}
_PARTS: dict[str, type[Backoff] | type[Limits]] = {"restart_backoff": Backoff, "limits": Limits}


# What is kept of a session beside its events: enough to take it up again after the host restarts.
#
# MCP servers are kept by name only: what they are given are secrets, and whoever resumes gives them again.


class SessionMeta(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    agent_session_id: str
    cwd: str
    additional_directories: tuple[str, ...] = ()
    agent_definition_id: str | None = None
    mcp_servers: tuple[McpServerNames, ...] = ()
    title: str | None = None
    updated_at: str | None = None
    details: Mapping[str, object] | None = None  # of whoever opened it: plain data, and no secret
    reopens: bool = False  # if it is closed: a later host knows it, and a load opens it again

    def noted_as(self, other: SessionMeta) -> SessionMeta:
        """Keep the place, with what was noted of the session since."""
        return msgspec.structs.replace(
            self,
            title=other.title,
            updated_at=other.updated_at,
            details=other.details,
            reopens=other.reopens,
        )

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def folders(self) -> list[Path]:
        """Return them as they were when it began, without links: one that is put in their place later moves nothing."""
        return [Path(each) for each in (self.cwd, *self.additional_directories)]

    def snapshot(self, session_id: str, status: Status, agent_id: str | None) -> SessionUpdated:
        return SessionUpdated(
            session_id=session_id,
            status=status,
            cwd=self.cwd,
            additional_directories=self.additional_directories,
            agent_id=agent_id,
            agent_definition_id=self.agent_definition_id,
            mcp_servers=self.mcp_servers or None,
            title=self.title,
            updated_at=self.updated_at,
        )


class SessionPlace(NamedTuple):
    """Folders of a session, and its MCP servers; what is not given stays as it is."""

    cwd: Path | str | None = None
    mcp: tuple[McpServer, ...] = ()
    directories: Sequence[Path | str] = ()

    def meta(
        self, definition: AgentDefinition, known: SessionMeta | None = None, *, agent_session_id: str = ""
    ) -> SessionMeta:
        """Describe a session there, where its paths are real. Without a folder it works where it did, and a new one where its agent does."""
        own = os.path.realpath(definition.cwd or ".")
        former = known or SessionMeta(agent_session_id=agent_session_id, cwd=own)
        return msgspec.structs.replace(
            former,
            cwd=former.cwd if self.cwd is None else str(self.cwd),
            additional_directories=tuple(map(str, self.directories)) or former.additional_directories,
            agent_definition_id=definition.name,
            mcp_servers=tuple(McpServerNames.from_server(server) for server in self.mcp),
        )


async def real_folder(path: Path | str) -> str:
    """Resolve `..`, `.`, doubled slashes and links: as text `link/..` is another folder than the agent's."""
    if len(str(path)) > MAX_PATH:
        raise InvalidParams("cannot work in a folder whose path is too long to be opened; name another")
    try:
        return await asyncio.to_thread(os.path.realpath, path)
    except (OSError, ValueError):  # a NUL: whoever opens it says what is wrong with it
        return str(Path(path).absolute())  # noqa: ASYNC240 - which looks at no disk


def read_meta(raw: bytes) -> SessionMeta | None:
    """Return None for what was not written by a host, or cannot be read."""
    try:
        return msgspec.json.decode(raw, type=SessionMeta)
    except msgspec.MsgspecError:
        return None
