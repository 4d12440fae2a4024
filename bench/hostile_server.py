"""`legation server` on asyncio's own loop, with a watch over its slices: `python hostile_server.py REPORT ARGS`.

A slice is what the loop runs without looking at anybody else, one callback or one step of a task, and its measure is the
thread's processor time: what other programs do meanwhile does not count. uvloop has no place to look from; what is run in
a slice is the same code there. REPORT gets a line for every slice above `SHOWN`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio import events
from pathlib import Path

import uvloop

from legation.cli.main import main

SHOWN = 0.005  # seconds


def watch(report: Path) -> None:
    run = events.Handle._run
    told = report.open("a", buffering=1)

    def watched(handle: events.Handle) -> None:
        began = time.thread_time()
        run(handle)
        spent = time.thread_time() - began
        if spent > SHOWN:
            print(f"{spent * 1000:.1f} {handle!r}", file=told)

    events.Handle._run = watched  # type: ignore[method-assign,assignment]
    uvloop.new_event_loop = asyncio.new_event_loop  # type: ignore[assignment]


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    main()
