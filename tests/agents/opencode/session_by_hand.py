"""A session of OpenCode's with nobody behind it: events are fed by hand, and what is said, asked and sent is kept."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from legation.agents.native import PermissionDecision
from legation.agents.opencode.messages import (
    ModelLimit,
    OfferedAgent,
    OpenCodeModel,
    OpenCodeSessionInfo,
    PermissionRule,
    ProviderInfo,
    Providers,
    SessionTime,
    read_event,
)
from legation.agents.opencode.options import OpenCodeOptions
from legation.agents.opencode.server import OpenCodeServer
from legation.agents.opencode.session import OpenCodeSession
from legation.wire.acp.methods import CreateElicitationRequest, CreateElicitationResponse
from legation.wire.acp.updates import SessionUpdate, ToolCallPatch
from legation.wire.event_types import DiagnosticCode

RECORDINGS = Path(__file__).parent / "recordings"
ASK = PermissionRule(permission="*", pattern="*", action="ask")


@dataclass
class SessionByHand:
    """Everybody at once: the host, its people, and the server's HTTP side."""

    said: list[SessionUpdate] = field(default_factory=list)
    unknown: list[bytes] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    permissions: list[tuple[ToolCallPatch, asyncio.Future[PermissionDecision]]] = field(default_factory=list)
    questions: list[CreateElicitationRequest] = field(default_factory=list)
    answer: CreateElicitationResponse | None = None
    sent: list[tuple[str, Any]] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)  # what the server answers to GET, by path
    can_ask_questions: bool = True

    # The host.

    def say(self, session_id: str, *updates: SessionUpdate, native: bytes = b"") -> None:  # noqa: ARG002
        self.said += updates

    def say_unknown(self, session_id: str, line: bytes) -> None:  # noqa: ARG002
        self.unknown.append(line)

    def mark_cut(self, session_id: str, call_id: str) -> None:  # noqa: ARG002
        self.cut.append(call_id)

    def trouble(self, code: DiagnosticCode, message: str) -> None:  # noqa: ARG002
        self.troubles.append(message)

    def ask_permission(self, session_id: str, call: ToolCallPatch) -> asyncio.Task[PermissionDecision]:  # noqa: ARG002
        decision: asyncio.Future[PermissionDecision] = asyncio.get_running_loop().create_future()
        self.permissions.append((call, decision))

        async def decided() -> PermissionDecision:
            return await decision

        return asyncio.create_task(decided())

    def ask_question(self, request: CreateElicitationRequest) -> asyncio.Task[CreateElicitationResponse]:
        self.questions.append(request)

        async def answered() -> CreateElicitationResponse:
            return self.answer or CreateElicitationResponse(action="cancel")

        return asyncio.create_task(answered())

    # The server's HTTP side: `server.ServerApi`.

    async def get(self, path: str, into: Any, **_: object) -> Any:
        return msgspec.convert(self.given.get(path, {}), into)

    async def do(self, method: str, path: str, body: Any = None, **_: object) -> None:  # noqa: ARG002
        self.sent.append((path.rpartition("/session/")[2] if "session" in path else path, body))

    @property
    def api(self) -> SessionByHand:
        return self

    def texts(self, kind: str) -> str:
        return "".join(
            update["content"]["text"] for update in map(_plain, self.said) if update["sessionUpdate"] == kind
        )

    def kinds(self) -> list[str]:
        return [_plain(update)["sessionUpdate"] for update in self.said]


def _plain(update: SessionUpdate) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(msgspec.json.encode(update))
    return plain


def make_session(bench: SessionByHand, session_id: str) -> OpenCodeSession:
    info = OpenCodeSessionInfo(
        id=session_id, directory="/w", title="", time=SessionTime(created=0, updated=0)
    )
    model = OpenCodeModel(id="m", name="m", limit=ModelLimit(context=1000))
    providers = Providers(providers=(ProviderInfo(id="p", name="p", models={"m": model}),), default={})
    agents = tuple(OfferedAgent(name=name, mode="primary", permission=(ASK,)) for name in ("build", "plan"))
    offers = OpenCodeOptions(agents, providers, model="p/m")
    return OpenCodeSession(bench, cast(OpenCodeServer, bench), info, offers)


def recorded(name: str) -> list[dict[str, Any]]:
    lines = (RECORDINGS / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def session_of(entries: list[dict[str, Any]]) -> str:
    """The first that it tells of."""
    return next(
        str(entry["msg"]["properties"]["sessionID"])
        for entry in entries
        if entry["dir"] == "sse" and "sessionID" in entry["msg"].get("properties", {})
    )


def feed(session: OpenCodeSession, message: dict[str, Any]) -> None:
    event = read_event(json.dumps(message).encode())
    assert event is not None
    assert event.body is not None or event.is_dropped, event.type
    known = event.body is not None and (session.has(event.session_id) or event.type == "session.created")
    if known:
        session.take(event)
