"""Tool calls over HTTP to a real application, with a real backend behind it and people who answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from tests.gateway.backend import Backend
from tests.server.rig import PUBLIC_URL, Rig, open_rig

from legation.approvals.approval import Approval
from legation.approvals.trace import entries
from legation.approvals.trace.chain import Chain, verify
from legation.approvals.trace.step import StepKind
from legation.clock import new_id
from legation.store.identity import tokens
from legation.store.identity.tokens import CredentialHash, Hashed, hint_of, new_token
from legation.wire.api.approvals import TraceDetail
from legation.wire.api.identity import NewToken

LIMIT = 30.0  # seconds: the application's time to come to what a test waits for
POLICY = """
name: p
rules:
  - {id: reads, tools: "*.read", action: allow}
  - {id: asks, tools: "*.write", action: human_approval, timeout: 10m}
  - {id: supervised, tools: "*.post", action: supervisor}
  - {id: never, tools: "*.drop", action: deny, message: dropping is for people}
loop: off
"""
TOOLS = """
tools:
  - {name: db.read, url: "%(url)s/read", kind: read}
  - {name: db.write, url: "%(url)s/write", kind: edit, folder: /srv/project}
  - {name: db.post, url: "%(url)s/post"}
  - {name: db.drop, url: "%(url)s/drop", kind: delete}
  - {name: put.declared, url: "%(url)s/put", arguments: {whither: path, note: text}}
  - {name: slow.read, url: "%(url)s/slow", timeout: 500ms}
  - {name: keyed.read, url: "%(url)s/keyed", headers: {Authorization: {env: TEST_TOOL_KEY}}}
"""
KEY = "Bearer sk-KEPT-very-secret"  # no id has capitals


@dataclass
class Calls:
    rig: Rig
    backend: Backend
    agent: dict[str, str]  # the headers of claude's own token
    person: dict[str, str]  # of somebody who may approve
    asked: asyncio.Queue[Approval] = field(default_factory=asyncio.Queue)

    async def call(self, tool: str, body: object, **headers: str) -> httpx2.Response:
        return await self.rig.client.post(
            f"/tool/{tool}", json=body, headers={**self.agent, **_names(headers)}, timeout=LIMIT
        )

    def start(self, tool: str, body: object, **headers: str) -> asyncio.Task[httpx2.Response]:
        return asyncio.create_task(self.call(tool, body, **headers))

    def start_as(self, who: dict[str, str], tool: str, body: object) -> asyncio.Task[httpx2.Response]:
        """By another credential than the agent's, be it a browser's."""
        client = self.rig.client
        return asyncio.create_task(client.post(f"/tool/{tool}", json=body, headers=who, timeout=LIMIT))

    async def waiting(self) -> Approval:
        return await asyncio.wait_for(self.asked.get(), LIMIT)

    async def answer(self, approval: str, verb: str = "approve", **body: object) -> httpx2.Response:
        return await self.rig.client.post(f"/approvals/{approval}/{verb}", json=body, headers=self.person)

    async def trace(self, trace_id: str) -> TraceDetail:
        services = self.rig.services
        return await entries.detail(services.database, services.sealer, "local", trace_id)

    async def steps(self, trace_id: str) -> list[tuple[str, str | None]]:
        return [(step.step, step.reason) for step in (await self.trace(trace_id)).steps]

    async def recorded(self) -> dict[str, int]:
        """How much is on record and counted."""
        tables = ("trace_step", "approval", "counter", "acting")
        return {name: (await self.rig.rows(f"select count(*) as n from {name}"))[0]["n"] for name in tables}

    async def must_verify(self) -> int:
        """How many steps there are, all of them as they were written."""
        chain: Chain = self.rig.services.ledger.chain
        report = await verify(self.rig.services.database, chain.sealer, "local", chain.server)
        assert report.faults == ()
        return report.steps

    async def agents_token(self, name: str, *scopes: Any) -> dict[str, str]:
        return await token_of(self.rig, name, "agent", *scopes)


async def token_of(rig: Rig, label: str, kind: Any, *scopes: Any) -> dict[str, str]:
    secret, now = new_token(), rig.clock.now_ms()
    kept = Hashed(CredentialHash(rig.services.keys.pepper).token(secret.reveal()), hint_of(secret))
    new = NewToken(label=label, kind=kind, scopes=[*scopes] or None)
    owner = rig.people["owner"]
    await rig.services.database.transact(
        tokens.create,
        await rig.principal(owner),
        owner,
        new,
        kept,
        token=new_id("tok", now_ms=now),
        now_ms=now,
    )
    return {"authorization": f"Bearer {secret.reveal()}"}


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def open_calls(
    dialect: str,
    folder: Path,
    request: pytest.FixtureRequest,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    policy: str = POLICY,
    **settings: object,
) -> AsyncIterator[Calls]:
    monkeypatch.setenv("TEST_TOOL_KEY", KEY)
    (folder / "policy.yaml").write_text(policy)
    (folder / "tools.yaml").write_text(TOOLS % {"url": backend.url})
    data = folder / "data"
    data.mkdir(mode=0o700)
    flags = {"policy": folder / "policy.yaml", "tools": folder / "tools.yaml", **settings}
    async with open_rig(dialect, data, request, **flags) as rig:
        agent = await token_of(rig, "claude", "agent")
        calls = Calls(rig, backend, agent, await rig.cookie(rig.people["approver"]))

        def on_change(approval: Approval, happened: StepKind) -> None:
            if happened is StepKind.PROPOSED:
                calls.asked.put_nowait(approval)

        rig.services.inbox.on_change(on_change)
        yield calls


class Leaving:
    """One request, as a server hands it to the application, whose caller can leave."""

    def __init__(self, calls: Calls, tool: str, body: object) -> None:
        self.status: int | None = None
        self._gone = asyncio.Event()
        self._body: list[bytes] = [msgspec.json.encode(body)]
        headers = {
            "host": PUBLIC_URL.removeprefix("http://"),
            "content-type": "application/json",
            **calls.agent,
        }
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": f"/tool/{tool}",
            "raw_path": f"/tool/{tool}".encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("192.0.2.1", 40000),
            "server": ("legation.test", 80),
        }
        self._task = asyncio.create_task(calls.rig.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, object]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)

    async def leave(self) -> None:
        """Until the application has noticed."""
        self._gone.set()
        await asyncio.wait_for(self._task, LIMIT)
