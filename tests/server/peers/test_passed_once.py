"""Passed on once: addresses that lead astray, names that two servers have, claims that a crash left."""

import asyncio
import os
import signal
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from tests.certificates import make_certificate
from tests.postgres import Postgres
from tests.server.acp.acp_server import Client, http_to
from tests.server.peers.servers import LIMIT, Fleet, bearer, create, events, fleet, played, text_of, until

pytestmark = pytest.mark.heavy

TIMES = "Legation-Passed-By"


def requests_of(servers: Fleet, name: str) -> int:
    """Return how many requests about sessions a server has answered."""
    with servers.client(name) as http:
        lines = http.get("/metrics").text.splitlines()
    found = [
        line
        for line in lines
        if line.startswith("legation_http_requests_total") and "/v1/sessions/{id}" in line
    ]
    return sum(int(line.rsplit(" ", 1)[1]) for line in found)


def test_an_address_that_leads_to_another_server_is_no_loop(tmp_path: Path, postgres: Postgres) -> None:
    with fleet(tmp_path, postgres, "a", "b") as servers:
        # C says that it is where A is, and D that it is where B is: behind one load balancer they all would.
        servers.start("c", "--advertise-url", servers.address("a"))
        servers.start("d", "--advertise-url", servers.address("b"))
        with servers.client("c") as c, servers.client("d") as d, servers.client("b") as b:
            assert create(c, "of-c").status_code == 200
            assert create(d, "of-d").status_code == 200
            before = {name: requests_of(servers, name) for name in "ab"}
            twice = b.get("/v1/sessions/of-c")  # B asks A, and A would ask itself
            itself = b.get("/v1/sessions/of-d")  # B asks B
            for answer in (twice, itself):
                assert answer.status_code == 503, answer.text
                assert "a second time" in answer.json()["detail"]
                assert "advertise_url" in answer.json()["detail"]
            after = {name: requests_of(servers, name) for name in "ab"}
            assert after["a"] - before["a"] == 1
            assert after["b"] - before["b"] == 3  # two from here, and one from itself
            # Who has it answers, whoever passed it on; and what one says of oneself is believed by nobody.
            assert c.get("/v1/sessions/of-c", headers={TIMES: "srv_x"}).status_code == 200
            assert b.get("/v1/sessions/of-c", headers={TIMES: "srv_x"}).status_code == 503


def test_an_address_without_the_keys_of_the_installation_is_sent_nothing(
    tmp_path: Path, postgres: Postgres
) -> None:
    with (
        fleet(tmp_path, postgres, "a", "b") as servers,
        socket.create_server(("127.0.0.1", 0)) as foreign,
        servers.client("a") as a,
        servers.client("b") as b,
    ):
        assert create(a, "prey").status_code == 200
        url = f"http://127.0.0.1:{foreign.getsockname()[1]}"
        servers.sql(
            f"update server_address set url = '{url}' where server = (select server from stream_claim)"
        )
        refused = b.get("/v1/sessions/prey")
        assert refused.status_code == 503
        assert url in refused.json()["detail"]
        assert [each["status"] for each in b.get("/v1/sessions").json()["sessions"]] == ["away"]
        foreign.settimeout(0)
        with pytest.raises(BlockingIOError):  # nobody has knocked
            foreign.accept()
        servers.kill("a")
        servers.start("a")  # which says again where it is
        assert b.get("/v1/sessions/prey").status_code == 200


def test_an_owner_that_hangs_is_away_until_it_goes_on(tmp_path: Path, postgres: Postgres) -> None:
    with fleet(tmp_path, postgres, "a", "b") as servers, servers.client("a") as a, servers.client("b") as b:
        assert create(a, "held").status_code == 200
        assert b.get("/v1/sessions/held").status_code == 200
        os.kill(servers.servers["a"].process.pid, signal.SIGSTOP)
        try:
            away = b.get("/v1/sessions/held")
            changed = b.post("/v1/sessions/held/cancel")
            listed = b.get("/v1/sessions").json()["sessions"]
        finally:
            os.kill(servers.servers["a"].process.pid, signal.SIGCONT)
        assert away.status_code == changed.status_code == 503
        assert away.json()["data"]["server"] == changed.json()["data"]["server"] == servers.address("a")
        assert "retry-after" in away.headers
        assert changed.json()["data"]["outcome"] == "unknown"  # it is done, when it goes on
        assert "retry-after" not in changed.headers
        assert [each["status"] for each in listed] == ["away"]
        assert b.get("/v1/sessions/held").status_code == 200


def test_a_server_with_a_certificate_of_its_own_is_reached_by_the_others(
    tmp_path: Path, postgres: Postgres
) -> None:
    certificate, key = make_certificate(tmp_path, "localhost")
    with fleet(tmp_path, postgres) as servers:
        secure = ("--tls-cert", str(certificate), "--tls-key", str(key))
        servers.start("b")
        servers.start("a", *secure)
        url = servers.address("a")
        assert url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(certificate))
        trust.check_hostname = False  # it is called by its address
        with (
            httpx2.Client(base_url=url, headers=bearer(servers.token()), verify=trust, timeout=LIMIT) as a,
            servers.client("b") as b,
        ):
            assert create(a, "sealed", title="over TLS").status_code == 200
            assert b.get("/v1/sessions/sealed").json()["title"] == "over TLS"
            assert text_of(played(b, "sealed", "say yes")) == "yes"
            # Another certificate, which the others learn of when it starts.
            servers.kill("a")
            (tmp_path / "other").mkdir()
            other, other_key = make_certificate(tmp_path / "other", "localhost")
            certificate.write_bytes(other.read_bytes())
            key.write_bytes(other_key.read_bytes())
            row = servers.sql("select certificate, mac from server_address where url like 'https%'")
            servers.start("a", *secure)
            assert servers.sql("select certificate, mac from server_address where url like 'https%'") != row
            assert b.get("/v1/sessions/sealed").status_code == 200


def test_a_page_at_a_time_the_sessions_of_three_servers(tmp_path: Path, postgres: Postgres) -> None:
    names = ("a", "b", "c")
    with fleet(tmp_path, postgres, *names) as servers:
        clients = {name: servers.client(name) for name in names}
        made = []
        for number in range(14):
            session = f"s{number:02}"
            name = names[number * 7 % 5 % 3]
            assert create(clients[name], session, title=f"by {name}").status_code == 200
            clients[name].post(f"/v1/sessions/{session}/terminate")
            made.append((session, name))
        assert {name for _, name in made} == {*names}
        for asked in names:
            for limit in (1, 4, 5, 14, 500):
                found, cursor = [], None
                while True:
                    given = {"limit": limit, **({"cursor": cursor} if cursor else {})}
                    page = clients[asked].get("/v1/sessions", params=given).json()
                    assert len(page["sessions"]) <= limit
                    found += page["sessions"]
                    if (cursor := page["next"]) is None:
                        break
                assert [each["sessionId"] for each in found] == [session for session, _ in reversed(made)]
                assert [each["title"] for each in found] == [f"by {name}" for _, name in reversed(made)]
                assert [each["server"] for each in found] == [
                    servers.address(name) for _, name in reversed(made)
                ]
                order = [(-each["createdAt"], each["sessionId"]) for each in found]
                assert order == sorted(order)
            for limit in (1, 3, 500):  # searched, they are those of all servers too
                found, cursor = [], None
                while True:
                    given = {
                        "limit": limit,
                        "search": "/S0",
                        "state": "ended",
                        **({"cursor": cursor} if cursor else {}),
                    }
                    page = clients[asked].get("/v1/sessions", params=given).json()
                    found += [each["sessionId"] for each in page["sessions"]]
                    if (cursor := page["next"]) is None:
                        break
                assert found == [session for session, _ in reversed(made) if session.startswith("s0")]
            whole = clients[asked].get("/v1/sessions").json()
            assert "next" not in whole
            assert [each["sessionId"] for each in whole["sessions"]] == [
                session for session, _ in reversed(made)
            ]
            own = clients[asked].get("/v1/sessions", headers={"Legation-Here": "true"}).json()["sessions"]
            assert [each["sessionId"] for each in own] == [s for s, name in reversed(made) if name == asked]
        servers.kill("c")
        page = clients["a"].get("/v1/sessions", params={"limit": 500}).json()["sessions"]
        assert [each["sessionId"] for each in page] == [session for session, _ in reversed(made)]
        assert [each["status"] == "away" for each in page] == [name == "c" for _, name in reversed(made)]
        for client in clients.values():
            client.close()


def test_an_id_that_two_servers_had_goes_to_the_first_to_claim(tmp_path: Path, postgres: Postgres) -> None:
    with fleet(tmp_path, postgres, "a", "b") as servers:
        for name in ("a", "b"):
            with servers.client(name) as http:
                assert create(http, "same", title=f"of {name}").status_code == 200
                assert create(http, f"only-{name}").status_code == 200
                played(http, "same", f"say {name}")
            servers.sql("delete from stream_claim")  # as before there were any
            servers.kill(name)
        servers.sql("delete from server_address")
        servers.start("b")
        servers.start("a")
        with servers.client("a") as a, servers.client("b") as b:
            for http in (a, b):
                assert http.get("/v1/sessions/same").json()["title"] == "of b"
                listed = {each["sessionId"]: each for each in http.get("/v1/sessions").json()["sessions"]}
                assert {*listed} == {"same", "only-a", "only-b"}
                assert listed["same"]["title"] == "of b"
            told = [each["raw"] for each in events(a, "server") if each["type"] == "diagnostic"]
            assert [each["code"] for each in told] == ["session/held-elsewhere"]
            assert "same" in told[0]["message"]
            assert "only-a" not in told[0]["message"]
            assert not [each for each in events(b, "server") if each["type"] == "diagnostic"]
            here = {"Legation-Here": "true"}
            assert a.get("/v1/sessions/same", headers=here).json()["title"] == "of a"
            found = a.get("/v1/streams/same/events", headers=here).json()["items"]
            assert text_of(found) == "a"
            refused = a.post("/v1/sessions/same/cancel", headers=here)
            assert refused.status_code == 409
            assert servers.address("b") in refused.json()["detail"]


def test_a_start_does_not_go_through_what_is_claimed_already(tmp_path: Path, postgres: Postgres) -> None:
    with fleet(tmp_path, postgres, "a", "b") as servers:
        with servers.client("a") as a:
            assert create(a, "old").status_code == 200
        servers.kill("a")
        servers.sql("delete from stream_claim")
        servers.start("a")
        assert servers.sql("select count(*) from stream_claim") == "0"  # the start has looked for none
        with servers.client("a") as a, servers.client("b") as b:
            assert b.get("/v1/sessions/old").status_code == 404
            assert a.get("/v1/sessions/old").status_code == 200  # who has it sees that it is nobody's
            assert b.get("/v1/sessions/old").status_code == 200


def test_what_a_kill_leaves_between_a_claim_and_its_session_is_swept(
    tmp_path: Path, postgres: Postgres
) -> None:
    with fleet(tmp_path, postgres) as servers:
        data = tmp_path / "a/.local/share/legation"
        data.mkdir(parents=True)
        data.chmod(0o700)
        (data / "agents.toml").write_text("[agents.stuck]\ncommand = '/bin/sleep'\nargs = ['1000']\n")
        servers.start("a", "--port", "0")
        with servers.client("a") as a:
            assert create(a, "good").status_code == 200
            asking = threading.Thread(target=lambda: _ignored(a, "half"), daemon=True)
            asking.start()
            until(lambda: servers.sql("select count(*) from stream_claim where name = 'half'") == "1")
            servers.kill("a")
            asking.join(LIMIT)
        # One of a connection, of any time: those are few, and all are looked at.
        servers.sql(
            "insert into stream_claim select workspace_id, 'acp:lost', server, 'rehearsal', null, 1 "
            "from stream_claim where name = 'good'"
        )
        servers.start("a")
        assert servers.sql("select name from stream_claim") == "good"


def _ignored(http: httpx2.Client, session: str) -> None:
    with suppress(httpx2.HTTPError):  # its server is killed meanwhile
        create(http, session, agent="stuck")


def test_a_deletion_that_was_cut_off_frees_the_name_at_the_next_start(
    tmp_path: Path, postgres: Postgres
) -> None:
    with fleet(tmp_path, postgres, "a", "b") as servers:
        with servers.client("a") as a:
            assert create(a, "going").status_code == 200
            servers.sql(
                "create function refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$; "
                "create trigger refuse before delete on stream_claim for each row execute function refuse()"
            )
            assert a.delete("/v1/sessions/going").status_code >= 500
            servers.kill("a")
        assert servers.sql("select name from stream_claim") == "going"
        servers.sql("drop trigger refuse on stream_claim")
        servers.start("a")
        assert servers.sql("select count(*) from stream_claim") == "0"
        with servers.client("b") as b:
            assert b.get("/v1/sessions/going").status_code == 404
            assert b.get("/v1/sessions").json()["sessions"] == []


async def test_acp_through_another_server(tmp_path: Path, postgres: Postgres) -> None:
    with fleet(tmp_path, postgres, "a", "b") as servers:
        token = servers.token()
        work = tmp_path / "work"
        work.mkdir()
        async with http_to(servers.servers["a"], token) as to_a, http_to(servers.servers["b"], token) as to_b:
            at_a, at_b = Client(to_a, "editor", work), Client(to_b, "editor", work)
            at_b.follow()  # before anybody has it
            await at_a.initialize()
            session = await at_b.new()
            assert (await at_b.play(session, "say hello"))["stopReason"] == "end_turn"
            await at_b.until_text(session, "hello")
            asking = at_b.prompting(session, "ask write file.txt content")
            asked = await at_b.until("session/request_permission")
            option = next(each for each in asked["params"]["options"] if each["kind"] == "allow_once")[
                "optionId"
            ]
            await at_b.answer(asked, {"outcome": {"outcome": "selected", "optionId": option}})
            async with asyncio.timeout(LIMIT):
                assert "error" not in await asking
            assert (work / "file.txt").read_text() == "content"
            last = at_b.heard[-1]
            await at_b.leave()
            again = Client(to_b, "editor", work)
            again.follow(after=last[0] - 1)
            await again.hears(lambda: bool(again.heard))
            assert again.heard[0] == last
            await again.leave()
            # The session is one of A's, and in everybody's list; the connection too.
            assert [each["serverId"] for each in (await to_b.get("/v1/acp")).json()["servers"]] == ["editor"]
            listed = (await to_b.get("/v1/sessions")).json()["sessions"]
            assert [(each["sessionId"], each["server"]) for each in listed] == [
                (session, servers.address("a"))
            ]
            other = await at_b.post({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, agent="claude")
            assert other.status_code == 409  # the owner's word: it has another agent
            assert await at_b.delete() == 204
            async with asyncio.timeout(LIMIT):
                while servers.sql("select count(*) from stream_claim where name = 'acp:editor'") != "0":
                    await asyncio.sleep(0.05)
            again = Client(to_b, "editor", work)
            await again.initialize()  # now it is B's
            url = servers.sql(
                "select url from stream_claim natural join server_address where name = 'acp:editor'"
            )
            assert url == servers.address("b")
            await again.delete()
