"""The caller's own process, killed and started again at any moment: it ends with each report once, and so do permissions."""

import asyncio
import json
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.runner.caller_server import LIMIT, TOKEN
from tests.runner.rig import texts
from tests.runner.test_runner import Run, alive, config_of, scripted, started

pytestmark = pytest.mark.heavy

WORDS, ASKS = 600, 4
# Speaks in bursts, asks now and then, and notes in its folder each time that it was allowed.
AGENT = scripted(f"""
import time
hello(); session(); p = prompted(); update(str(os.getpid()))
for n in range({WORDS}):
    update(f"w{{n}}")
    if n % 40 == 0: time.sleep(0.02)
    if n % {WORDS // ASKS} == 50:
        permission(n, title="deploy", kind="execute", rawInput={{"command": f"deploy {{n}}"}})
        chosen = answer(n)["result"]["outcome"].get("optionId")
        open("acted", "a").write(f"{{n}}:{{chosen}}\\n")
done(p)
""")


class MortalCaller:
    """A caller's program at one address, and the file that it leaves."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "caller.jsonl"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/reports"

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All that is on the disk: it may be writing."""
        content = self.file.read_bytes() if self.file.exists() else b""
        return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [each for each in self.lines if each["line"] == kind]

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [each["report"] for each in self.of("report")]

    @property
    def is_told_the_end(self) -> bool:
        return any(each["kind"].startswith("prompt_") for each in self.reports)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT):
            while not holds():
                await asyncio.sleep(0.01)

    async def until_further(self, kind: str, more: int, run: Run | None = None) -> None:
        """Until it has so many more such lines, or was told the end, or that run is over."""
        wanted = len(self.of(kind)) + more
        await self.until(
            lambda: (
                len(self.of(kind)) > wanted
                or self.is_told_the_end
                or (run is not None and run.process.poll() is not None)
            )
        )

    @asynccontextmanager
    async def living(self) -> AsyncIterator[asyncio.subprocess.Process]:
        program = str(Path(__file__).with_name("caller_to_kill.py"))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", program, str(self.port), str(self.file), TOKEN
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def kill_at_random(caller: MortalCaller, chance: random.Random) -> None:
    """Let it live for a few lines at a time, until the end was told; then it lives on for what comes."""
    while True:
        async with caller.living() as process:
            await caller.until_further("nonce", chance.randint(0, 8))
            if caller.is_told_the_end:
                await process.wait()
                return
            process.send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
            await process.wait()
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random())  # nobody is there for a while


@asynccontextmanager
async def dying(caller: MortalCaller, chance: random.Random) -> AsyncIterator[None]:
    killing = asyncio.create_task(kill_at_random(caller, chance))
    try:
        yield
    finally:
        killing.cancel()
        await asyncio.gather(killing, return_exceptions=True)


def must_be_whole(caller: MortalCaller) -> list[str]:
    """Return what was said, behind the first word."""
    assert caller.of("another body") == []
    assert caller.of("a gap") == []
    reports = caller.reports
    assert [each["sequence"] for each in reports] == [*range(1, len(reports) + 1)]
    assert [each["kind"].startswith("prompt_") for each in reports].count(True) == 1
    said = texts([each for report in reports for each in report["notifications"]])
    assert said[1:] == [f"w{n}" for n in range(len(said[1:]))]
    return said


def acted(home: Path) -> list[str]:
    path = home / "work" / "acted"
    return path.read_text().split() if path.exists() else []


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(each, marks=pytest.mark.slow) for each in range(3, 30))]
)
async def test_killed_at_any_moment_the_caller_has_all_that_was_said_once(tmp_path: Path, seed: int) -> None:
    chance, caller = random.Random(seed), MortalCaller(tmp_path)
    config = config_of(caller.url, "go", permissions="route", flushTimeout=60)
    async with dying(caller, chance), started(tmp_path, config, agent=AGENT) as ran:
        code, words = await ran.ended(300)
        assert code == 0, words
    assert len(must_be_whole(caller)) == WORDS + 1
    asked = [each["permission"]["id"] for each in caller.reports if each["kind"] == "permission_request"]
    resolved = [each["permission"] for each in caller.reports if each["kind"] == "permission_resolved"]
    assert len({*asked}) == ASKS
    assert [(each["id"], each["outcome"], each["by"]) for each in resolved] == [
        (each, "approved", "ada") for each in asked
    ]
    assert sorted(each["number"] for each in caller.of("use")) == [*range(1, ASKS + 1)]
    step = WORDS // ASKS
    assert acted(tmp_path) == [f"{50 + step * number}:allow_once" for number in range(ASKS)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(each, marks=pytest.mark.slow) for each in range(2, 20))]
)
async def test_runner_and_caller_killed_at_any_moment_tell_what_was_said_once(
    tmp_path: Path, seed: int
) -> None:
    chance, caller = random.Random(1000 + seed), MortalCaller(tmp_path)
    config = config_of(caller.url, "go", permissions="route", flushTimeout=60)
    moment, agent = chance.randint(0, 20), AGENT
    async with dying(caller, chance):
        for _ in range(30):  # and again in the middle of what is left
            async with started(tmp_path, config, agent=agent) as ran:
                await caller.until_further("report", moment, ran)
                if not caller.is_told_the_end:
                    ran.process.send_signal(chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                _, words = await ran.ended(300)
            agent, moment = "/no/such/agent", chance.randint(0, 3)
            if caller.is_told_the_end:
                break
    said = must_be_whole(caller)
    assert caller.reports[-1]["kind"] == "prompt_failed" or len(said) == WORDS + 1, words
    # Nothing that nobody allowed, and nothing twice.
    allowed = [each for each in acted(tmp_path) if each.endswith("allow_once")]
    assert len({*allowed}) == len(allowed) <= len(caller.of("use"))
    if said:
        await caller.until(lambda: not alive(int(said[0])))
