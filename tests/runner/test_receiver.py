"""Runners and how far they have reported, on both databases."""

import asyncio

import pytest
from tests.store.database.databases import Either

from legation.errors import Unauthenticated
from legation.runner.receiver import PromptEnded, TakenReport, add_runner, find_runner, take_report
from legation.store.database.transaction import Duplicate
from legation.wire.callbacks import NONCE_KEPT_MS, token_digest

NOW = 1_790_000_000_000


async def added(database: Either) -> None:
    await database.transact(add_runner, "run_1", "local", token_digest("secret"), "box", now_ms=NOW)


async def take(
    database: Either, nonce: str, sequence: int, *, terminal: bool = False, at: int = NOW
) -> TakenReport:
    ended = PromptEnded("prompt_complete", "end_turn") if terminal else None
    return await database.transact(take_report, "run_1", nonce, sequence, ended=ended, now_ms=at)


async def test_a_runner_is_known_by_the_digest_of_its_token(database: Either) -> None:
    await added(database)
    found = await database.read(find_runner, "run_1")
    assert found is not None
    assert (found.knows("secret"), found.knows("other"), found.head, found.ended_at) == (True, False, 0, None)
    assert b"secret" not in found.token_digest
    assert await database.read(find_runner, "run_2") is None
    with pytest.raises(Duplicate):
        await added(database)


async def test_head_rises_and_repetitions_change_nothing(database: Either) -> None:
    await added(database)
    assert await take(database, "nonce-01", 1) == TakenReport(1, fresh=True)
    assert await take(database, "nonce-02", 1) == TakenReport(1, fresh=False)
    assert await take(database, "nonce-03", 5) == TakenReport(5, fresh=True, missing=3)
    assert await take(database, "nonce-04", 3) == TakenReport(5, fresh=False)
    assert await take(database, "nonce-05", 0, at=NOW + 9) == TakenReport(5, fresh=True)
    assert await take(database, "nonce-06", 6, terminal=True, at=NOW + 10) == TakenReport(6, fresh=True)
    assert await take(database, "nonce-07", 7) == TakenReport(6, fresh=False)  # behind its end
    found = await database.read(find_runner, "run_1")
    assert found is not None
    assert (found.head, found.ended_at) == (6, NOW + 10)


async def test_a_nonce_is_used_once_for_as_long_as_it_could_come_again(database: Either) -> None:
    await added(database)
    await take(database, "nonce-01", 1)
    with pytest.raises(Unauthenticated):
        await take(database, "nonce-01", 2, at=NOW + NONCE_KEPT_MS)
    found = await database.read(find_runner, "run_1")
    assert found is not None
    assert found.head == 1  # what is refused leaves nothing
    await take(database, "nonce-02", 2, at=NOW + NONCE_KEPT_MS + 1)
    await take(
        database, "nonce-01", 3, at=NOW + NONCE_KEPT_MS + 2
    )  # forgotten: its timestamp would be refused


async def test_of_many_with_one_nonce_or_one_sequence_one_counts(database: Either) -> None:
    await added(database)
    same_nonce = await asyncio.gather(
        *[take(database, "nonce-01", number) for number in range(1, 9)], return_exceptions=True
    )
    assert len([each for each in same_nonce if isinstance(each, TakenReport)]) == 1
    same_sequence = await asyncio.gather(*[take(database, f"other-{number}", 20) for number in range(8)])
    assert [each.fresh for each in same_sequence].count(True) == 1
