"""Agents that have nothing to do are stopped, and come back with the next message."""

import asyncio

import pytest
from tests.server.sessions.session_client import LIMIT, SessionClient

from legation.proc.tree import process

pytestmark = pytest.mark.heavy

REST = 1800.0  # seconds, by default


async def until_status(talk: SessionClient, session: str, status: str) -> None:
    async with asyncio.timeout(LIMIT):
        while (await talk.info(session))["status"] != status:
            talk.rig.clock.advance(60)
            await asyncio.sleep(0.02)


async def test_an_idle_agent_is_stopped_and_the_next_message_goes_on(talk: SessionClient) -> None:
    await talk.created("idle")
    await talk.send("idle", "say one")
    first, _ = await talk.until("idle", "prompt-finished")
    session = await talk.rig.services.sessions.agents.attach(
        await talk.rig.services.sessions.records.get("local", "idle")
    )
    (pid,) = session.agent.processes
    began = talk.rig.clock.monotonic()
    await until_status(talk, "idle", "disconnected")
    assert talk.rig.clock.monotonic() - began >= REST
    assert process(pid) is None
    await talk.send("idle", "say two")
    await talk.until("idle", "prompt-finished", after=first)
    assert (await talk.info("idle"))["status"] == "active"


async def test_an_agent_in_a_turn_or_without_a_memory_is_left_alone(talk: SessionClient) -> None:
    await talk.created("busy")
    await talk.send("busy", "say-and-stall working")
    await talk.until("busy", "agent-message-chunk")
    await talk.created("forgetful", agent="forgetful")  # it can neither resume nor load
    await talk.created("idle")
    await until_status(talk, "idle", "disconnected")
    assert [(await talk.info(each))["status"] for each in ("busy", "forgetful")] == ["active"] * 2
