"""`legation trace`: every call, how it was decided, and that nobody changed the record."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from cyclopts import App, Parameter

from legation.cli.command import (
    SHOWN,
    Console,
    Json,
    PlaceFlags,
    Rows,
    connect,
    explained,
    line,
    named,
    page_size,
    plain,
    say,
    say_json,
    show,
)
from legation.errors import InvalidParams
from legation.wire.api.approvals import ChainHead, ChainReport, TraceDetail, TraceEntry, TraceStep, rfc3339

if TYPE_CHECKING:
    from legation.approvals.trace.chain import Report
    from legation.client import Legation


BROKEN: Final = 1  # exit code: something is wrong with a chain
_HASH: Final = 64  # characters of a hash

app = App(
    name="trace",
    help="""What agents did and who allowed it: list, show, verify, export.

Without a command it lists calls, the newest first.""",
)


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
) -> None:
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


def _answer(entry: TraceEntry) -> str | None:
    """Name the answer of whoever was asked; else the reason, where there is more than the rule."""
    if entry.approval_status is None:
        return entry.reason
    by = entry.approved_by_name or entry.approved_by
    return f"{entry.approval_status} by {by}" if by else entry.approval_status


@app.command(name="show")
def show_(
    trace: Annotated[str, Parameter(help="Its whole id, as listed.")],
    /,
    *,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Show one call with every step of it."""
    with connect(settings) as server, explained("show", "trace", trace, "trace"):
        found = server.traces.get(trace)
    if json:
        say_json(found)
        return
    for text in _words(found):
        say(text)
    show(found.steps, _STEP_COLUMNS, json=False, if_empty="no steps")


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
    file: Annotated[
        Path | None,
        Parameter(
            allow_leading_hyphen=True,
            help="Where to; without it, or as -, standard output. It is there completely or not at all, and for you alone.",
        ),
    ] = None,
    /,
    *,
    server: Annotated[
        str | None,
        Parameter(help="Only this server's chain, by its name as `verify` shows it. Without it, all."),
    ] = None,
    after: Annotated[int | None, Parameter(help="Only the steps after this number; needs --server.")] = None,
    settings: PlaceFlags | None = None,
) -> None:
    """Write the record as JSON lines, one a step, with all that is still kept of what was said.

    Such a file is verified without any server: `legation trace verify FILE`.
    """
    with connect(settings) as legation:
        lines = legation.traces.export(server, after=after)
        if file is None or str(file) == "-":
            for each in lines:
                sys.stdout.buffer.write(each)
            sys.stdout.buffer.flush()
            return
        steps = _write(file, lines)
    say(f"wrote {steps} steps to {line(str(file))}")


def _write(file: Path, lines: Iterator[bytes]) -> int:
    from legation.client.part_file import PartFile

    steps = 0
    with PartFile(file) as part:
        for each in lines:
            part.write(each)
            steps += 1
        part.finish()
    return steps


class KnownHead(NamedTuple):
    """`server` None: of the one chain that there is."""

    server: str | None
    seq: int
    hash: str


@app.command
def verify(
    file: Annotated[
        Path | None,
        Parameter(
            allow_leading_hyphen=True,
            help="An export, or - for standard input: verified here, without a server. Without it, the chains of the server.",
        ),
    ] = None,
    /,
    *,
    head: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            help="SERVER:SEQ:HASH, or SEQ:HASH of a single chain, as an earlier verify printed it.",
        ),
    ] = (),
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> int:
    """Prove that the record is as it was written: no step changed, removed, put in or moved. Exit code 1 if not.

    Keep the head it prints somewhere else, and give it back with --head: only that shows that no end was cut off.
    """
    known = [_head(text) for text in head]
    if file is None:
        with connect(settings) as server:
            reports = _of_server(server, known)
    else:
        with _opened(file) as lines:
            reports = _of_export(lines, known, str(file))
    for report in reports:
        if json:
            say_json(report)
        else:
            _say(report)
    if not reports and not json:
        say("nothing is recorded yet: there is no chain to verify", "dim")
    return BROKEN if any(report.problems for report in reports) else 0


def _head(text: str) -> KnownHead:
    first, _, hash_ = text.rpartition(":")
    server, _, seq = first.rpartition(":")
    if not (seq.isascii() and seq.isdigit()) or len(hash_) != _HASH or set(hash_) - set("0123456789abcdef"):
        raise InvalidParams(
            "cannot read --head: write it as `legation trace verify` printed it, SERVER:SEQ:HASH or SEQ:HASH"
        )
    return KnownHead(server or None, int(seq), hash_)


@contextmanager
def _opened(file: Path) -> Iterator[Iterable[bytes]]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise InvalidParams(
            f"cannot read {line(str(file))}: {error.strerror}; give a file that `legation trace export` wrote"
        ) from None
    with opened:
        yield _whole(opened)


def _whole(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Leave out a torn last line: whoever wrote the file may have been killed in it, which is no fault of the chain."""
    for each in lines:
        if each.endswith(b"\n"):
            yield each
        else:
            Console(sys.stderr).say(
                "the last line is torn, and was left out: its writer was killed", "yellow"
            )


def _of_export(lines: Iterable[bytes], known: Sequence[KnownHead], name: str) -> list[ChainReport]:
    from legation.approvals.trace.chain import Head
    from legation.approvals.trace.export import verify_export, verify_lines

    nameless = [each for each in known if each.server is None]
    if nameless and len(known) > 1:
        raise InvalidParams("cannot tell which chain a --head is of: write each as SERVER:SEQ:HASH")
    if nameless:
        found = [verify_lines(lines, Head(nameless[0].seq, nameless[0].hash))]
    else:
        found = verify_export(lines, {each.server or "": Head(each.seq, each.hash) for each in known})
    if not any(report.steps for report in found) and not known:
        raise InvalidParams(f"cannot verify {name}: there is no step in it; export it again")
    return [_report(each) for each in found]


def _report(found: Report) -> ChainReport:
    return ChainReport(
        server=found.server,
        steps=found.steps,
        contents=found.checked,
        purged=found.purged,
        head=ChainHead(server=found.server, seq=found.head.seq, hash=found.head.hash),
        problems=[f"step {fault.seq}: {fault.what}" for fault in found.faults],
        first=found.first,
        since=None if found.since is None else rfc3339(found.since),
    )


def _of_server(server: Legation, known: Sequence[KnownHead]) -> list[ChainReport]:
    heads = [each for each in known if each.server is not None]
    if len(heads) < len(known):  # a head without a name is of the only chain there is
        name = _only([report.server for report in server.traces.verify()])
        heads = [each._replace(server=each.server or name) for each in known]
    return server.traces.verify(
        ChainHead(server=each.server or "", seq=each.seq, hash=each.hash) for each in heads
    )


def _only(servers: list[str]) -> str:
    if len(servers) != 1:
        raise InvalidParams(
            f"cannot tell which chain --head is of: there are {len(servers)}; write it as SERVER:SEQ:HASH"
        )
    return servers[0]


def _say(report: ChainReport) -> None:
    name = line(report.server or "?")
    purged = f", {report.purged} purged" if report.purged else ""
    counts = f"{report.steps} steps, {report.contents} contents{purged}"
    for problem in report.problems:
        say(f"{name}: {line(problem)}", "red")
    if report.problems:
        say(f"{name}: NOT as it was written; {counts}", "red")
    else:
        say(f"{name}: good; {counts}", "green")
    if report.first > 1 and report.since is not None:
        say(
            f"    reaches back to step {report.first}, of {line(report.since)}; those before it were cut off",
            "dim",
        )
    say(f"    head {name}:{report.head.seq}:{line(report.head.hash)}", "dim")
