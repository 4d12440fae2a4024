"""Runners that are killed at any moment, with a caller that fails at any moment: nothing is lost, nothing comes twice."""

import asyncio
import random
import signal
from pathlib import Path

import pytest
from tests.runner.caller_server import LIMIT, Caller, Fault, Request
from tests.runner.rig import texts
from tests.runner.test_runner import alive, config_of, scripted, started

pytestmark = pytest.mark.heavy

ROUNDS = 6
# Speaks in bursts, with pauses in which it can be killed; first of all it says who it is.
AGENT = scripted(
    "import time\n"
    "hello(); session(); p = prompted(); update(str(os.getpid()))\n"
    "for n in range(600):\n"
    "    update(f'w{n}')\n"
    "    if n % 40 == 0: time.sleep(0.02)\n"
    "done(p)\n"
)


def faults(chance: random.Random) -> Fault | None:
    return chance.choice([None, None, None, None, 500, 429, "reset", "lost"])


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_killed_at_any_moment_it_tells_what_was_said_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    def fault(_: Request) -> Fault | None:
        return faults(chance)

    number = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
    moment = chance.randint(0, 14)
    async with Caller(fault=fault) as caller:
        config = config_of(caller, "go")
        async with started(tmp_path, config, agent=AGENT) as run:
            await caller.until(lambda each: len(each.requests) > moment or bool(each.ended))
            run.process.send_signal(number)
            await run.ended()
        for _ in range(3):  # and once more in the middle of what is left
            async with started(tmp_path, config, agent="/no/such/agent") as run:
                before = len(caller.requests)
                await caller.until(
                    lambda each, before=before: len(each.requests) > before + 2 or bool(each.ended)  # type: ignore[misc]
                )
                if not caller.ended:
                    run.process.kill()
                await run.ended()
        async with started(tmp_path, config, agent="/no/such/agent") as run:
            code, words = await run.ended()
        assert code in (0, 6), words
        [end] = caller.ended
        assert end is caller.taken[-1]
        said = texts(caller.notifications)
        assert said[1:] == [f"w{n}" for n in range(len(said[1:]))]
        if end["kind"] == "prompt_complete":
            assert len(said) == 601
        if said:
            async with asyncio.timeout(LIMIT):
                while alive(int(said[0])):
                    await asyncio.sleep(0.05)
