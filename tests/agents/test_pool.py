"""Servers that several agents share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from legation.agents.pool import Lease, Pool, pool_key
from legation.proc import Command, Exit


class Server:
    def __init__(self, command: Command) -> None:
        self.tmp = Path(command.env["TMPDIR"])
        self.ended = False
        self.stops = 0

    async def wait(self) -> Exit:
        return Exit(0, None)

    async def stop(self, grace: float) -> Exit:  # noqa: ARG002
        self.ended = True
        self.stops += 1
        await asyncio.sleep(0)
        return Exit(0, None)


async def start(command: Command) -> Server:
    await asyncio.sleep(0)
    return Server(command)


async def lease(pool: Pool, command: Command) -> Lease[Server]:
    return await pool.lease(pool_key(command), command, start)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    env = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp"), "KEY": "one"}
    return Command(("server", "run"), tmp_path, env, "server")


async def test_those_who_come_at_once_share_one_server(command: Command) -> None:
    pool = Pool()
    first, second = await asyncio.gather(lease(pool, command), lease(pool, command))
    assert first.server is second.server
    assert (first.alone, second.alone) == (False, False)
    await first.leave(1)
    assert (second.alone, second.server.stops) == (True, 0)
    await second.leave(1)
    assert second.server.stops == 1


async def test_the_last_one_takes_the_temporary_folder_with_it(command: Command) -> None:
    pool = Pool()
    one = await lease(pool, command)
    assert one.server.tmp.is_dir()
    assert one.server.tmp.parent == Path(command.env["TMPDIR"]).parent
    assert str(one.server.tmp) != command.env["TMPDIR"]
    await one.leave(1)
    assert not one.server.tmp.exists()


async def test_leaving_twice_is_leaving_once(command: Command) -> None:
    pool = Pool()
    one, two = await lease(pool, command), await lease(pool, command)
    await asyncio.gather(one.leave(1), one.leave(1))
    assert two.server.stops == 0
    await two.leave(1)
    assert two.server.stops == 1


async def test_whoever_comes_after_the_last_gets_another(command: Command) -> None:
    pool = Pool()
    one = await lease(pool, command)
    await one.leave(1)
    two = await lease(pool, command)
    assert two.server is not one.server
    await two.leave(1)


async def test_a_retired_server_takes_nobody_more_and_ends_with_its_last_user(command: Command) -> None:
    pool = Pool()
    one, two = await lease(pool, command), await lease(pool, command)
    await one.leave(1, retire=True)
    three = await lease(pool, command)
    assert three.server is not two.server
    assert two.server.stops == 0
    await two.leave(1)
    assert (two.server.stops, three.server.stops) == (1, 0)
    await three.leave(1)


async def test_a_server_that_has_ended_takes_nobody_more(command: Command) -> None:
    pool = Pool()
    one = await lease(pool, command)
    one.server.ended = True
    two = await lease(pool, command)
    assert two.server is not one.server
    await one.leave(1)
    assert two.server.stops == 0
    await two.leave(1)


async def test_a_server_that_does_not_start_leaves_nothing(command: Command, tmp_path: Path) -> None:
    pool = Pool()

    async def fail(_: Command) -> Server:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await pool.lease(pool_key(command), command, fail)
    assert list(tmp_path.iterdir()) == []
    one = await lease(pool, command)
    await one.leave(1)


async def test_a_cancelled_leaver_has_left(command: Command) -> None:
    pool = Pool()
    one = await lease(pool, command)
    leaving = asyncio.create_task(one.leave(1))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await one.leave(1)
    assert one.server.stops == 1


def test_only_the_same_program_with_the_same_environment_is_shared(command: Command) -> None:
    def other(**env: str) -> Command:
        return replace(command, env={**command.env, **env})

    assert pool_key(command) == pool_key(other(TMPDIR="/elsewhere"))
    others = [
        pool_key(other(KEY="two")),
        pool_key(other(HOME="/elsewhere")),
        pool_key(replace(command, argv=("server", "run", "more"))),
        pool_key(replace(command, name="another")),
        pool_key(command, "a setting"),
    ]
    assert len({pool_key(command), *others}) == 6
