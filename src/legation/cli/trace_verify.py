"""`legation trace verify`: of a server's chains, or of an export without any server.

A chain cannot show by itself that its end was cut off. Keep the head that is printed, elsewhere, and give it back as
`--head` the next time."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

from cyclopts import Parameter

from legation.cli.connection import connect
from legation.cli.flags import Json, PlaceFlags
from legation.cli.table import say_json
from legation.cli.terminal import Terminal, line
from legation.errors import InvalidParams
from legation.wire.api.approvals import ChainHead, ChainReport

if TYPE_CHECKING:
    from legation.approvals.chain_verify import Report
    from legation.client import Legation

BROKEN: Final = 1  # exit code: something is wrong with a chain
_HASH: Final = 64  # characters of a hash


class KnownHead(NamedTuple):
    """`server` None: of the one chain that there is."""

    server: str | None
    seq: int
    hash: str


def verify(
    file: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
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
    """Prove that the record is as it was written.

    Parameters
    ----------
    file
        An export, or - for standard input: verified here, without a server. Without it, the chains of the server.
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
        Terminal().say("nothing is recorded yet: there is no chain to verify", "dim")
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
    """Whoever wrote the file may have been killed in the middle of its last line: that is no fault of the chain."""
    for each in lines:
        if each.endswith(b"\n"):
            yield each
        else:
            Terminal(sys.stderr).say(
                "the last line is torn, and was left out: its writer was killed", "yellow"
            )


def _of_export(lines: Iterable[bytes], known: Sequence[KnownHead], name: str) -> list[ChainReport]:
    from legation.approvals.chain import Head
    from legation.approvals.trace_export import verify_export, verify_lines

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
    out, name = Terminal(), line(report.server or "?")
    purged = f", {report.purged} purged" if report.purged else ""
    counts = f"{report.steps} steps, {report.contents} contents{purged}"
    for problem in report.problems:
        out.say(f"{name}: {line(problem)}", "red")
    if report.problems:
        out.say(f"{name}: NOT as it was written; {counts}", "red")
    else:
        out.say(f"{name}: good; {counts}", "green")
    out.say(f"    head {name}:{report.head.seq}:{line(report.head.hash)}", "dim")
