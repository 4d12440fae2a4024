from __future__ import annotations

import asyncio
import logging

import pytest

from legation.host.requests import services as shelf_module
from legation.host.requests.services import Shelf

LIMIT = 5.0  # seconds for what needs no other process


async def test_what_is_starting_counts_and_holds_up_the_settling() -> None:
    shelf: Shelf[str] = Shelf()
    with shelf.moving, shelf.moving:
        assert len(shelf) == 2
        settling = asyncio.create_task(shelf.settled())
        await asyncio.sleep(0)
        assert not settling.done()
    async with asyncio.timeout(LIMIT):
        await settling
    assert len(shelf) == 0


async def test_a_start_that_fails_counts_no_longer() -> None:
    shelf: Shelf[str] = Shelf()
    with pytest.raises(ValueError), shelf.moving:
        raise ValueError
    assert len(shelf) == 0
    async with asyncio.timeout(LIMIT):
        await shelf.settled()


async def test_closing_hands_out_what_is_there_once() -> None:
    shelf: Shelf[str] = Shelf()
    shelf.things["a"] = "thing"
    assert (shelf.close(), shelf.closed, shelf.close()) == (["thing"], True, [])


async def test_settling_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(shelf_module, "SETTLE_LIMIT", 0.0)
    shelf: Shelf[str] = Shelf()
    with caplog.at_level(logging.WARNING), shelf.moving:
        await shelf.settled()
    assert "1 starts" in caplog.text
