"""A quiet session beside a hostile agent: how late its lines are, alone and then beside it; and the longest slice.

argv: KIND SCRATCH. The quiet agent says a line every few milliseconds, with the time in it, to a reader of its live body.
The hostile one (`hostile_agent.py`) has a reader too, who takes whatever comes. Both are agents of one server, which runs
twice: on uvloop, as it is installed, for the lines, and on asyncio's loop with a watch for the slices.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

import uvloop

from bench.measure import Sample, emit
from bench.rival_network import enter_own_network
from bench.rival_reader import Reader, connect
from bench.rival_server import LEGATION, started
from bench.rival_session import Session, open_session

LIMIT = 120.0  # seconds for one prompt on a loaded machine
LINES, PAUSE_MS = 400, 5
ALLOWED_MS = 50.0  # that a line may be late beside anybody
BETWEEN = 50  # lines before the other one begins, so that it has neighbours from its first byte on
AGENT = (sys.executable, "-S", "-E", str(Path(__file__).with_name("hostile_agent.py")))


async def lines(quiet: Session, reader: Reader, hostile: Session | None, kind: str) -> list[float]:
    """Milliseconds from each line of the quiet agent to its reader, for as long as the other one goes on."""
    times: list[float] = []
    turn: asyncio.Task[None] | None = None
    while True:
        reader.expect(LINES, times)
        await quiet.prompt(f"paced {LINES} {PAUSE_MS}")
        if hostile is not None and turn is None:
            await asyncio.sleep(BETWEEN * PAUSE_MS / 1000)
            await hostile.prompt(f"harm {kind}")
            turn = asyncio.create_task(hostile.idle())
        async with asyncio.timeout(LIMIT):
            await reader.done.wait()
            await quiet.idle()
        if turn is None or turn.done():
            return times


async def beside(
    kind: str, home: Path, program: tuple[str, ...], report: Path
) -> tuple[list[float], list[float]]:
    with started("legation-sessions", home, AGENT, program) as server:
        quiet = await open_session("legation-sessions", server, "quiet")
        hostile = await open_session("legation-sessions", server, "hostile")
        follower = await connect(hostile.reading, hostile.member, server.port, LIMIT)
        reader = await connect(quiet.reading, quiet.member, server.port, LIMIT)
        alone = await lines(quiet, reader, None, kind)
        await asyncio.to_thread(report.write_bytes, b"")  # what a start takes is not the agents' doing
        found = alone, await lines(quiet, reader, hostile, kind)
        follower.transport.close()
        return found


def p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[-1]


async def main(kind: str, scratch: str) -> Sample:
    with tempfile.TemporaryDirectory(dir=scratch) as made:
        folder = Path(made)
        report = folder / "slices"
        alone, both = await beside(kind, folder / "uvloop", LEGATION, report)
        watched = (sys.executable, str(Path(__file__).with_name("hostile_server.py")), str(report))
        await beside(kind, folder / "asyncio", watched, report)
        slices = sorted(
            (line.split(" ", 1) for line in report.read_text().splitlines()),
            key=lambda found: float(found[0]),
        )
        for spent, what in slices[-3:]:
            print(spent, what, file=sys.stderr)
    return {
        "alone p99 ms": p99(alone),
        "p99 ms": p99(both),
        "times what it may be late": p99(both) / max(3 * p99(alone), ALLOWED_MS),
        "worst ms": max(both),
        "slice ms": float(slices[-1][0]) if slices else 0.0,
    }


if __name__ == "__main__":
    enter_own_network()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        emit(runner.run(main(*sys.argv[1:])))
