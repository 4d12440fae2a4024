"""The trace on disk and for telemetry: one JSON line for each step, and attributes for OpenTelemetry.

A line holds what was hashed, the hash, and beside them what was said: `content` has for each name the value as it was
written, its salt and whether it is there. So an export can be verified without the database: `verify_export`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from itertools import groupby
from typing import Final, TypeAlias

import msgspec

from legation.approvals.chain_verify import Known, Link, Report, Verifier
from legation.approvals.trace import Step
from legation.approvals.trace_content import Said, Seals
from legation.approvals.trace_entries import read_step
from legation.errors import InvalidParams
from legation.store.database.queries import Queries
from legation.store.database.transaction import Database, Rows, Transaction
from legation.store.sealing import Sealer
from legation.wire.api.approvals import TraceEntry

BATCH: Final = 200  # steps in one read: their contents are in memory together

_SQL: Final = Queries("traces")

Attribute: TypeAlias = str | int | float | bool


class Content(msgspec.Struct, frozen=True):
    """`value` is the JSON as it was hashed, byte for byte."""

    salt: str
    value: msgspec.Raw


class Line(msgspec.Struct, frozen=True):
    step: Step
    hash: str
    content: Mapping[str, Content] = {}


async def lines(
    database: Database,
    sealer: Sealer,
    workspace: str,
    server: str,
    after: int = 0,
    *,
    with_contents: bool = True,
) -> AsyncGenerator[bytes]:
    """Every step after a number, each as one line. Content that was purged is left out, or all of it."""
    seals = Seals(sealer, workspace)
    while True:
        rows, contents = await database.read(_stretch, workspace, server, after, with_contents)
        if not rows:
            return
        said: dict[int, dict[str, Content]] = {}
        for opened in map(seals.open, contents):
            content = Content(opened.salt.hex(), msgspec.Raw(opened.plain))
            said.setdefault(opened.seq, {})[opened.name] = content
        for row in rows:
            line = Line(read_step(row), row["hash"], said.get(row["seq"], {}))
            yield msgspec.json.encode(line) + b"\n"
        after = rows[-1]["seq"]


async def lines_of(
    database: Database,
    sealer: Sealer,
    workspace: str,
    servers: Iterable[str],
    after: int = 0,
    *,
    with_contents: bool = True,
) -> AsyncGenerator[bytes]:
    """Of several chains, one after another: `chains` names all of a workspace."""
    for server in servers:
        chain = lines(database, sealer, workspace, server, after, with_contents=with_contents)
        async with aclosing(chain):
            async for line in chain:
                yield line


def verify_export(exported: Iterable[bytes], known: Mapping[str, Known] | None = None) -> list[Report]:
    """Of every chain in it, each from its first step on. That the ends are there only `known` can show, by server."""
    heads = dict(known or {})
    reports = [
        _verified(chain, heads.pop(server, None))
        for (_, server), chain in groupby(
            _read(exported), lambda line: (line.step.workspace_id, line.step.server)
        )
    ]
    workspace = reports[0].workspace if reports else ""
    for server, head in heads.items():  # a whole chain that is not there any more
        gone = Verifier()
        gone.end(gone.last, head)
        reports.append(gone.report(workspace, server))
    return reports


def verify_lines(exported: Iterable[bytes], known: Known = None) -> Report:
    """Of an export of one chain."""
    return _verified(_read(exported), known)


def otel_attributes(entry: TraceEntry) -> dict[str, Attribute]:
    """The same entry as attributes of a span; what has no value is left out, and so are the arguments."""
    named: dict[str, Attribute | None] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.agent.id": entry.agent_id,
        "gen_ai.tool.name": entry.tool,
        "gen_ai.tool.call.id": entry.tool_call_id,
        "gen_ai.conversation.id": entry.session_id,
        "legation.turn.id": entry.turn_id,
        "legation.action.digest": entry.digest,
        "legation.policy": entry.policy,
        "legation.policy.rule": entry.policy_rule,
        "legation.reason": entry.reason,
        "legation.approval.id": entry.approval_id,
        "legation.approval.status": entry.approval_status,
        "legation.approval.by": entry.approved_by,
        "legation.approval.ms": entry.approval_ms,
        "legation.supervisor.reasoning": entry.supervisor_reasoning,
        "legation.supervisor.confidence": entry.supervisor_confidence,
        "http.response.status_code": entry.status_code,
        "legation.latency.ms": entry.latency_ms,
        "error.message": entry.error,
    }
    return {name: value for name, value in named.items() if value is not None}


def _read(exported: Iterable[bytes]) -> Iterator[Line]:
    for number, raw in enumerate(exported, 1):
        try:
            line = msgspec.json.decode(raw, type=Line)
            for content in line.content.values():
                bytes.fromhex(content.salt)
            # A member that no hash covers, or that is there twice, would be believed with the rest of a good chain.
            if msgspec.json.encode(line) != raw.rstrip(b"\r\n"):
                raise ValueError
        except ValueError:
            raise InvalidParams(
                f"cannot read line {number} of the export: it is damaged; export it again"
            ) from None
        yield line


def _verified(chain: Iterable[Line], known: Known) -> Report:
    verifier = Verifier()
    place = ("", "")
    for line in chain:
        link = Link(line.step, line.hash)
        said = [_said(line.step, name, content) for name, content in line.content.items()]
        verifier.link(link)
        verifier.known(link, known)
        verifier.contents(line.step, said, purged=not said)
        place = (line.step.workspace_id, line.step.server)
    verifier.end(verifier.last, known)
    return verifier.report(*place)


def _said(step: Step, name: str, content: Content) -> Said:
    salt = bytes.fromhex(content.salt)
    return Said(step.server, step.seq, name, step.trace_id, salt, bytes(content.value))


def _stretch(workspace: str, server: str, after: int, with_contents: bool) -> Transaction[tuple[Rows, Rows]]:
    place = {"workspace": workspace, "server": server, "after": after}
    rows = yield _SQL.steps_between(**place, last=2**53, limit=BATCH)
    if not rows or not with_contents:
        return rows, ()
    return rows, (yield _SQL.contents_between(**place, last=rows[-1]["seq"]))
