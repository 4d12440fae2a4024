"""The host's own stream, and subscriptions by callback to any."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.host.host_events import codes, events_of, told, until_code
from tests.host.rig import events, play, rig, until_type

from legation.errors import InvalidParams, NotFound
from legation.host.host import AcpHost
from legation.wire.acp.updates import Text
from legation.wire.event_types import AgentUpdated, Diagnostic, DiagnosticCode
from legation.wire.events import Event

LIMIT = 60.0  # seconds for a callback to be called, on a busy machine


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not true():
            await asyncio.sleep(0.001)


async def test_inv_2_a_callback_gets_the_exact_suffix_and_then_what_comes(tmp_path: Path) -> None:
    """subscription shape: replay and live delivery without duplicates, gaps or reordering."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "flood 500")
        heard: dict[int, list[int]] = {after: [] for after in (0, 1, 250, 10_000)}
        for after, seen in heard.items():
            made.host.subscribe(session.id, after, lambda event, seen=seen: seen.append(event.seq))  # type: ignore[misc]
        await play(session, "flood 500")
        head = session.stream.info().head
        await until(lambda: bool(heard[0]) and heard[0][-1] == head)
        for after, seen in heard.items():
            assert seen == list(range(after + 1, head + 1))


async def test_a_subscription_that_is_ended_gets_nothing_more(tmp_path: Path) -> None:
    """subscription shape."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        seen: list[int] = []
        end = made.host.subscribe(session.id, 0, lambda event: seen.append(event.seq))
        await until(lambda: len(seen) == session.stream.info().head)
        end()
        end()
        before = len(seen)
        await play(session, "say hi")
        assert len(seen) == before


async def test_subscriptions_to_nothing_are_refused_at_once(tmp_path: Path) -> None:
    """subscription shape."""
    async with rig(tmp_path) as made:
        with pytest.raises(NotFound):
            made.host.subscribe("no-such-session", 0, print)
        with pytest.raises(InvalidParams):
            made.host.subscribe(None, -1, print)
        with pytest.raises(InvalidParams):
            made.host.events(None, -1)


async def test_a_callback_that_fails_is_told_and_disturbs_nobody(tmp_path: Path) -> None:
    """subscription shape: exceptions are isolated and produce a `subscriber/error` diagnostic."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        seen: list[int] = []

        def fail(event: Event) -> None:
            raise RuntimeError("s3cret-canary")

        before = session.stream.info().head
        made.host.subscribe(session.id, before, fail)
        made.host.subscribe(session.id, before, lambda event: seen.append(event.seq))
        await play(session, "say hi")
        count = session.stream.info().head - before
        await until_code(made.host, "subscriber/error", count)
        assert len(seen) == count
        assert not any(b"canary" in event.raw for event in await events_of(made.host))


async def test_a_callback_that_always_fails_on_the_hosts_stream_does_not_go_round_for_ever(
    tmp_path: Path,
) -> None:
    """subscription shape: host events produced during the replay are all delivered; no diagnostic of a
    diagnostic of a subscriber."""
    async with rig(tmp_path) as made:
        await made.rehearse()
        seen: list[int] = []

        def fail(event: Event) -> None:
            seen.append(event.seq)
            raise RuntimeError

        count = len(await events_of(made.host))
        made.host.subscribe(None, 0, fail)
        await until_code(made.host, "subscriber/error", count)
        await until(lambda: len(seen) == 2 * count)
        for _ in range(10):
            await asyncio.sleep(0)
        assert seen == list(range(1, 2 * count + 1))
        assert (await codes(made.host)).count("subscriber/error") == count


async def test_an_event_that_is_no_json_is_rejected_without_its_payload(tmp_path: Path) -> None:
    """unserializable-payload rejection, on the host's stream."""
    async with rig(tmp_path) as made:
        canary = AgentUpdated(
            agent_id="agent-7", status="ready", restart_count=0, capabilities={"canary": object()}
        )
        before = len(await events_of(made.host))
        made.host.stream.publish(canary)
        (event,) = (await events_of(made.host))[before:]
        rejected = json.loads(event.payload)
        assert (rejected["code"], rejected["agentId"]) == ("event/unserializable", "agent-7")
        assert "agent-updated" in rejected["message"]
        assert b"canary" not in event.raw


async def test_a_rejection_that_is_itself_no_json_is_dropped(tmp_path: Path) -> None:
    """unserializable-payload rejection: dropped silently, to prevent recursion."""
    async with rig(tmp_path) as made:
        before = await events_of(made.host)
        made.host.stream.publish(
            Diagnostic(code=DiagnosticCode.EVENT_UNSERIALIZABLE, message="x", data={"x": object()})
        )
        assert await events_of(made.host) == before


async def test_a_prompt_that_is_no_json_is_refused_and_the_session_goes_on(tmp_path: Path) -> None:
    """unserializable-payload rejection, on a session's stream."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        before = await events(session)
        with pytest.raises(InvalidParams, match="plain data"):
            await session.prompt((Text(text=object()),))  # type: ignore[arg-type]
        assert await events(session) == before
        (rejected,) = [
            each for each in await told(made.host, Diagnostic) if each.code == "event/unserializable"
        ]
        assert rejected.session_id == session.id
        assert (await play(session, "say hi")).stop_reason == "end_turn"


async def test_a_viewer_that_iterates_is_ended_with_the_host() -> None:
    async with AcpHost() as host:
        reading = asyncio.create_task(_all(host))
        host.stream.publish(Diagnostic(code=DiagnosticCode.AGENT_KILL, message="x"))
    assert await reading == ["diagnostic"]


async def _all(host: AcpHost) -> list[str]:
    return [event.type async for event in host.events()]


async def test_the_host_tells_of_its_sessions_and_permissions(tmp_path: Path) -> None:
    """Host stream and diagnostics."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "ask something")
        await until_type(session, "prompt-finished")
        types = {event.type for event in await events_of(made.host)}
        assert types == {"agent-updated", "session-updated", "permission-updated", "diagnostic"}
