"""The runner's own process: what a notification costs it over a host, and what it holds while its caller is down.

`host KIND`: an in-process host with the same log. `runner KIND`: the runner with a caller that answers at once.
`down`: 100,000 notifications while the caller is down, then the way back, and the same bodies posted bare.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.measure import RATE, Sample, Stopwatch, emit
from legation.clock import SystemClock
from legation.host.host import AcpHost
from legation.host.options import HostOptions
from legation.host.requests.handlers import ApproveAll
from legation.runner.callback import Callback
from legation.runner.config import AgentChoice, RunnerConfig, choose_agent, read_config
from legation.runner.reporter import ReportTimes, Spool, SpoolLog
from legation.runner.runner import RunnerTimes, run
from legation.wire.callbacks import signed_headers

AGENT = f"{sys.executable} -I -S {Path(__file__).with_name('runner_agent.py')}"
LIMIT = 300.0  # seconds
DOWN_EVENTS = 100_000
MOST_SIZES = 1_000_000  # bytes of the list of lengths
TOKEN = "a-token-for-the-benchmark"


@contextmanager
def receiver() -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.runner_receiver"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.communicate()


def config(url: str, folder: Path, events: int, kind: str) -> tuple[RunnerConfig, AgentChoice]:
    given = {
        **dict.fromkeys(("runId", "taskId", "sandboxId", "promptId"), "bench"),
        "callbackUrl": f"{url}/reports",
        "token": TOKEN,
        "prompt": f"{events} {kind}",
        "repoDir": str(folder),
        "flushTimeout": LIMIT,
    }
    made = read_config(json.dumps(given).encode())
    return made, choose_agent(made, {"CODING_AGENT_ACP_COMMAND": AGENT, "HOME": str(folder)}, folder)


async def measure_host(events: int, kind: str, folder: Path) -> Sample:
    made, choice = config("http://127.0.0.1:9", folder, events, kind)
    clock = SystemClock()
    async with SpoolLog(folder / "log", Spool(2**40), clock, lambda _: None) as log:
        stopwatch = Stopwatch()
        async with AcpHost(HostOptions(approver=ApproveAll(), fs=None), log=log) as host:
            agent = await host.spawn_agent(choice.definition)
            opened = await host.create_session(agent.agent_id, cwd=folder, session_id="session")
            stream = host.session(opened.session_id).stream
            taking = asyncio.create_task(_take(stream.subscribe(0).batches(), events))
            await host.prompt("session", made.prompt)
            await taking
        spent = stopwatch.stop()
    return spent.per_event(events)


async def _take(batches: object, events: int) -> None:
    seen = 0
    async for batch in batches:  # type: ignore[attr-defined]
        seen += len(batch)
        if seen >= events:
            return


async def measure_runner(events: int, kind: str, folder: Path) -> Sample:
    with receiver() as url:
        made, choice = config(url, folder, events, kind)
        stopwatch = Stopwatch()
        assert await run(made, choice, folder / "log") == 0
        return stopwatch.stop().per_event(events)


def resident(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    return 0.0


async def measure_down(folder: Path) -> Sample:
    with receiver() as url:
        async with Callback(f"{url}/down") as switch:
            await switch.post(b"", dict, 30)
        made, choice = config(url, folder, DOWN_EVENTS, "message")
        times = RunnerTimes(ReportTimes(retry_most=0.2))
        running = asyncio.create_task(run(made, choice, folder / "log", times=times))
        journal = folder / "log" / "_reports.jsonl"
        while not (journal.exists() and b"prompt_complete" in journal.read_bytes()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        held = resident("VmHWM")
        async with Callback(f"{url}/up") as switch:
            await switch.post(b"", dict, 30)
        begun = time.perf_counter()
        assert await running == 0
        caught_up = time.perf_counter() - begun
        posted = await _post_bare(url)
    return {
        "MB, down": held,
        "MB, most": resident("VmHWM"),
        RATE: DOWN_EVENTS / caught_up,
        "bare events/s": DOWN_EVENTS / posted,
        "of bare": posted / caught_up,
    }


async def _post_bare(url: str) -> float:
    """Post as many bodies of the same lengths as the receiver has taken."""
    async with Callback(f"{url}/sizes", MOST_SIZES) as asked:
        sizes: list[int] = json.loads((await asked.post(b"", dict, 30)).body)
    most = bytes(max(sizes))
    async with Callback(f"{url}/reports") as callback:
        begun = time.perf_counter()
        for at, size in enumerate(sizes):
            body = most[:size]
            headers = partial(signed_headers, TOKEN, body, time.time_ns() // 1_000_000, f"nonce-{at:08}")
            await callback.post(body, headers, 30)
        return time.perf_counter() - begun


def main() -> None:
    logging.disable(logging.WARNING)  # of a caller that is down
    what, *args, scratch = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        match what:
            case "host":
                emit(asyncio.run(measure_host(int(args[0]), args[1], folder)))
            case "runner":
                emit(asyncio.run(measure_runner(int(args[0]), args[1], folder)))
            case _:
                emit(asyncio.run(measure_down(folder)))


if __name__ == "__main__":
    main()
