"""How agents ended, for whoever's request failed of it: told late, told after the session was closed, and not kept."""

import asyncio

from legation.server.acp.methods import KEPT, Exits
from legation.wire.event_types import AgentExited

CRASHED = AgentExited(code=7)


async def test_a_request_waits_for_the_word() -> None:
    exits = Exits()
    asking = asyncio.create_task(exits.of("s", followed=True))
    await asyncio.sleep(0)
    exits.told("s", CRASHED)
    assert await asking == CRASHED
    assert await exits.of("s", followed=True) == CRASHED


async def test_it_is_told_also_when_the_session_was_closed_meanwhile() -> None:
    exits = Exits()
    exits.told("s", CRASHED)
    exits.over("s")
    assert await exits.of("s", followed=False) == CRASHED
    assert await exits.of("never", followed=False) is None


async def test_a_turn_does_not_end_by_what_ended_the_one_before() -> None:
    exits = Exits()
    for session in ("s", "closed"):
        exits.told(session, CRASHED)
    exits.over("closed")
    for session in ("s", "closed"):
        exits.begin(session)
    assert len(exits) == 0
    assert await exits.of("closed", followed=False) is None


async def test_of_sessions_that_are_over_only_the_last_are_kept() -> None:
    exits = Exits()
    for number in range(10 * KEPT):
        exits.told(f"s{number}", CRASHED)
        exits.over(f"s{number}")
        exits.over(f"never-ended-{number}")
    assert len(exits) == KEPT
    assert await exits.of(f"s{10 * KEPT - 1}", followed=False) == CRASHED
