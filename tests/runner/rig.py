"""A reporter on a log in a folder, with a session that a test speaks in."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.runner.caller_server import TOKEN, Caller

from legation.clock import Clock, SystemClock
from legation.runner.callback import Callback
from legation.runner.reporter import Reporter, ReportTimes, Spool, SpoolLog
from legation.store.codec import Report
from legation.store.log import EventLog
from legation.store.stream import Stream
from legation.wire.callbacks import PromptEnd, ReportIds
from legation.wire.events import Draft, params_draft

IDS = ReportIds("run_1", "task_1", "box_1", "prompt_1")
QUICK = ReportTimes(window=0.02, heartbeat=10, answer=20, retry_first=0.01, retry_most=0.05)
DONE = PromptEnd(stop_reason="end_turn")


def chunk(text: str, **more: object) -> Draft:
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}, **more}
    return params_draft("agents-own", json.dumps(update).encode())


@dataclass
class ReporterRig:
    reporter: Reporter
    log: EventLog
    stream: Stream
    spool: Spool

    async def begin(self) -> None:
        await self.reporter.follow(self.stream, self.stream.head, "agents-own")

    def say(self, *texts: str) -> None:
        self.stream.append([chunk(text) for text in texts])

    async def finish(self, limit: float = 60.0) -> None:
        await self.reporter.finish("prompt_complete", DONE, self.stream.head, limit)


@asynccontextmanager
async def reporting(
    folder: Path,
    caller: Caller | str,
    *,
    clock: Clock | None = None,
    times: ReportTimes = QUICK,
    limit: int = 2**40,
    report: Report = lambda _: None,
) -> AsyncIterator[ReporterRig]:
    spool, clock = Spool(limit), clock or SystemClock()
    url = caller if isinstance(caller, str) else caller.url
    async with (
        SpoolLog(folder, spool, SystemClock(), report) as log,
        Callback(url) as callback,
        Reporter(callback, TOKEN, IDS, log, clock=clock, spool=spool, times=times) as reporter,
    ):
        yield ReporterRig(reporter, log, await log.stream("session"), spool)


def texts(notifications: list[Any]) -> list[str]:
    return [each["update"]["content"]["text"] for each in notifications]
