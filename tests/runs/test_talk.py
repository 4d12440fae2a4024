"""What is said to runs that work, with real runners, over HTTP: further messages, pause and resume, usage limits of the provider."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.runs.rig import LIMIT
from tests.runs.test_sandbox import Server, serving

from legation.client import AsyncLegation
from legation.client.runs import ClientRun
from legation.errors import Conflict
from legation.proc.tree import process
from legation.runs.run import Run
from legation.runs.states import ErrorClass, RunState
from legation.wire.api.runs import RunTimeouts

pytestmark = pytest.mark.heavy


class Talk:
    """A server with its worker, and a client of it."""

    def __init__(self, server: Server, client: AsyncLegation) -> None:
        self.server, self.client = server, client

    async def run(self, *steps: str, **more: Any) -> ClientRun[Any]:
        return await self.client.run("rehearsal", "\n".join(("#!rehearse", *steps)), **more)

    async def until(self, run: ClientRun[Any], state: RunState) -> Run:
        return await self.server.rig.until(run.id, lambda found: found.state is state)

    async def told(self, run: ClientRun[Any]) -> list[tuple[str, dict[str, Any]]]:
        return [(each.type, json.loads(bytes(each.payload))) async for each in run.events()]

    async def said(self, run: ClientRun[Any]) -> str:
        told = [payload for kind, payload in await self.told(run) if kind == "agent-message-chunk"]
        return "".join(each["update"]["content"]["text"] for each in told)

    async def until_said(self, run: ClientRun[Any], text: str) -> None:
        async with asyncio.timeout(LIMIT):
            while text not in await self.said(run):
                await asyncio.sleep(0.05)


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Talk]:
    async with serving(tmp_path) as server:
        services = server.services
        token = services.process_tokens.add()
        async with AsyncLegation(services.address.local_url, token=token.reveal()) as client:
            yield Talk(server, client)


async def test_a_message_is_the_next_turn_and_said_twice_under_one_key_it_is_one(talk: Talk) -> None:
    run = await talk.run("say begun", "stall 2", "say over", timeouts=RunTimeouts(idle=5))
    await talk.until_said(run, "begun")
    for _ in range(2):
        await run.send("#!rehearse\nsay and this too", key="one")
    ended = await run.wait(LIMIT)
    assert ended.state == "succeeded"
    assert (await talk.said(run)).count("and this too") == 1
    assert (await talk.said(run)).index("over") < (await talk.said(run)).index("and this too")
    with pytest.raises(Conflict, match="cannot message the run: it is succeeded"):
        await run.send("too late")
    with pytest.raises(Conflict, match="cannot pause the run: it is succeeded"):
        await run.pause()


async def test_a_message_that_the_agent_never_came_to_is_told(talk: Talk) -> None:
    run = await talk.run("say begun", "stall 600")
    await talk.until_said(run, "begun")
    await run.send("never heard")
    await run.cancel()
    assert (await run.wait(LIMIT)).state == "cancelled"
    told = await talk.told(run)
    notices = [payload["update"]["title"] for kind, payload in told if kind == "notice"]
    assert notices == ["a message was not heard: the agent had ended before it came to that"]
    assert "never heard" not in json.dumps(told)


async def test_a_paused_agent_does_nothing_until_it_is_resumed(talk: Talk) -> None:
    run = await talk.run("say begun", "stall 1", "say over")
    await talk.until_said(run, "begun")
    assert (await run.pause()).id == run.id
    found = await talk.until(run, RunState.PAUSED)
    assert (await run.info()).liveness == "idle"
    [runner] = talk.server.runners()
    assert process(runner.pid) is not None
    assert "over" not in await talk.said(run)
    await run.resume()
    ended = await run.wait(LIMIT)
    assert (ended.state, "over" in await talk.said(run)) == ("succeeded", True)
    assert found.attempt == ended.attempt == 1


async def test_a_usage_limit_suspends_the_run_with_a_clock_and_it_goes_on_by_itself(talk: Talk) -> None:
    run = await talk.run("limit 4 1", "say over")
    found = await talk.until(run, RunState.SUSPENDED)
    assert found.resume_at is not None
    shown = await run.info()
    if shown.state == "suspended":
        assert (shown.liveness, shown.status) == ("waiting-on-provider", "provider_rescheduled")
        assert shown.resume_at == found.resume_at
    ended = await run.wait(LIMIT)
    assert (ended.state, ended.attempt, ended.resume_at) == ("succeeded", 1, None)


async def test_a_suspended_run_is_resumed_before_its_time_and_can_be_cancelled(talk: Talk) -> None:
    first, second = await talk.run("limit 3000 1", "say over"), await talk.run("limit 3000 1")
    await talk.until(first, RunState.SUSPENDED)
    await talk.until(second, RunState.SUSPENDED)
    await first.resume()
    assert (await first.wait(LIMIT)).state == "succeeded"
    assert "over" in await talk.said(first)
    await second.cancel()
    assert (await second.wait(LIMIT)).state == "cancelled"
    assert talk.server.runners() == []


async def test_limits_are_waited_for_so_often_and_so_long_then_the_run_fails_as_that(talk: Talk) -> None:
    often = await talk.run("limit 0.1 1000")
    ended = await often.wait(LIMIT)
    assert (ended.state, ended.error_class) == ("failed", ErrorClass.PROVIDER_LIMIT)
    long = await talk.run("limit 100000 1000")  # longer than all of them may take
    ended = await long.wait(LIMIT)
    assert (ended.state, ended.error_class) == ("failed", ErrorClass.PROVIDER_LIMIT)
