"""The envelope endpoint: a host in plain data, for any transport to carry.

INV-3  What goes in and what comes out survives JSON unchanged: objects, lists, texts, numbers.

Errors of a call are values: ours with their own code, an agent's own error as `legation/agent-error`, what
the caller got wrong as `legation/config-invalid`, a defect of ours as `legation/internal` without its text.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from legation.agents.rpc import AgentRefused
from legation.errors import Code, ConfigInvalid, LegationError, TransportClosed
from legation.host.host import AcpHost
from legation.host.turn import PromptResult
from legation.wire import event_types, jsontext
from legation.wire.acp.methods import CancelledOutcome, McpServer, SelectedOutcome
from legation.wire.acp.updates import Audio, ConfigOption, EmbeddedResource, Image, ResourceLink, Text, Unread
from legation.wire.event_types import (
    ACP_TYPES,
    Diagnostic,
    DiagnosticCode,
    PermissionUpdated,
    normalize_session_update,
)
from legation.wire.events import Event

SHOWN = 40  # characters of a name that the caller made up, in a message


def _turn_end(result: PromptResult) -> object:
    members = {"stopReason": result.stop_reason, "error": result.error, "usage": result.usage}
    return {name: value for name, value in members.items() if value is not None}


def _options(options: Sequence[ConfigOption]) -> object:
    return [option.value if isinstance(option, Unread) else option for option in options]


class Method(NamedTuple):
    """Method of the host, by its name there: what it needs, and what it takes besides, by their names on the wire."""

    name: str
    needs: Mapping[str, Any] = MappingProxyType({})
    takes: Mapping[str, Any] = MappingProxyType({})
    told: Callable[[Any], object] = lambda result: result  # what is told of its result

    async def __call__(self, host: AcpHost, given: object) -> object:
        """Return the result as plain data."""
        result = getattr(host, self.name)(**self.read({} if given is None else given))
        return plain(self.told(await result if isawaitable(result) else result))

    def read(self, given: object) -> dict[str, object]:
        """Return those that were given, by our names. All that is wrong with them is in one `ConfigInvalid`."""
        if not isinstance(given, Mapping):
            raise ConfigInvalid("cannot use the parameters: they are no object; give their names and values")
        known = {**self.needs, **self.takes}
        values: dict[str, object] = {}
        problems: list[str] = []
        for name, kind in known.items():
            value = given.get(name)
            if value is not None:
                try:
                    values[_CAPITAL.sub(r"_\g<0>", name).lower()] = msgspec.convert(value, kind)
                except msgspec.ValidationError as error:
                    problems.append(f"{name}: {jsontext.what_is_wrong(error)}")
            elif name in self.needs:  # null is the same as absent
                problems.append(f"{name} is missing")
        # A name that is misspelt must not pass for one left out; those with `_` are the caller's own.
        unknown = [str(name) for name in given if name not in known and not str(name).startswith("_")]
        problems += [f"{name[:SHOWN]!r} is no parameter of it" for name in unknown]
        if problems:
            raise ConfigInvalid(f"cannot use the parameters: {'; '.join(problems)}; correct the call")
        return values


_CAPITAL: Final = re.compile("[A-Z]")
_DEFINITION: Final = {"definition": dict[str, object]}  # the host itself says what is wrong inside
_AGENT: Final = {"agentId": str}
_SESSION: Final = {"sessionId": str}
_BOTH: Final = _AGENT | _SESSION
_PLACE: Final = {"cwd": str, "mcpServers": tuple[McpServer, ...], "additionalDirectories": tuple[str, ...]}
_PROMPT: Final = {"prompt": tuple[Text | Image | Audio | ResourceLink | EmbeddedResource, ...]}
_OPTION: Final = {"configId": str, "value": str | bool}
_SUBSCRIBE: Final = Method("subscribe", {"fromSeq": Annotated[int, msgspec.Meta(ge=0)]}, {"sessionId": str})

HOST_RPC_METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        "agents/spawn": Method("spawn_agent", _DEFINITION),
        "agents/list": Method("get_agents"),
        "agents/dispose": Method("dispose_agent", _AGENT),
        "sessions/create": Method("create_session", _AGENT, _PLACE),
        "sessions/load": Method("load_session", _BOTH, _PLACE),
        "sessions/list": Method("list_sessions", _AGENT, {"cursor": str, "cwd": str}),
        "sessions/resume": Method("resume_session", _BOTH, _PLACE),
        "sessions/delete": Method("delete_session", _BOTH),
        "sessions/prompt": Method("prompt", {**_SESSION, **_PROMPT}, told=_turn_end),
        "sessions/cancel": Method("cancel", _SESSION),
        "sessions/close": Method("close_session", _SESSION),
        "sessions/setMode": Method("set_mode", {**_SESSION, "modeId": str}),
        "sessions/setConfigOption": Method("set_config_option", {**_SESSION, **_OPTION}, told=_options),
        "sessions/getAll": Method("get_sessions"),
        "sessions/restore": Method("restore_sessions"),
    }
)


# Writing.


def plain(value: object) -> object:
    """Make JSON's objects, lists, texts and numbers of it."""
    return json.loads(json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=_as_object)))


def _as_object(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"cannot make plain data of {type(value).__name__}")


Handler = Callable[[dict[str, object]], None]
Unsubscribe = Callable[[], None]

_log = logging.getLogger(__name__)


def _message(projection: PermissionUpdated) -> dict[str, object]:
    """Made anew for each handler: what one does to it is not seen by another."""
    word = "payload" if projection.state == "pending" else "settled"
    return {"id": projection.id, "kind": "permission", word: plain(projection)}


_NOT_PLAIN = (TypeError, ValueError, RecursionError)


class HostEndpoint:
    """Endpoint of a host that is entered; close it before the host, or after."""

    def __init__(self, host: AcpHost) -> None:
        self._host = host
        # Not what the log has from before: a host that was killed left questions there for whose answers nobody waits.
        self._outstanding = dict(host.stream.pending)
        self._handlers: dict[object, Handler] = {}  # of inbound requests
        self._subscriptions: set[Unsubscribe] = {host.subscribe(None, host.stream.stream.head, self._take)}
        self._closed = False

    async def request(self, request: object) -> dict[str, object]:
        """Answer `{"id", "method", "params"}` with `{"id", "result"}` or `{"id", "error"}`. Never raises."""
        members: Mapping[str, object] = request if isinstance(request, Mapping) else {}
        given = members.get("id")
        answered = given if isinstance(given, str | int) else None
        try:
            self._must_be_open("call")
            name = members.get("method")
            if not isinstance(name, str):
                raise ConfigInvalid('cannot call: there is no method; give {"id", "method", "params"}')
            if name not in HOST_RPC_METHODS:
                what = f"there is no such method; known are: {', '.join(HOST_RPC_METHODS)}"
                raise ConfigInvalid(f"cannot call {name[:SHOWN]!r}: {what}")
            result = await HOST_RPC_METHODS[name](self._host, members.get("params"))
        except Exception as error:  # noqa: BLE001 - the boundary: every call gets its answer
            return {"id": answered, "error": _described(error)}
        return {"id": answered, "result": result}

    def subscribe(self, session_id: str | None, from_seq: int, handler: Handler) -> Unsubscribe:
        """Give `handler` every event above `from_seq`, as `project_event` has it, until the result is called."""
        self._must_be_open("subscribe")
        _SUBSCRIBE.read({"sessionId": session_id, "fromSeq": from_seq})
        end = self._host.subscribe(session_id, from_seq, lambda event: handler(project_event(event)))

        def unsubscribe() -> None:
            end()
            self._subscriptions.discard(unsubscribe)

        self._subscriptions.add(unsubscribe)
        return unsubscribe

    @property
    def outstanding(self) -> list[dict[str, object]]:
        """The inbound requests that wait for an answer, in the order in which they were asked."""
        return [_message(each) for each in self._outstanding.values()]

    def on_inbound(self, handler: Handler) -> Unsubscribe:
        """Give `handler` `{"id", "kind": "permission", "payload"}` of each that waits, of those that do already before
        this returns; and `settled` later, each once."""
        self._must_be_open("listen for inbound requests")
        token = object()
        self._handlers[token] = handler
        for asked in list(self._outstanding.values()):
            self._tell(asked, [token])

        def unsubscribe() -> None:
            self._handlers.pop(token, None)

        return unsubscribe

    def _take(self, event: Event) -> None:
        payload = event_types.decode(event) if event.type == PermissionUpdated.event_type() else None
        if not isinstance(payload, PermissionUpdated):
            return
        if payload.state == "pending":
            self._outstanding[payload.id] = payload
        elif self._outstanding.pop(payload.id, None) is None:
            return
        self._tell(payload, self._handlers)

    def _tell(self, projection: PermissionUpdated, tokens: Iterable[object]) -> None:
        for token in list(tokens):
            handler = self._handlers.get(token)  # an earlier one may have removed it
            try:
                if handler is not None:
                    handler(_message(projection))
            except Exception as error:  # noqa: BLE001 - a handler's own fault, isolated and told
                what = f"an inbound handler failed on permission {projection.id}: {type(error).__name__}"
                self._host.stream.publish(Diagnostic(code=DiagnosticCode.SUBSCRIBER_ERROR, message=what))

    def respond_inbound(self, request_id: str, outcome: object) -> None:
        """Answer with `{"outcome": "selected", "optionId"}` or `{"outcome": "cancelled"}`; the first counts (INV-8)."""
        self._must_be_open("answer")
        try:
            asked = msgspec.convert(request_id, str)
            answer = msgspec.convert(outcome, SelectedOutcome | CancelledOutcome)
        except msgspec.ValidationError as error:
            what = f"cannot answer like that: {jsontext.what_is_wrong(error)}; correct the call"
            raise ConfigInvalid(what) from None
        self._host.respond_permission(asked, answer)

    async def close(self) -> None:
        """Tell nobody anything any more. The host goes on, and so do the calls that are under way."""
        self._closed = True
        for unsubscribe in list(self._subscriptions):
            unsubscribe()
        self._handlers.clear()
        self._outstanding.clear()

    def _must_be_open(self, what: str) -> None:
        if self._closed:
            raise TransportClosed(f"cannot {what}: the endpoint is closed; make another")


create_host_endpoint = HostEndpoint


def project_event(event: Event) -> dict[str, object]:
    """`{seq, at, type, payload, extensions?}`. Text that cannot be read is a payload as it stands."""
    projected: dict[str, object] = {"seq": event.seq, "at": event.at, "type": event.type}
    if event.type in ACP_TYPES:
        update = normalize_session_update(event.brief)
        projected |= {"type": update.type, "payload": update.payload}
        return projected | {"extensions": update.extensions} if update.extensions else projected
    try:
        return {**projected, "payload": jsontext.read(event.raw)}
    except jsontext.READ_ERRORS:
        return {**projected, "payload": event.raw.decode("utf-8", "replace")}


def _described(error: Exception) -> dict[str, object]:
    if not isinstance(error, LegationError):
        _log.error("cannot answer a call", exc_info=error)
        return {"code": Code.INTERNAL.value, "message": "cannot answer: a defect of Legation; see its log"}
    described: dict[str, object] = {"code": error.code.value, "message": error.message}
    try:
        # An agent's own error is there whole: `{code, message, data?}`, beside what we know of it.
        own: object = error.error if isinstance(error, AgentRefused) else {}
        data = {**_members(error.data or {}), **_members(own)}
    except _NOT_PLAIN:
        _log.warning("cannot tell the data of an error of code %s: it is no plain data", error.code)
        return described
    return {**described, "data": data} if data else described


def _members(value: object) -> dict[str, object]:
    found = plain(value)
    return found if isinstance(found, dict) else {}
