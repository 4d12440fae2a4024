"""The envelope endpoint: a host in plain data, for any transport to carry.

INV-3  What goes in and what comes out survives JSON unchanged: objects, lists, texts, numbers.

Errors of a call are values: ours with their own code, an agent's own error as `legation/agent-error`, what
the caller got wrong as `legation/config-invalid`, a defect of ours as `legation/internal` without its text.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from legation.agents.rpc import AgentRefused
from legation.errors import Code, ConfigInvalid, LegationError, TransportClosed
from legation.host.host import AcpHost
from legation.host.inbound import Inbound, InboundHandler
from legation.host.methods import HOST_RPC_METHODS, SHOWN, plain, what_is_wrong
from legation.wire import jsontext
from legation.wire.acp.permission import Cancelled, Selected
from legation.wire.events import UNRECOGNIZED, UPDATE_TYPES, Event
from legation.wire.normalize import normalize_session_update

__all__ = ["HOST_RPC_METHODS", "HostEndpoint", "create_host_endpoint", "project_event"]

EventHandler = Callable[[dict[str, object]], None]
Unsubscribe = Callable[[], None]

_ACP_TYPES = frozenset((*UPDATE_TYPES.values(), UNRECOGNIZED))
_NOT_PLAIN = (TypeError, ValueError, RecursionError)

_log = logging.getLogger(__name__)


def create_host_endpoint(host: AcpHost) -> HostEndpoint:
    """Of a host that is entered; close it before the host, or after."""
    return HostEndpoint(host)


class HostEndpoint:
    def __init__(self, host: AcpHost) -> None:
        self._host = host
        self._inbound = Inbound(host)
        self._subscriptions: set[Unsubscribe] = set()
        self._closed = False

    async def request(self, request: object) -> dict[str, object]:
        """`{"id", "method", "params"}` in, `{"id", "result"}` or `{"id", "error"}` out. Never raises, save
        that a caller that is cancelled cancels what it asked for."""
        members: Mapping[str, object] = request if isinstance(request, Mapping) else {}
        given = members.get("id")
        answered = given if isinstance(given, str | int) else None
        try:
            return {"id": answered, "result": await self._perform(members)}
        except Exception as error:  # noqa: BLE001 - the boundary: every call gets its answer
            return {"id": answered, "error": _described(error)}

    async def _perform(self, request: Mapping[str, object]) -> object:
        self._must_be_open("call")
        name = request.get("method")
        if not isinstance(name, str):
            raise ConfigInvalid('cannot call: there is no method; give {"id", "method", "params"}')
        method = HOST_RPC_METHODS.get(name)
        if method is None:
            known = ", ".join(HOST_RPC_METHODS)
            raise ConfigInvalid(f"cannot call {name[:SHOWN]!r}: there is no such method; known are: {known}")
        return await method(self._host, request.get("params"))

    def subscribe(self, session_id: str | None, from_seq: int, handler: EventHandler) -> Unsubscribe:
        """`handler` gets every event above `from_seq` of a session, or of the host, as `project_event` has
        it; nothing more once the returned function was called."""
        self._must_be_open("subscribe")
        _check_subscription(session_id, from_seq)
        wanted = True

        def deliver(event: Event) -> None:
            if wanted:
                handler(project_event(event))

        def unsubscribe() -> None:
            nonlocal wanted
            wanted = False
            end()
            self._subscriptions.discard(unsubscribe)

        end = self._host.subscribe(session_id, from_seq, deliver)
        self._subscriptions.add(unsubscribe)
        return unsubscribe

    @property
    def outstanding(self) -> list[dict[str, object]]:
        """The inbound requests that wait for an answer."""
        return self._inbound.outstanding

    def on_inbound(self, handler: InboundHandler) -> Unsubscribe:
        """`handler` gets `{"id", "kind": "permission", "payload"}` for each permission that waits, those that
        wait already before this returns; and the same `id` with `settled` for `payload` when it no longer
        does. Both are what `permission-updated` carries."""
        self._must_be_open("listen for inbound requests")
        return self._inbound.add(handler)

    def respond_inbound(self, request_id: str, outcome: object) -> None:
        """`{"outcome": "selected", "optionId"}` or `{"outcome": "cancelled"}`. The first answer counts, a
        second raises `AlreadyAnswered` (INV-8)."""
        self._must_be_open("answer")
        try:
            asked = msgspec.convert(request_id, str)
            answer = msgspec.convert(outcome, Selected | Cancelled)
        except msgspec.ValidationError as error:
            raise ConfigInvalid(
                f"cannot answer like that: {what_is_wrong(error)}; correct the call"
            ) from None
        self._host.respond_permission(asked, answer)

    async def close(self) -> None:
        """Nobody is told anything any more. The host goes on, and so do the calls that are under way."""
        self._closed = True
        for unsubscribe in list(self._subscriptions):
            unsubscribe()
        await self._inbound.close()

    def _must_be_open(self, what: str) -> None:
        if self._closed:
            raise TransportClosed(f"cannot {what}: the endpoint is closed; make another")


def project_event(event: Event) -> dict[str, object]:
    """`{seq, at, type, payload, extensions?}`. Text that cannot be read is a payload as it stands."""
    numbered: dict[str, object] = {"seq": event.seq, "at": event.at}
    if event.type not in _ACP_TYPES:
        return {**numbered, "type": event.type, "payload": _value(event.raw)}
    update = normalize_session_update(event.brief)
    projected = {**numbered, "type": update.type, "payload": update.payload}
    return {**projected, "extensions": update.extensions} if update.extensions else projected


def _value(raw: bytes) -> object:
    try:
        return jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return raw.decode("utf-8", "replace")


def _check_subscription(session_id: object, from_seq: object) -> None:
    problems: list[str] = []
    if session_id is not None and not isinstance(session_id, str):
        problems.append("the session id is no text")
    if isinstance(from_seq, bool) or not isinstance(from_seq, int) or from_seq < 0:
        problems.append("the number to start after is none from 0")
    if problems:
        raise ConfigInvalid(f"cannot subscribe: {'; '.join(problems)}; correct the call")


def _described(error: Exception) -> dict[str, object]:
    if not isinstance(error, LegationError):
        _log.error("cannot answer a call", exc_info=error)
        return {"code": Code.INTERNAL.value, "message": "cannot answer: a defect of Legation; see its log"}
    described: dict[str, object] = {"code": error.code.value, "message": error.message}
    data = _data(error)
    return described if data is None else {**described, "data": data}


def _data(error: LegationError) -> object:
    """An agent's own error is there whole: `{code, message, data?}`, beside what we know of it."""
    try:
        own = plain(error.error) if isinstance(error, AgentRefused) else {}
        known = plain(error.data or {})
    except _NOT_PLAIN:
        _log.warning("cannot tell the data of an error of code %s: it is no plain data", error.code)
        return None
    return {**known, **own} or None if isinstance(known, dict) and isinstance(own, dict) else None
