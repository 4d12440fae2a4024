"""Two servers on one Postgres, where one prunes beside the other, or both at once: each takes what is its own, once."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.approvals.installation import proposal
from tests.postgres import Postgres
from tests.server.sessions.test_making import NEW, next_server, play
from tests.server.test_retention_killed import (
    DAYS,
    ORPHANS,
    Place,
    add_calls,
    on_postgres,
    open_ledger,
    pruned,
    verifies,
)

from legation.approvals.approval import new_approval_id
from legation.approvals.transitions import Transitions
from legation.clock import SystemClock
from legation.server.installation import server_name
from legation.store.datafolder import SERVER

pytestmark = pytest.mark.heavy

CALLS = 45  # of each server, nine steps each: more than two slices
ASKED = {"agent": "rehearsal"}
HERE = {"Legation-Here": "true"}  # else it lists those of all servers


@dataclass
class Server:
    place: Place
    http: httpx2.Client

    def sessions(self) -> set[str]:
        return {each["sessionId"] for each in self.http.get("/v1/sessions", headers=HERE).json()["sessions"]}

    def folders(self) -> set[str]:
        return {each.name for each in (self.place.data / "work/local").iterdir()}

    def chain(self) -> str:
        return server_name(self.place.data / SERVER)


@pytest.fixture
def servers(tmp_path: Path, postgres: Postgres) -> Iterator[tuple[Server, Server]]:
    """A and B, each with a session that is over, one whose agent lives, and calls of three days ago."""
    one = on_postgres(tmp_path / "a", postgres)
    places = (one, replace(one, home=tmp_path / "b"))
    for place in places:
        place.home.mkdir()
        with next_server(place.home, **place.env):  # it has a name from now on
            pass
        asyncio.run(add_calls(place, CALLS))
    with ExitStack() as stack:
        found = [Server(each, stack.enter_context(next_server(each.home, **each.env))) for each in places]
        for server, name in zip(found, "ab", strict=True):
            for session in (f"{name}-over", f"{name}-live"):
                new = NEW if session.endswith("over") else ASKED
                assert server.http.post(f"/v1/sessions/{session}", json=new).status_code == 200
                assert "hello" in play(server.http, session, "say hello")
            assert server.http.post(f"/v1/sessions/{name}-over/terminate").status_code == 204
        yield found[0], found[1]


def waits(server: Server, at: int) -> str:
    """An approval of yesterday, that a call of this server waits for still."""
    [waiter] = server.place.rows("select distinct waiter from approval where status = 'pending'")

    async def ask() -> str:
        async with open_ledger(server.place) as ledger:
            asked = proposal(
                id=new_approval_id(at), requester_kind="process", requester="host", waiter=waiter,
                expires_at=at + 2 * DAYS,
            )  # fmt: skip
            return (await ledger.transact("local", Transitions(ledger.chain).propose, asked, at)).id

    return asyncio.run(ask())


def pending(server: Server) -> list[str]:
    return [each["id"] for each in server.http.get("/approvals", params={"status": "pending"}).json()]


def settled(servers: tuple[Server, Server]) -> None:
    for server in servers:
        verifies(server.http)
    place = servers[0].place
    assert {what for what, sql in ORPHANS.items() if place.rows(sql)} == set()


def old_contents(place: Place) -> int:
    today = SystemClock().now_ms() // 86_400_000 * 86_400_000
    sql = (
        "select count(*) from trace_content c join trace_step s on s.server = c.server and s.seq = c.seq "
        f"where s.at < {today} and c.owner like 'day-%'"
    )
    return int(place.rows(sql)[0])


def test_one_that_prunes_takes_nothing_of_what_another_is_at(servers: tuple[Server, Server]) -> None:
    """A's sessions, folders and chain, its agent that waits for a person, and what an old approval is about."""
    a, b = servers
    with ThreadPoolExecutor(1) as pool:
        turn = pool.submit(play, a.http, "a-live", "ask write kept.txt x")
        while not (asked := pending(a)):
            continue
        old = waits(a, SystemClock().now_ms() - DAYS // 3)
        before = a.place.rows(f"select seq, hash from trace_step where server = '{a.chain()}' order by seq")
        went = pruned(b.http)
        assert went["sessions"] == 1
        assert went["traces"] >= 9 * CALLS
        assert (a.sessions(), a.folders()) == ({"a-over", "a-live"}, {"a-over", "a-live"})
        assert (b.sessions(), b.folders()) == ({"b-live"}, {"b-live"})
        after = a.place.rows(f"select seq, hash from trace_step where server = '{a.chain()}' order by seq")
        assert after[: len(before)] == before
        assert {*pending(a)} == {*asked, old}
        shown = a.http.get(f"/approvals/{old}").json()
        assert shown["params"], "what it is about can be read by whoever decides"
        answer = a.http.post(f"/approvals/{asked[0]}/approve", json={})
        assert answer.status_code == 200, answer.text
        turn.result(110)
    assert "next" in play(a.http, "a-live", "say next")  # behind the other turn
    assert (a.place.data / "work/local/a-live/kept.txt").read_text().strip() == "x"
    settled(servers)


def test_two_that_prune_at_once_take_everything_once(servers: tuple[Server, Server]) -> None:
    """What both may take, each row is counted by one of them."""
    a, b = servers
    contents = old_contents(a.place)
    assert contents >= 2 * CALLS
    with ThreadPoolExecutor(4) as pool:
        both = [pool.submit(pruned, each.http) for each in servers]
        turns = [
            pool.submit(play, each.http, f"{name}-live", *["say on"] * 20)
            for each, name in zip(servers, "ab", strict=True)
        ]
        went: list[dict[str, Any]] = [each.result(110) for each in both]
        assert all("on" in each.result(110) for each in turns)
    assert sum(each["content"] for each in went) == contents
    assert [each["sessions"] for each in went] == [1, 1]
    assert all(each["traces"] >= 9 * CALLS for each in went)
    assert old_contents(a.place) == 0
    assert a.place.rows("select id from approval") == []
    assert (a.sessions(), b.sessions()) == ({"a-live"}, {"b-live"})
    audited = a.place.rows("select target from audit where action = 'session.deleted' order by target")
    assert audited == ["a-over", "b-over"]
    settled(servers)
    assert [pruned(each.http)["content"] for each in servers] == [0, 0]
