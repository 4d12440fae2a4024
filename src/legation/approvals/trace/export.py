"""The trace on disk and for telemetry: one JSON line for each step, and attributes for OpenTelemetry.

A line holds what was hashed, the hash, and beside them what was said: `content` has for each name the value as it was
written, its salt and whether it is there. So an export can be verified without the database: `verify_export`.

The file of a chain is written in the same form, step by step:

INV-F3  A step is in the file before anybody acts on it: a transaction that appends returns after that, or fails.
INV-F4  The file is whole lines of one chain, whenever its writer is killed; but for a last line without an end, which
        nobody acted on. `whole_lines` leaves that one out.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from pathlib import Path
from typing import Final, ParamSpec, Self, TypeAlias, TypeVar

import msgspec

from legation.approvals.trace.chain import Chain, Known, Ledger, Link, Report, Verifier
from legation.approvals.trace.entries import read_step
from legation.approvals.trace.step import ChainStep, OpenedContent, Seals, StepDraft
from legation.errors import Conflict, InvalidParams, StorageFailed
from legation.store.database.transaction import Database, Queries, Rows, Transaction
from legation.store.datafolder import make_folder
from legation.store.secrets.sealer import Sealer
from legation.tasks import in_thread
from legation.wire.api.approvals import TraceEntry

BATCH: Final = 200  # steps in one read: their contents are in memory together

_SQL: Final = Queries("traces")

T = TypeVar("T")
P = ParamSpec("P")
Attribute: TypeAlias = str | int | float | bool


class ExportedContent(msgspec.Struct, frozen=True):
    """`value` is the JSON as it was hashed, byte for byte."""

    salt: str
    value: msgspec.Raw


class ExportedStep(msgspec.Struct, frozen=True):
    step: ChainStep
    hash: str
    content: Mapping[str, ExportedContent] = {}


async def lines(
    database: Database,
    sealer: Sealer,
    workspace: str,
    server: str,
    after: int = 0,
    *,
    with_contents: bool = True,
) -> AsyncGenerator[bytes]:
    """Export every step after a number, each as one line. Content that was purged is left out, or all of it."""
    seals, begun = Seals(sealer, workspace), False
    while True:
        rows, contents = await database.read(_stretch, workspace, server, after, with_contents)
        if not rows:
            return
        if begun and rows[0]["seq"] != after + 1:
            raise Conflict("cannot go on with the export: the chain was cut meanwhile; export it again")
        begun = True
        said: dict[int, dict[str, ExportedContent]] = {}
        for opened in map(seals.open, contents):
            content = ExportedContent(opened.salt.hex(), msgspec.Raw(opened.plain))
            said.setdefault(opened.seq, {})[opened.name] = content
        for row in rows:
            line = ExportedStep(read_step(row), row["hash"], said.get(row["seq"], {}))
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
    """Export several chains, one after another: `chains` names all of a workspace."""
    for server in servers:
        chain = lines(database, sealer, workspace, server, after, with_contents=with_contents)
        async with aclosing(chain):
            async for line in chain:
                yield line


def verify_export(exported: Iterable[bytes], known: Mapping[str, Known] | None = None) -> list[Report]:
    """Verify every chain in it, each from its first step on. That the ends are there only `known` can show, by server."""
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
    """Verify an export of one chain."""
    return _verified(_read(exported), known)


def otel_attributes(entry: TraceEntry) -> dict[str, Attribute]:
    """Show the same entry as attributes of a span; what has no value is left out, and so are the arguments."""
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


def _read(exported: Iterable[bytes]) -> Iterator[ExportedStep]:
    for number, raw in enumerate(exported, 1):
        try:
            line = msgspec.json.decode(raw, type=ExportedStep)
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


def _verified(chain: Iterable[ExportedStep], known: Known) -> Report:
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


def _said(step: ChainStep, name: str, content: ExportedContent) -> OpenedContent:
    salt = bytes.fromhex(content.salt)
    return OpenedContent(step.server, step.seq, name, step.trace_id, salt, bytes(content.value))


def _stretch(workspace: str, server: str, after: int, with_contents: bool) -> Transaction[tuple[Rows, Rows]]:
    place = {"workspace": workspace, "server": server, "after": after}
    rows = yield _SQL.steps_between(**place, last=2**53, limit=BATCH)
    if not rows or not with_contents:
        return rows, ()
    return rows, (yield _SQL.contents_between(**place, last=rows[-1]["seq"]))


class TraceFile:
    """A file of one chain, made when there is something to write, private to its owner. `with` it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._size = 0  # of what is whole

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def append(self, data: bytes) -> None:
        """Append whole lines, durable when it returns. Blocks."""
        try:
            fd = self._opened()
            os.ftruncate(fd, self._size)  # what an attempt that failed left behind
            written = 0
            while written < len(data):
                written += os.pwrite(fd, data[written:], self._size + written)
            os.fdatasync(fd)
        except OSError as error:
            raise StorageFailed(
                f"cannot write the trace to {self.path}: {error.strerror}; mend that, or choose another --data-dir"
            ) from error
        self._size += len(data)

    def _opened(self) -> int:
        if self._fd is None:
            # A chain that is there already is not gone on with, for its keys are gone.
            make_folder(self.path.parent)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return self._fd


class FiledLedger(Ledger):
    """A ledger of one workspace whose steps are in a file as well (INV-F3)."""

    def __init__(self, database: Database, chain: Chain, workspace: str, file: TraceFile) -> None:
        super().__init__(database, chain)
        self._workspace = workspace
        self._file = file
        self._filed = 0  # the number of the last step in the file
        self._filing = asyncio.Lock()

    async def transact(
        self, workspace: str, work: Callable[P, Transaction[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        result = await super().transact(workspace, work, *args, **kwargs)
        await self._file_new()
        return result

    async def append(self, workspace: str, drafts: Sequence[StepDraft], now_ms: int) -> list[ChainStep]:
        steps = await super().append(workspace, drafts, now_ms)
        await self._file_new()
        return steps

    async def _file_new(self) -> None:
        async with self._filing:
            place = (self._workspace, self.chain.server, self._filed)
            async with aclosing(lines(self.database, self.chain.sealer, *place)) as unfiled:
                new = [line async for line in unfiled]
            if new:
                await in_thread(self._write, new)  # two at once would write into each other

    def _write(self, new: Sequence[bytes]) -> None:
        # All steps of a transaction cost one wait for the disk.
        self._file.append(b"".join(new))
        self._filed += len(new)


def whole_lines(path: Path) -> Iterator[bytes]:
    """Read a file without a last line that was being written when its writer was killed."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line
