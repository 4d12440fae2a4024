"""Two real servers on one real Postgres: a session of the one is everybody's at the other."""

import io
import socket
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx2
import pytest
from tests.cli.command import legation
from tests.postgres import Postgres
from tests.server.peers.servers import (
    LIMIT,
    Fleet,
    create,
    events,
    fleet,
    frames,
    played,
    send,
    text_of,
    until,
)

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, postgres_server: Postgres) -> Iterator[Fleet]:
    own = Postgres(postgres_server.binaries, postgres_server.folder)  # its databases outlive a test
    with fleet(tmp_path_factory.mktemp("two"), own, "a", "b") as servers:
        yield servers
    own.drop_databases()


def test_a_session_of_a_is_used_through_b(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        made = create(a, "whole", title="Of A")
        assert made.status_code == 200, made.text
        assert b.get("/v1/sessions/whole").json() == a.get("/v1/sessions/whole").json()
        assert text_of(played(b, "whole", "say hello")) == "hello"
        assert events(a, "whole") == events(b, "whole")
        page = b.get("/v1/sessions/whole/events")
        assert page.json() == a.get("/v1/sessions/whole/events").json()
        assert page.headers["content-type"] == "application/json"
        assert "connection" not in page.headers
        assert len(page.headers.get_list("date")) == 1
        assert len(page.headers.get_list("request-id")) == 1
        changed = b.patch("/v1/sessions/whole", json={"title": "By B"})
        assert changed.json()["title"] == a.get("/v1/sessions/whole").json()["title"] == "By B"
        # Problems come as they are, too.
        refused = b.post("/v1/sessions/whole/messages", json={"message": ""})
        assert refused.status_code == 400
        assert refused.headers["content-type"] == "application/problem+json"
        assert b.head("/v1/sessions/whole").status_code == 200
        assert b.post("/v1/sessions/whole/terminate").status_code == 204
        assert a.get("/v1/sessions/whole").json()["ended"]


def test_a_connection_that_has_its_id_from_a_is_used_through_b(two: Fleet) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    ask = {"jsonrpc": "2.0", "id": 2, "method": "session/list", "params": {}}
    with two.client("a") as a, two.client("b") as b:
        made = a.post("/acp?agent=rehearsal", json=hello, timeout=LIMIT)
        named = {"acp-connection-id": made.headers["acp-connection-id"]}
        assert b.post("/acp", json=ask, headers=named).status_code == 202
        reads = {**named, "accept": "text/event-stream"}
        with b.stream("GET", "/acp", headers=reads, timeout=LIMIT) as body:
            assert any('"id":2' in line for line in body.iter_lines())
        assert b.delete("/acp", headers=named).status_code == 202
        assert a.delete("/acp", headers=named).status_code == 404


def test_the_same_id_at_b_is_refused(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "taken").status_code == 200
        refused = create(b, "taken")
        assert refused.status_code == 409
        assert refused.json()["data"]["type"] == "session_already_exists"
        assert not (two.servers["b"].data_dir / "work/local/taken").exists()


def test_sse_through_b_goes_on_after_a_last_event_id(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "live").status_code == 200
        before = len(played(a, "live", "say one"))
        path = "/v1/streams/live/sse"
        with b.stream("GET", path, headers={"last-event-id": str(before - 1)}) as live:
            assert live.headers["content-type"] == "text/event-stream"
            heard = frames(live)
            assert next(heard)[0] == before
            send(a, "live", "say two", "say three")
            found = [next(heard)]
            while found[-1][1]["type"] != "prompt-finished":
                found.append(next(heard))
        stored = {each["seq"]: each for each in events(a, "live")}
        assert [number for number, _ in found] == list(range(before + 1, found[-1][0] + 1))
        assert all(stored[number]["raw"] == event["raw"] for number, event in found)
        beyond = b.get(path, headers={"last-event-id": "999999"})
        assert beyond.status_code == 409
        with b.stream("GET", "/v1/sessions/live/events/sse", params={"offset": 0}) as universal:
            assert next(frames(universal))[0] == 1
        with b.stream("GET", "/v1/stream", params={"streams": "live"}) as multiplexed:
            assert b'"stream":"live"' in next(chunk for chunk in multiplexed.iter_raw() if b"data: " in chunk)


def test_a_caller_who_leaves_ends_the_request_at_the_owner(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "left").status_code == 200

        def readers() -> int:
            lines = a.get("/metrics").text.splitlines()
            return int(next(line.split()[1] for line in lines if line.startswith("legation_stream_readers ")))

        until(lambda: readers() == 0)
        with b.stream("GET", "/v1/streams/left/sse") as live:
            body = live.iter_raw()  # which ends with the last that holds it
            next(body)
            until(lambda: readers() == 1)
        until(lambda: readers() == 0)


def test_a_permission_of_a_session_of_a_is_answered_through_b(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        for session, reply in (("asks", "once"), ("asks2", "reject")):
            assert create(a, session).status_code == 200
            send(b, session, "ask write made.txt content", "say done")

            def asked(session: str = session) -> str | None:
                found = [each for each in events(b, session) if each["type"] == "permission-asked"]
                return found[0]["raw"]["id"] if found else None

            permission = until(asked)
            path = f"/v1/sessions/{session}/permissions/{permission}/reply"
            assert b.post(path, json={"reply": reply}).status_code == 204
            until(partial(_is_over, b, session))
            made = two.servers["a"].data_dir / f"work/local/{session}/made.txt"
            assert made.exists() == (reply == "once")
            assert b.post(path, json={"reply": reply}).status_code == 409


def _is_over(http: httpx2.Client, session: str) -> bool:
    return any(each["type"] == "prompt-finished" for each in events(http, session))


def test_what_is_done_through_b_is_in_the_audit_log_once(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "audited").status_code == 200
        assert b.delete("/v1/sessions/audited").status_code == 204
        found = [each for each in a.get("/v1/audit").json()["items"] if each["target"] == "audited"]
        assert [each["action"] for each in found] == ["session.deleted"]


def test_files_and_uploads_go_to_the_session_s_own_server(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "files").status_code == 200
        of = {"sessionId": "files"}
        large = bytes(range(256)) * 4096 * 6  # 6 MiB: more than anybody on the way holds
        put = b.put("/v1/fs/file", params={**of, "path": "large.bin"}, content=large)
        assert put.status_code == 200, put.text
        assert (two.servers["a"].data_dir / "work/local/files/large.bin").read_bytes() == large
        pieces = (large[at : at + 50_000] for at in range(0, len(large), 50_000))  # without a length
        put = b.put("/v1/fs/file", params={"session_id": "files", "path": "chunked.bin"}, content=pieces)
        assert put.status_code == 200, put.text
        for name in ("large.bin", "chunked.bin"):
            found = b.get("/v1/fs/file", params={**of, "path": name})
            assert found.content == large
            assert found.headers["content-length"] == str(len(large))
        head = b.head("/v1/fs/file", params={**of, "path": "large.bin"})
        assert head.headers["content-length"] == str(len(large))
        assert head.content == b""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            info = tarfile.TarInfo("inner/one.txt")
            info.size = 3
            tar.addfile(info, io.BytesIO(b"one"))
        sent = b.post(
            "/v1/fs/upload-batch",
            params={**of, "path": "."},
            content=archive.getvalue(),
            headers={"content-type": "application/x-tar"},
        )
        assert sent.status_code == 200, sent.text
        assert a.get("/v1/fs/file", params={**of, "path": "inner/one.txt"}).content == b"one"
        listed = b.get("/v1/fs/entries", params=of).json()
        assert {"large.bin", "chunked.bin", "inner"} <= {each["name"] for each in listed}
        # Without a session they are the called server's own.
        missing = b.get("/v1/fs/file", params={"path": str(two.folder / "nowhere")})
        assert missing.status_code == 404


def test_a_fork_and_a_continuation_are_made_where_the_first_is(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "first").status_code == 200
        played(a, "first", "say one")
        made = create(b, "second", continues="first")
        assert made.status_code == 200, made.text
        assert a.get("/v1/sessions/first").json()["continuedBy"] == "second"
        assert two.sql("select server from stream_claim where name = 'second'") == two.sql(
            "select server from stream_claim where name = 'first'"
        )
        played(b, "second", "say two")


def test_a_deletion_through_b_frees_the_name(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "gone").status_code == 200
        assert two.sql("select count(*) from stream_claim where name = 'gone'") == "1"
        assert b.delete("/v1/sessions/gone").status_code == 204
        assert two.sql("select count(*) from stream_claim where name = 'gone'") == "0"
        found = a.get("/v1/sessions/gone")
        assert found.status_code == 404
        assert found.json()["data"]["deleted"]
        assert "gone" not in [each["sessionId"] for each in b.get("/v1/sessions").json()["sessions"]]


def test_what_was_not_made_leaves_no_claim(two: Fleet) -> None:
    with two.client("a") as a:
        assert create(a, "unmade", agent="rehearsal", agentVersion="0.0.0").status_code >= 400
        assert create(a, "unmade2", agent="nobody-has-this").status_code == 400
        assert two.sql("select count(*) from stream_claim where name like 'unmade%'") == "0"


def test_of_two_creates_of_one_id_at_once_exactly_one_wins(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b, ThreadPoolExecutor(2) as threads:
        for number in range(30):
            session = f"race{number}"
            answers = list(threads.map(lambda http, s=session: create(http, s), (a, b)))
            statuses = sorted(each.status_code for each in answers)
            assert statuses == [200, 409], [each.text for each in answers]
            winner = next(name for name, each in zip("ab", answers, strict=True) if each.status_code == 200)
            url = two.sql(
                "select url from stream_claim natural join server_address "
                f"where stream_claim.name = '{session}'"
            )
            assert url == two.address(winner)
            assert a.get(f"/v1/sessions/{session}").json() == b.get(f"/v1/sessions/{session}").json()
            for http in (a, b):
                http.post(f"/v1/sessions/{session}/terminate")


def test_the_token_of_a_server_s_own_process_is_good_for_sessions_of_the_others(two: Fleet) -> None:
    own = two.servers["b"].server_file().token
    with two.client("a") as a, two.client("b", own) as b:
        assert create(a, "owned", title="Told").status_code == 200
        assert a.get("/v1/me", headers={"authorization": f"Bearer {own}"}).status_code == 401
        assert b.get("/v1/sessions/owned").json()["title"] == "Told"
        assert text_of(played(b, "owned", "say yes")) == "yes"
        listed = {each["sessionId"]: each for each in b.get("/v1/sessions").json()["sessions"]}
        assert listed["owned"]["title"] == "Told"
        assert listed["owned"]["server"] == two.address("a")


def test_the_command_lists_the_sessions_of_all_servers(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "listed-a", title="At A").status_code == 200
        assert create(b, "listed-b", title="At B").status_code == 200
    for name in ("a", "b"):
        said = legation(two.servers[name].home, "sessions")
        assert said.returncode == 0, said.stderr
        for wanted in ("listed-a", "At A", "listed-b", "At B"):
            assert wanted in said.stdout
        shown = legation(two.servers[name].home, "sessions", "show", "listed-a")
        assert "At A" in shown.stdout


def test_who_may_not_do_it_at_the_owner_may_not_through_another(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "guarded").status_code == 200
        made = b.post("/v1/tokens", json={"label": "reads", "scopes": ["read"]}).json()
        with two.client("b", made["secret"]) as reader:
            assert reader.get("/v1/sessions/guarded").status_code == 200
            assert reader.post("/v1/sessions/guarded/cancel").status_code == 403
            b.delete(f"/v1/tokens/{made['token']['id']}")
            assert reader.get("/v1/sessions/guarded").status_code == 401
        with two.client("b", "no-such-token") as nobody:
            assert nobody.get("/v1/sessions/guarded").status_code == 401


def test_streams_of_several_servers_are_not_mixed_in_one_body(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "mixed-a").status_code == 200
        assert create(b, "mixed-b").status_code == 200
        assert create(a, "mixed-gone").status_code == 200
        assert a.delete("/v1/sessions/mixed-gone").status_code == 204
        path, again = "/v1/stream?streams=mixed-a,mixed-gone", {"last-event-id": "0.3"}
        with b.stream("GET", path, headers=again) as live:  # what is nobody's any more is in nobody's way
            assert live.status_code == 200
        assert (
            b.get("/v1/stream", params={"streams": "mixed-a,\0"}).status_code == 409
        )  # the database takes none
        refused = b.get("/v1/stream", params={"streams": "mixed-a,server"})
        assert refused.status_code == 409
        refused = b.get("/v1/stream", params={"streams": "mixed-a,mixed-b"})
        assert refused.status_code == 409
        assert "mixed-a" in refused.json()["detail"]
        assert "mixed-b" not in refused.json()["detail"]


def test_an_owner_that_is_killed_is_named_until_it_is_back(tmp_path: Path, postgres: Postgres) -> None:
    with fleet(tmp_path, postgres, "a", "b") as two:
        url = two.address("a")
        with two.client("b") as b:
            with two.client("a") as a:
                assert create(a, "kept", title="Kept").status_code == 200
                played(b, "kept", "say one")
            before = events(b, "kept")
            with b.stream("GET", "/v1/streams/kept/sse") as live:
                heard = frames(live)
                next(heard)
                two.kill("a")
                with pytest.raises(Exception):  # noqa: B017 - cut off, in whichever of httpx2's words
                    for _ in heard:
                        pass
            for method, path in (
                ("GET", "/v1/sessions/kept"),
                ("GET", "/v1/streams/kept/sse"),
                ("POST", "/v1/sessions/kept/cancel"),
                ("DELETE", "/v1/sessions/kept"),
            ):
                away = b.request(method, path)
                assert away.status_code == 503, away.text
                assert url in away.json()["detail"]
                assert away.json()["data"]["server"] == url
                assert int(away.headers["retry-after"]) >= 1
            assert create(b, "kept").status_code == 503
            [listed] = b.get("/v1/sessions").json()["sessions"]
            assert (listed["sessionId"], listed["status"]) == ("kept", "away")
            assert (listed["agent"], listed["title"], listed["server"]) == ("rehearsal", None, url)
            two.start("a")
            assert two.address("a") == url
            assert events(b, "kept")[: len(before)] == before
            assert b.get("/v1/sessions").json()["sessions"][0]["title"] == "Kept"
            assert text_of(played(b, "kept", "say two")) == "onetwo"
            assert b.delete("/v1/sessions/kept").status_code == 204


def test_what_a_caller_writes_is_not_read_twice(two: Fleet) -> None:
    """Whatever is ambiguous is refused here, and what is in a body is no request there."""
    with two.client("a") as a, two.client("b") as b:
        assert create(a, "prey").status_code == 200
        assert create(a, "victim").status_code == 200
        host, port = b.base_url.host, b.base_url.port
        credential = f"host: {host}:{port}\r\nauthorization: {b.headers['authorization']}\r\n".encode()
        credential += b"connection: close\r\n"
        hidden = b"DELETE /v1/sessions/victim HTTP/1.1\r\n" + credential + b"\r\n"
        path = b"/v1/fs/file?path=kept.bin&sessionId=prey"
        as_chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden)
        refused = (
            b"content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
            b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello" + hidden,
            b"transfer-encoding: xchunked\r\n\r\n" + as_chunk,
            b"transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n" + as_chunk,
            b"content-length: +5\r\n\r\nhello" + hidden,
            b"content-length : 5\r\n\r\nhello" + hidden,
            b"x: y\rcontent-length: 5\r\n\r\nhello" + hidden,
            b"x: y\n z\r\ncontent-length: 5\r\n\r\nhello" + hidden,
        )
        for rest in refused:
            answers = _spoken(host, port, b"PUT " + path + b" HTTP/1.1\r\n" + credential + rest)
            assert b" 204 " not in answers, rest  # the deletion would be
            assert a.get("/v1/sessions/victim").status_code == 200, rest
        # What is whole and hides another request is content, with either framing.
        for rest in (
            b"content-length: %d\r\n\r\n" % len(hidden) + hidden,
            b"transfer-encoding: chunked\r\nconnection: content-length\r\n\r\n" + as_chunk,
        ):
            answers = _spoken(host, port, b"PUT " + path + b" HTTP/1.1\r\n" + credential + rest)
            assert answers.startswith(b"HTTP/1.1 200"), answers
            assert a.get("/v1/fs/file", params={"path": "kept.bin", "sessionId": "prey"}).content == hidden
            assert a.get("/v1/sessions/victim").status_code == 200
        # A body of a GET is one, too: what follows on the same connection is another request of this caller.
        answers = _spoken(
            host,
            port,
            b"GET /v1/sessions/prey HTTP/1.1\r\n"
            + credential
            + b"content-length: %d\r\n\r\n" % len(hidden)
            + hidden,
        )
        assert answers.startswith(b"HTTP/1.1 200")
        assert a.get("/v1/sessions/victim").status_code == 200
        # Encoded ends of lines in an address stay encoded, and headers of ours are nobody's to set.
        for odd in ("prey%0d%0aX:%20y", "prey%00", "..%2Fvictim", "prey%2F..%2Fvictim"):
            assert b.get(f"/v1/sessions/{odd}").status_code in (400, 404)
        spoofed = {"connection": "legation-passed-by, authorization", "x-forwarded-for": "6.6.6.6"}
        assert b.get("/v1/sessions/prey", headers=spoofed).status_code == 401  # the owner was sent none


def _spoken(host: str, port: int | None, said: bytes) -> bytes:
    """Say exactly that, and return all that is answered until the other side ends it."""
    with socket.create_connection((host, port), timeout=LIMIT) as sock:
        sock.sendall(said)
        answers = b""
        while piece := sock.recv(65536):
            answers += piece
    return answers


def test_one_inbox_has_what_sessions_of_both_came_to(two: Fleet) -> None:
    with two.client("a") as a, two.client("b") as b:
        for each, name in ((a, "of-a"), (b, "of-b")):
            assert create(each, name, title=f"Title {name}").status_code == 200
        head = b.get("/v1/inbox").json()["seq"]
        played(b, "of-b", "say done")
        send(a, "of-a", "elicit Which? name:string")

        def found(http: httpx2.Client) -> dict[str, tuple[str, str, str]]:
            items = [each for each in http.get("/v1/inbox").json()["items"] if each["sessionId"] in names]
            return {
                each["sessionId"]: (each["section"], each["sessionTitle"], each["object"]) for each in items
            }

        names = {"of-a", "of-b"}
        wanted = {"of-a": ("you", "Title of-a", "Which?"), "of-b": ("ready", "Title of-b", "Title of-b")}
        until(lambda: found(a) == wanted)
        until(lambda: found(b) == wanted)
        # What happened at A is told at B, too: not what it was, but that the list is another.
        told = b.get("/v1/streams/inbox/events", params={"after": head, "limit": 1000}).json()["items"]
        assert any(each["raw"]["happened"] == "changed" and "id" not in each["raw"] for each in told)
        (question,) = [each for each in b.get("/v1/inbox").json()["items"] if each["sessionId"] == "of-a"]
        assert question["server"] == two.address("a")
        reply = f"/v1/sessions/of-a/questions/{question['id']}/reply"
        assert b.post(reply, json={"answers": [["x"]]}).status_code == 204
        until(lambda: found(b).get("of-a", ("",))[0] == "ready")
        assert b.post("/v1/inbox/of-a/looked-at").status_code == 204
        until(lambda: found(a) == {"of-b": wanted["of-b"]})
