"""Every route while Postgres does not answer, and after it does again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.postgres import Postgres, running_postgres
from tests.server.rig import Answer, Rig, open_rig
from tests.server.test_access_table import BODIES, ONLY_EMBEDDED, guarded, make_repository, route, target

from legation.errors import Unavailable
from legation.server.http.app import AppOptions, make_app
from legation.server.routes import ROUTES
from legation.store.database import postgres as database
from legation.wire.events import Draft

pytestmark = pytest.mark.heavy

LIMIT = 60.0  # seconds: of a machine that is busy
OPEN_AND_LOCAL = {"/", "/openapi.json", "/docs", "/v1/health", "/sign-in"}  # which need no database


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One for this file alone: others would find it frozen too."""
    with running_postgres() as server:
        yield server


@pytest.fixture
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    make_repository(tmp_path / "served" / "trusted")
    async with open_rig("postgres", tmp_path / "data", request, folders=[str(tmp_path / "served")]) as made:
        yield made


async def until_it_answers(rig: Rig) -> None:
    async with asyncio.timeout(LIMIT):
        while (await rig.knock("GET", "/v1/ready", {})).status != 200:
            await asyncio.sleep(0.05)


def is_told_so(answer: Answer) -> bool:
    told = msgspec.json.decode(answer.body)
    return (
        answer.status == 503
        and told["code"] == "legation/unavailable"
        and "the database does not answer" in told["detail"]
        and answer.headers["retry-after"] == "2"
    )


async def test_every_route_says_that_the_database_does_not_answer(rig: Rig, postgres: Postgres) -> None:
    mine = await rig.bearer(rig.people["admin"])
    paths = {
        route(each): await target(rig, each) for each in guarded(rig) if route(each) not in ONLY_EMBEDDED
    }
    with postgres.frozen():
        async with asyncio.timeout(LIMIT):
            for (method, path), real in paths.items():
                answer = await rig.knock(method, real, mine, BODIES.get((method, path)))
                assert is_told_so(answer), (method, path, answer)
    await until_it_answers(rig)
    assert (await rig.knock("GET", "/v1/me", mine)).status == 200
    assert (await rig.knock("GET", "/approvals", mine)).status == 200


async def test_one_that_is_stopped_is_told_in_the_same_words_and_is_used_again_when_it_is_back(
    rig: Rig, postgres: Postgres
) -> None:
    """It was a 500 that named the database's address."""
    mine = await rig.bearer(rig.people["admin"])
    with postgres.stopped():
        for method, path in (("GET", "/approvals"), ("POST", "/v1/tokens")):
            answer = await rig.knock(method, path, mine, BODIES.get((method, path)))
            assert is_told_so(answer), (method, path, answer)
    await until_it_answers(rig)
    assert (await rig.knock("GET", "/v1/me", mine)).status == 200


async def test_no_route_behind_the_credential_waits_either(rig: Rig, postgres: Postgres) -> None:
    """Each handler on its own, as if its caller had been known before."""
    known = await rig.principal(rig.people["admin"])

    async def authenticate(_request: object) -> object:
        return known

    paths = {
        route(each): await target(rig, each) for each in guarded(rig) if route(each) not in ONLY_EMBEDDED
    }
    rig.app = make_app(
        ROUTES,
        services=rig.services,
        authenticate=authenticate,  # type: ignore[arg-type]
        options=AppOptions(clock=rig.clock),
    )
    found: dict[int, int] = {}
    with postgres.frozen():
        for (method, path), real in paths.items():
            async with asyncio.timeout(LIMIT):
                answer = await rig.knock(method, real, {}, BODIES.get((method, path)))
            found[answer.status] = found.get(answer.status, 0) + 1
            # What needs no database is done; nothing breaks, and nothing takes it for an answer that nothing is there.
            assert answer.status < 500 or is_told_so(answer), (method, path, answer)
    assert found[503] > 30
    await until_it_answers(rig)


async def test_the_process_is_alive_and_not_ready(rig: Rig, postgres: Postgres) -> None:
    with postgres.frozen():
        async with asyncio.timeout(LIMIT):
            for path in OPEN_AND_LOCAL:
                assert (await rig.knock("GET", path, {})).status < 400
            ready = await rig.knock("GET", "/v1/ready", {})
            assert ready.status == 503
            assert msgspec.json.decode(ready.body)["data"]["failing"] == ["database"]
            signing_in = await rig.knock("POST", "/v1/sign-in", {}, {"code": "lgn_" + "a" * 40})
            assert is_told_so(signing_in), signing_in
    await until_it_answers(rig)


async def test_a_write_under_way_is_there_once_or_not_at_all(rig: Rig, postgres: Postgres) -> None:
    """Frozen somewhere in it; whoever was not told that it is there looks, and tries again."""
    mine = await rig.bearer(rig.people["admin"], "instance", "manage")
    calls = [
        asyncio.create_task(rig.knock("POST", "/v1/users", mine, {"name": f"n{number}"}))
        for number in range(20)
    ]
    await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
    with postgres.frozen():
        async with asyncio.timeout(LIMIT):
            answers = await asyncio.gather(*calls)
    await until_it_answers(rig)
    kept = [row["name"] for row in await rig.rows("select name from app_user where name like 'n%'")]
    assert kept
    assert len(kept) == len(set(kept))
    for number, answer in enumerate(answers):
        assert answer.status in (201, 503), answer
        if answer.status == 201:
            assert f"n{number}" in kept
        elif f"n{number}" in kept:
            assert msgspec.json.decode(answer.body)["data"] == {"outcome": "unknown"}


async def test_an_open_stream_outlives_it(rig: Rig, postgres: Postgres) -> None:
    """Its credential is asked about again while nobody can say: that is no verdict."""
    mine, started, ended = await rig.bearer(rig.people["admin"]), asyncio.Event(), asyncio.Event()
    frames: asyncio.Queue[bytes] = asyncio.Queue()

    async def receive() -> dict[str, object]:
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            started.set()
        else:
            frames.put_nowait(message.get("body", b""))

    path = "/v1/streams/server/sse"
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"legation.test"), (b"authorization", mine["authorization"].encode())],
        "client": ("192.0.2.1", 40000), "server": ("legation.test", 80),
    }  # fmt: skip
    async with asyncio.timeout(LIMIT):
        body = asyncio.create_task(rig.app(scope, receive, send))
        await started.wait()
        with postgres.frozen():
            with pytest.raises(Unavailable):
                await rig.services.database.ping()
            rig.services.hub.recheck()
            await until_it_is_refused(rig, mine)
        await until_it_answers(rig)
        stream = await rig.services.log.stream("server")
        await stream.append([Draft("x", b'{"canary":1}')])
        while b"canary" not in await frames.get():
            assert not body.done()
        ended.set()
        await body


async def until_it_is_refused(rig: Rig, mine: dict[str, str]) -> None:
    while (await rig.knock("GET", "/v1/me", mine)).status != 503:
        await asyncio.sleep(0.05)


async def test_what_others_keep_getting_in_the_way_of_is_to_be_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of a row that another connection changes first, as often as it is tried: here once."""
    import asyncpg

    monkeypatch.setattr(database, "TRIES", 1)
    mine, ada = await rig.bearer(rig.people["admin"], "instance"), await rig.add_user("viewer")
    assert isinstance(rig.services.database, database.PostgresDatabase)
    other = await asyncpg.connect(rig.services.database._url.reveal())
    try:
        async with asyncio.timeout(LIMIT):
            async with other.transaction():
                await other.execute("update legation.app_user set name = 'Grace' where id = $1", ada)
                change = asyncio.create_task(rig.knock("PATCH", f"/v1/users/{ada}", mine, {"name": "Eve"}))
                waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
                while not await other.fetchval(waits):
                    await other.execute("select pg_stat_clear_snapshot()")
                    await asyncio.sleep(0.01)
            answer = await change
    finally:
        await other.close()
    told = msgspec.json.decode(answer.body)
    assert (answer.status, answer.headers["retry-after"]) == (503, "2")
    assert (told["code"], "try again" in told["detail"]) == ("legation/unavailable", True)
    assert (await rig.rows(f"select name from app_user where id = '{ada}'"))[0]["name"] == "Grace"
    assert (await rig.knock("PATCH", f"/v1/users/{ada}", mine, {"name": "Eve"})).status == 200
