"""`legation trace`: every call, how it was decided, and that nobody changed the record."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from legation.cli.approvals import SHOWN, Rows, page_size
from legation.cli.connection import connect
from legation.cli.flags import Json, PlaceFlags
from legation.cli.table import named, say_json, show
from legation.cli.terminal import Terminal, line, plain
from legation.errors import NotFound
from legation.wire.api.approvals import TraceDetail, TraceEntry, TraceStep

app = App(
    name="trace",
    help="""What agents did and who allowed it: list, show, verify, export.

Without a command it lists calls, the newest first.""",
)
app.command(
    "legation.cli.trace_verify:verify",
    name="verify",
    help="""Prove that the record is as it was written: no step changed, removed, put in or moved. Exit code 1 if not.

Keep the head it prints somewhere else, and give it back with --head: only that shows that no end was cut off.""",
)

Server = Annotated[
    str | None, Parameter(help="Only this server's chain, by its name as `verify` shows it. Without it, all.")
]


@app.default
@app.command(name="list")
def list_(
    *,
    agent: Annotated[str | None, Parameter(help="Of the agent of this name.")] = None,
    tool: Annotated[str | None, Parameter(help="Of the tool of this name.")] = None,
    session: Annotated[str | None, Parameter(help="Of this session.")] = None,
    since: Annotated[
        str | None, Parameter(help="Not older: 24h, or a time such as 2026-01-31T08:00:00Z.")
    ] = None,
    limit: Rows = SHOWN,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """List calls, the newest first: what was decided, by whom, and how it ended."""
    columns = {
        "trace": lambda entry: entry.trace_id,
        "time": lambda entry: entry.timestamp,
        "agent": lambda entry: entry.agent_id,
        "tool": lambda entry: entry.tool,
        "policy": lambda entry: entry.policy,
        "rule": lambda entry: entry.policy_rule,
        "answer": _answer,
        "code": lambda entry: None if entry.status_code is None else str(entry.status_code),
    }
    with connect(settings) as server:
        rows = server.traces.list(
            agent=agent, tool=tool, session=session, since=since, limit=page_size(limit)
        )
        show(islice(rows, limit), columns, json=json, if_empty="no calls are recorded that fit")
    return 0


def _answer(entry: TraceEntry) -> str | None:
    """Where somebody was asked; else the reason, where there is more than the rule."""
    if entry.approval_status is None:
        return entry.reason
    by = entry.approved_by_name or entry.approved_by
    return f"{entry.approval_status} by {by}" if by else entry.approval_status


@app.command(name="show")
def show_(trace: str, /, *, json: Json = False, settings: PlaceFlags | None = None) -> int:
    """Show one call with every step of it.

    Parameters
    ----------
    trace
        Its whole id, as listed.
    """
    with connect(settings) as server, _explained(trace):
        found = server.traces.get(trace)
    if json:
        say_json(found)
        return 0
    out = Terminal()
    for text in _words(found):
        out.say(text)
    show(found.steps, _STEP_COLUMNS, json=False, if_empty="no steps")
    return 0


@contextmanager
def _explained(trace: str) -> Iterator[None]:
    try:
        yield
    except NotFound:
        raise NotFound(
            f"cannot show {line(trace)}: there is no such trace here; "
            "give the whole id, as `legation trace` lists it"
        ) from None


_STEP_COLUMNS = {
    "step": lambda step: step.step,
    "time": lambda step: step.at,
    "by": lambda step: step.by_name or step.by,
    "says": lambda step: _says(step),
    "number": lambda step: f"{step.server}:{step.seq}",
    "hash": lambda step: step.hash[:12],
}


def _says(step: TraceStep) -> str | None:
    parts = (step.policy, step.policy_rule, step.status, step.reason, step.status_code)
    return " ".join(str(part) for part in parts if part is not None) or None


def _words(trace: TraceDetail) -> Iterator[str]:
    from legation.cli.approvals_view import arguments

    known = {
        "agent": trace.agent_id,
        "tool": trace.tool,
        "session": trace.session_id,
        "decision": trace.policy,
        "rule": trace.policy_rule,
        "why": trace.reason,
        "approval": trace.approval_id,
        "answer": trace.approval_status,
        "by": named(trace.approved_by, trace.approved_by_name),
        "supervisor": trace.supervisor_reasoning,
        "confidence": trace.supervisor_confidence,
        "code": trace.status_code,
        "error": trace.error,
    }
    yield line(trace.trace_id)
    for name, value in known.items():
        if value is not None:
            yield f"{name.ljust(10)} {line(str(value))}"
    yield "arguments"
    for text in arguments(trace.params):
        yield f"    {text}"
    if trace.result is not None:
        yield "result"
        for text in _json(trace.result):
            yield f"    {text}"


def _json(value: object) -> list[str]:
    import msgspec

    return plain(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()).split("\n")


@app.command
def export(
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    /,
    *,
    server: Server = None,
    after: Annotated[int | None, Parameter(help="Only the steps after this number; needs --server.")] = None,
    settings: PlaceFlags | None = None,
) -> int:
    """Write the record as JSON lines, one a step, with all that is still kept of what was said.

    Such a file is verified without any server: `legation trace verify FILE`.

    Parameters
    ----------
    file
        Where to; without it, or as -, standard output. It is there completely or not at all, and for you alone.
    """
    with connect(settings) as legation:
        lines = legation.traces.export(server, after=after)
        if file is None or str(file) == "-":
            for each in lines:
                sys.stdout.buffer.write(each)
            sys.stdout.buffer.flush()
            return 0
        steps = _write(file, lines)
    Terminal().say(f"wrote {steps} steps to {line(str(file))}")
    return 0


def _write(file: Path, lines: Iterator[bytes]) -> int:
    from legation.client.part_file import PartFile

    steps = 0
    with PartFile(file) as part:
        for each in lines:
            part.write(each)
            steps += 1
        part.finish()
    return steps
