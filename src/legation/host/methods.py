"""The methods of the envelope endpoint: what each takes, and which method of the host it calls.

INV-3  Parameters and results are plain data: what JSON can carry, and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar, dataclass_transform

import msgspec

from legation.errors import ConfigInvalid
from legation.wire.acp.content import Audio, EmbeddedResource, Image, ResourceLink, Text, Unread
from legation.wire.acp.mcp import McpServer

if TYPE_CHECKING:
    from legation.host.host import AcpHost
    from legation.host.turn import PromptResult

Given = Mapping[str, object]

SHOWN = 40  # characters of a name that the caller made up, in a message


# Type checkers do not let options of a Struct pass to its children, as msgspec does.
@dataclass_transform(frozen_default=True, kw_only_default=True)
class Params(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """camelCase on the wire. Names that start with `_` are the caller's own and not looked at."""


class SpawnParams(Params):
    definition: dict[str, object]  # the host itself says what is wrong inside


class AgentParams(Params):
    agent_id: str


class SessionParams(Params):
    session_id: str


class BothParams(AgentParams):
    session_id: str


class CreateParams(AgentParams):
    cwd: str | None = None
    mcp_servers: tuple[McpServer, ...] = ()
    additional_directories: tuple[str, ...] = ()


class TakeUpParams(CreateParams, kw_only=True):
    session_id: str


class ListParams(AgentParams):
    cursor: str | None = None
    cwd: str | None = None


class PromptParams(SessionParams):
    prompt: tuple[Text | Image | Audio | ResourceLink | EmbeddedResource, ...]


class ModeParams(SessionParams):
    mode_id: str


class ConfigParams(SessionParams):
    config_id: str
    value: str | bool


P = TypeVar("P", bound=Params)


@dataclass(frozen=True, slots=True)
class Method(Generic[P]):
    params: type[P]
    call: Callable[[AcpHost, P], Awaitable[object]]

    async def __call__(self, host: AcpHost, given: object) -> object:
        """The result as plain data."""
        return plain(await self.call(host, read(self.params, given)))


class _Setup(TypedDict):
    cwd: str | None
    mcp_servers: tuple[McpServer, ...]
    additional_directories: tuple[str, ...]


def _setup(given: CreateParams) -> _Setup:
    return _Setup(
        cwd=given.cwd,
        mcp_servers=given.mcp_servers,
        additional_directories=given.additional_directories,
    )


async def _list_agents(host: AcpHost, _: Params) -> object:
    return host.get_agents()


async def _create(host: AcpHost, given: CreateParams) -> object:
    return await host.create_session(given.agent_id, **_setup(given))


async def _load(host: AcpHost, given: TakeUpParams) -> object:
    return await host.load_session(given.agent_id, given.session_id, **_setup(given))


async def _resume(host: AcpHost, given: TakeUpParams) -> object:
    return await host.resume_session(given.agent_id, given.session_id, **_setup(given))


async def _prompt(host: AcpHost, given: PromptParams) -> object:
    return _ended(await host.prompt(given.session_id, given.prompt))


def _ended(result: PromptResult) -> dict[str, object]:
    members = {"stopReason": result.stop_reason, "error": result.error, "usage": result.usage}
    return {name: value for name, value in members.items() if value is not None}


async def _set_config_option(host: AcpHost, given: ConfigParams) -> object:
    options = await host.set_config_option(given.session_id, given.config_id, given.value)
    return [option.value if isinstance(option, Unread) else option for option in options]


async def _get_sessions(host: AcpHost, _: Params) -> object:
    return host.get_sessions()


HOST_RPC_METHODS: Final[Mapping[str, Method[Any]]] = MappingProxyType(
    {
        "agents/spawn": Method(SpawnParams, lambda host, given: host.spawn_agent(given.definition)),
        "agents/list": Method(Params, _list_agents),
        "agents/dispose": Method(AgentParams, lambda host, given: host.dispose_agent(given.agent_id)),
        "sessions/create": Method(CreateParams, _create),
        "sessions/load": Method(TakeUpParams, _load),
        "sessions/list": Method(
            ListParams,
            lambda host, given: host.list_sessions(given.agent_id, cursor=given.cursor, cwd=given.cwd),
        ),
        "sessions/resume": Method(TakeUpParams, _resume),
        "sessions/delete": Method(
            BothParams, lambda host, given: host.delete_session(given.agent_id, given.session_id)
        ),
        "sessions/prompt": Method(PromptParams, _prompt),
        "sessions/cancel": Method(SessionParams, lambda host, given: host.cancel(given.session_id)),
        "sessions/close": Method(SessionParams, lambda host, given: host.close_session(given.session_id)),
        "sessions/setMode": Method(
            ModeParams, lambda host, given: host.set_mode(given.session_id, given.mode_id)
        ),
        "sessions/setConfigOption": Method(ConfigParams, _set_config_option),
        "sessions/getAll": Method(Params, _get_sessions),
        "sessions/restore": Method(Params, lambda host, _: host.restore_sessions()),
    }
)


# Reading.


def read(kind: type[P], given: object) -> P:
    """All that is wrong with them is in one `ConfigInvalid`."""
    if given is None:
        given = {}
    if not isinstance(given, Mapping):
        raise ConfigInvalid("cannot use the parameters: they are no object; give their names and values")
    values: dict[str, object] = {}
    problems = [*_fill(kind, given, values), *_unknown(kind, given)]
    if problems:
        raise ConfigInvalid(f"cannot use the parameters: {'; '.join(problems)}; correct the call")
    return kind(**values)


def _fill(kind: type[Params], given: Given, values: dict[str, object]) -> Iterator[str]:
    for field in msgspec.structs.fields(kind):
        value = given.get(field.encode_name)
        if value is None:  # null is the same as absent
            if field.required:
                yield f"{field.encode_name} is missing"
            continue
        try:
            values[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            yield f"{field.encode_name}: {what_is_wrong(error)}"


def _unknown(kind: type[Params], given: Given) -> Iterator[str]:
    """A name that is misspelt must not pass for one left out."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    for name in given:
        if name not in known and not str(name).startswith("_"):
            yield f"{str(name)[:SHOWN]!r} is no parameter of it"


def what_is_wrong(error: msgspec.ValidationError) -> str:
    """Without the value, which may be part of a prompt."""
    text = str(error)
    if not text.startswith("Invalid value"):
        return text
    _, at, where = text.rpartition(" - at ")
    return f"Invalid value{at}{where}" if at else "Invalid value"


# Writing.


def plain(value: object) -> object:
    """As JSON has it: objects, lists, texts, numbers."""
    return _listed(msgspec.to_builtins(value, str_keys=True, enc_hook=_as_object))


def _as_object(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"cannot make plain data of {type(value).__name__}")


def _listed(value: object) -> object:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    return value
