"""Runs at two real servers and a real worker on one real Postgres: submitted at either, once; followed, answered and cancelled at the other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from tests.cli.command import rehearse
from tests.cli.server_process import Running
from tests.postgres import Postgres
from tests.server.peers.servers import Fleet, Json, fleet, frames, until

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres) -> Iterator[Fleet]:
    own = Postgres(postgres_server.binaries, postgres_server.folder)  # its databases outlive a test
    with fleet(tmp_path_factory.mktemp("runs"), own, "a", "b") as servers:
        yield servers
    own.drop_databases()


@pytest.fixture
def worker(two: Fleet, tmp_path: Path) -> Iterator[Running]:
    named = {"LEGATION_WORKER_ID": "w1", "LEGATION_REPORT_URL": two.address("a")}
    process = Running(tmp_path, "worker", **two.env, **named)
    assert "ready; worker w1" in process.line()
    yield process
    assert process.stop() == 0


def submitted(http: httpx2.Client, *steps: str, **more: object) -> httpx2.Response:
    return http.post("/v1/runs", json={"agent": "rehearsal", "prompt": rehearse(*steps), **more})


def test_fifty_duplicates_at_two_servers_are_one_run_and_without_a_worker_it_says_so(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b, ThreadPoolExecutor(50) as pool:
        answers = [*pool.map(lambda n: submitted((a, b)[n % 2], "say once", idempotencyKey="k"), range(50))]
        codes = [answer.status_code for answer in answers]
        assert (codes.count(201), codes.count(200)) == (1, 49), codes
        (run,) = {answer.json()["id"] for answer in answers}
        assert "no worker" in b.get(f"/v1/runs/{run}").json()["notice"]
        assert submitted(b, "say another", idempotencyKey="k").status_code == 409
        assert a.post(f"/v1/runs/{run}/cancel").status_code == 200
        assert two.sql("select count(*) from run") == "1"


def test_a_run_is_followed_and_answered_at_another_server_than_it_reports_to(
    two: Fleet, worker: Running
) -> None:
    work = two.folder / "work"
    work.mkdir()
    with two.client("a") as a, two.client("b") as b:
        made = submitted(
            b,
            "say begun",
            "ask write note.txt hi",
            "say over",
            workspace={"type": "folder", "path": str(work)},
        )
        assert made.status_code == 201, made.text
        run = made.json()["id"]
        waits: Json = until(lambda: (found := b.get(f"/v1/runs/{run}").json())["waitsFor"] and found)
        assert (waits["state"], waits["waitsOn"]) == ("waiting", "person")
        with b.stream("GET", f"/v1/runs/{run}/events/sse") as stream:
            answered = a.post(f"/approvals/{waits['waitsFor']}/approve", json={})
            assert answered.status_code == 200, answered.text
            seen = [number for number, _ in frames(stream)]
        ended = a.get(f"/v1/runs/{run}", params={"wait": 60}).json()
        assert (ended["state"], ended["cleanup"]) == ("succeeded", "succeeded")
        assert (work / "note.txt").read_text().strip() == "hi"
        items = a.get(f"/v1/runs/{run}/events").json()["items"]
        assert [each["seq"] for each in items] == [*range(1, len(items) + 1)] == seen
        assert items == b.get(f"/v1/runs/{run}/events").json()["items"]
        assert items[-1]["type"] == "prompt-finished"
        stalled = submitted(a, "stall 600").json()["id"]
        until(lambda: b.get(f"/v1/runs/{stalled}").json()["state"] == "running")
        assert b.post(f"/v1/runs/{stalled}/cancel").status_code == 200
        assert a.get(f"/v1/runs/{stalled}", params={"wait": 60}).json()["state"] == "cancelled"
