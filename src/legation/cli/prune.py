"""`legation prune`: what is old goes, and the data folder is smaller."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from legation.cli.backup import ProgressLine
from legation.cli.command import (
    Console,
    Json,
    PlaceFlags,
    byte_size,
    connect,
    line,
    say,
    say_json,
)
from legation.errors import Cancelled, InvalidParams, StorageFailed
from legation.wire.api.server import AGE_PATTERN, USUAL_KINDS, PruneKind, PruneProgress

if TYPE_CHECKING:
    from legation.client import Legation

# How each is counted, for one and for many.
_NOUNS: Final[dict[PruneKind, tuple[str, str]]] = {
    "sessions": ("session", "sessions"),
    "work": ("work folder", "work folders"),
    "content": ("content of the trace", "contents of the trace"),
    "traces": ("step of the trace", "steps of the trace"),
}


def prune(
    *,
    older_than: Annotated[str, Parameter(help="An age: 90d, 36h. What was used since stays.")],
    kind: Annotated[
        tuple[PruneKind, ...],
        Parameter(
            negative="",
            help="What goes; may be repeated. Without it sessions, work and content: steps of the trace go only if you say so.",
        ),
    ] = (),
    dry_run: Annotated[
        bool, Parameter(negative="", help="Say what would go, and how much, and leave it.")
    ] = False,
    yes: Annotated[
        bool, Parameter(negative="", help="Do not ask first. Needed where nobody can be asked.")
    ] = False,
    json: Json = False,
    settings: PlaceFlags | None = None,
) -> None:
    """Delete what is old, for good, while Legation goes on.

    Look first with `legation prune --older-than 90d --dry-run`, then do it with `legation prune --older-than 90d`.

    What goes, by kind:

    - sessions: those that ended, or that nobody used since, with their events and their own work folders. Their ids are
      never used again; what was approved in them stays on the trace.
    - work: work folders of sessions that were terminated; the sessions stay.
    - content: what the trace keeps of what was said (arguments, results, reasons), by whole days. The steps stay, and
      verify.
    - traces: steps of the trace, with what they said and with approvals that are over, by whole days. What is left
      verifies from a checkpoint on: `legation trace verify` says how far back it reaches.

    A session that runs, waits or is asked about stays, however old. It may be interrupted (Ctrl-C) at any time, and done
    again. To have it done by itself, set keep_sessions, keep_work, keep_content or keep_traces.
    """
    if not re.search(AGE_PATTERN, older_than):
        raise InvalidParams(
            'cannot prune: --older-than is not understood: write an age like "90d", "36h" or "30m"'
        )
    kinds = [*dict.fromkeys(kind or USUAL_KINDS)]
    with connect(settings) as server:
        if dry_run:
            _show([*_read(server, older_than, kinds, dry_run=True)], "would go", json=json)
            return
        if not yes:
            _must_be_confirmed(server, older_than, kinds)
        with ProgressLine("pruned", sys.stderr) as shown:
            done = [*_told(_read(server, older_than, kinds, dry_run=False), shown, json=json)]
        _show(done, "went", json=json)


def _read(
    server: Legation, older_than: str, kinds: Sequence[PruneKind], *, dry_run: bool
) -> Iterator[PruneProgress]:
    with server.prune(older_than, kinds=kinds, dry_run=dry_run) as lines:
        for each in lines:
            progress = msgspec.json.decode(each, type=PruneProgress)
            if progress.problem is not None:
                raise StorageFailed(
                    f"cannot go on: {progress.problem}; what went is gone, prune again for the rest"
                )
            yield progress


def _told(found: Iterator[PruneProgress], shown: ProgressLine, *, json: bool) -> Iterator[PruneProgress]:
    """Say each step, where somebody looks; give what is done."""
    for progress in found:
        shown.count(f"{progress.count} of {progress.of} {_noun(progress.kind, progress.of)}")
        if progress.done:
            yield progress
        elif json:
            say_json(progress)


def _show(found: Sequence[PruneProgress], verb: str, *, json: bool) -> None:
    for each in found:
        if json:
            say_json(each)
        else:
            say(_line(each))
    if not json and any(each.count for each in found):
        say(f"about {byte_size(sum(each.bytes for each in found))} {verb}", "bold")
    elif not json:
        say(f"nothing {verb}", "dim")


def _line(found: PruneProgress) -> str:
    return f"{found.count:>8} {_noun(found.kind, found.count):<24} {byte_size(found.bytes):>9}"


def _noun(kind: PruneKind, count: int) -> str:
    one, many = _NOUNS[kind]
    return one if count == 1 else many


def _must_be_confirmed(server: Legation, older_than: str, kinds: Sequence[PruneKind]) -> None:
    if not sys.stdin.isatty():
        raise InvalidParams(
            "cannot ask whether to prune: nobody is at the terminal; look with --dry-run, then give --yes"
        )
    out = Console(sys.stderr)
    found = [*_read(server, older_than, kinds, dry_run=True)]
    for each in found:
        out.say(_line(each))
    if not any(each.count for each in found):
        return
    out.write(f"delete this for good, all that is older than {line(older_than)}? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Cancelled("cannot prune what nobody confirmed: nothing was deleted; say y, or give --yes")
