"""What a host is made with, and what an agent is started with. Checked at once, frozen for good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from legation.clock import Clock, SystemClock
from legation.errors import ConfigInvalid
from legation.host.handlers import FsHandler, QuestionHandler, TerminalHandler
from legation.proc import Launcher
from legation.proc.lines import MAX_LINE, Redact, unchanged
from legation.store.backend import Backend
from legation.wire.ask import Approver

Restart = Literal["never", "on-crash"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before each restart in a row, in milliseconds."""

    initial_ms: float = 1000
    factor: float = 2
    max_ms: float = 30_000

    def seconds(self, attempt: int) -> float:
        """Before the first restart `attempt` is 1."""
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
    temporary. Without `storage`, events live in memory.
    """

    restart: Restart = "never"
    restart_limit: int = 3
    restart_backoff: Backoff = Backoff()
    storage: Backend | None = None
    fs: FsHandler | Literal["default"] | None = "default"
    terminal: TerminalHandler | None = None
    questions: QuestionHandler | None = None
    approver: Approver | None = None
    kill_timeout_ms: float = 5000
    limits: Limits = Limits()
    max_line: int = MAX_LINE
    redact: Redact = unchanged
    data_dir: Path | None = None
    launcher: Launcher | None = None
    clock: Clock = field(default_factory=SystemClock)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDefinition:
    """`env` is added to a clean environment; `cwd` is the host's own unless given; `meta` is the caller's."""

    command: str
    args: tuple[str, ...] = ()
    id: str | None = None
    cwd: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    meta: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.id or Path(self.command).name


def resolve_host_options(options: HostOptions | Mapping[str, object] | None = None) -> HostOptions:
    """The options as they will be used; everything that is wrong with them in one `ConfigInvalid`."""
    resolved = _make(HostOptions, options if options is not None else {})
    _refuse("the host options", _option_problems(_values(resolved)))
    return resolved


def resolve_agent_definition(definition: AgentDefinition | Mapping[str, object]) -> AgentDefinition:
    """The definition as it will be used: absolute, copied, frozen."""
    given = _make(AgentDefinition, definition)
    _refuse("the agent definition", _definition_problems(_values(given)))
    return replace(
        given,
        args=tuple(given.args),
        cwd=Path(given.cwd or ".").absolute(),
        env=MappingProxyType(dict(given.env)),
        meta=MappingProxyType(dict(given.meta)),
    )


def _make(kind: type[_T], given: object) -> _T:
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise ConfigInvalid(f"cannot use {type(given).__name__} as {_WORDS[kind]}; give a mapping")
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(str(key) for key in given if key not in known)
    if unknown:
        listed = ", ".join(sorted(known))
        raise ConfigInvalid(f"cannot use {', '.join(unknown)} in {_WORDS[kind]}; known are: {listed}")
    try:
        return kind(**given)
    except TypeError:
        raise ConfigInvalid(f"cannot make {_WORDS[kind]}: a required field is missing") from None


def _values(record: object) -> dict[str, Any]:
    """Whatever types its fields claim: they came from anywhere."""
    return {each.name: getattr(record, each.name) for each in fields(record)}  # type: ignore[arg-type]


def _option_problems(given: dict[str, Any]) -> Iterator[str]:
    if given["restart"] not in ("never", "on-crash"):
        yield f"restart is {given['restart']!r}, not 'never' or 'on-crash'"
    numbers = {name: (given[name], least) for name, least in _LEAST.items()}
    for name, kind in (("restart_backoff", Backoff), ("limits", Limits)):
        if not isinstance(given[name], kind):
            yield f"{name} is not a {kind.__name__}"
            continue
        numbers |= {f"{name}.{part}": (value, 0) for part, value in _values(given[name]).items()}
    for name, (value, least) in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
            yield f"{name} is not a number from {least}"


def _definition_problems(given: dict[str, Any]) -> Iterator[str]:
    for name in ("command", "id"):
        text = given[name]
        if not (name == "id" and text is None) and not (isinstance(text, str) and text.strip()):
            yield f"{name} is not a text"
    if not isinstance(given["args"], list | tuple) or not all(isinstance(arg, str) for arg in given["args"]):
        yield "args is not a list of texts"
    env = given["env"]
    if not isinstance(env, Mapping) or not all(
        isinstance(each, str) for pair in env.items() for each in pair
    ):
        yield "env is not a mapping of texts"
    if not isinstance(given["meta"], Mapping):
        yield "meta is not a mapping"
    if given["cwd"] is not None and not isinstance(given["cwd"], str | Path):
        yield "cwd is not a path"


def _refuse(what: str, problems: Iterator[str]) -> None:
    found = list(problems)
    if found:
        raise ConfigInvalid(f"cannot use {what}: {'; '.join(found)}")


_LEAST = {"restart_limit": 0, "kill_timeout_ms": 0, "max_line": 1024}
_WORDS: dict[type, str] = {HostOptions: "host options", AgentDefinition: "an agent definition"}
