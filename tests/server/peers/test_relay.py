"""The way to another server, byte by byte: against a peer that says exactly what a test has it say."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.certificates import make_chains

from legation.errors import Cancelled, InvalidParams, Unavailable
from legation.server.address import own_certificate
from legation.server.peers.claims import Peer
from legation.server.peers.relay import HIGH_WATER, PeerClient
from legation.settings import load

LIMIT = 60.0
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nrequest-id: req_1\r\n\r\nok"

Speaker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class ScriptedPeer:
    """A server that keeps what it is sent, by connection, and answers as told."""

    def __init__(self, speak: Speaker) -> None:
        self.speak = speak
        self.connections: list[bytearray] = []
        self.ended = asyncio.Event()
        self.peer = Peer("srv_peer", "", None, genuine=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = bytearray()
        self.connections.append(heard)
        recorded = RecordedReader(reader, heard)
        try:
            await self.speak(recorded, writer)  # type: ignore[arg-type]
        finally:
            writer.close()
            self.ended.set()


class RecordedReader:
    def __init__(self, reader: asyncio.StreamReader, heard: bytearray) -> None:
        self._reader, self._heard = reader, heard

    async def readuntil(self, end: bytes) -> bytes:
        found = await self._reader.readuntil(end)
        self._heard += found
        return found

    async def read(self, count: int = -1) -> bytes:
        found = await self._reader.read(count)
        self._heard += found
        return found


@asynccontextmanager
async def peer_that(
    speak: Speaker, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[ScriptedPeer, PeerClient]]:
    scripted = ScriptedPeer(speak)
    server = await asyncio.start_server(scripted._serve, "127.0.0.1", 0, limit=1 << 16, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
    scripted.peer = Peer("srv_peer", url, None, genuine=True)
    client = PeerClient()
    try:
        async with asyncio.timeout(LIMIT):
            yield scripted, client
    finally:
        client.close()
        server.close()


def answers(*texts: bytes) -> Speaker:
    """One for each request without a body, on whichever connection."""
    left = list(texts)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left:
            try:
                await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            writer.write(left.pop(0))
            await writer.drain()

    return speak


class AsgiCaller:
    """The caller's side, as ASGI has it."""

    def __init__(
        self, *pieces: bytes, method: str = "GET", headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "raw_path": b"/v1/sessions/s",
            "query_string": b"",
            "headers": [(b"host", b"caller"), *(headers or [])],
        }
        self._pieces = list(pieces) or [b""]
        self.left = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> dict[str, Any]:
        if self._pieces:
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.takes.wait()
        self.sent.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.sent)

    @property
    def whole(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    async def call(self, client: PeerClient, peer: Peer, **options: Any) -> Any:
        answer = await client.pass_on(
            peer, self.scope, self.receive, [(b"legation-passed-by", b"srv_us")], **options
        )
        await answer(self.scope, self.receive, self.send)
        return answer


async def test_a_request_is_written_anew_without_what_is_of_the_connection() -> None:
    async with peer_that(answers(OK)) as (scripted, client):
        caller = AsgiCaller(
            headers=[
                (b"authorization", b"Bearer t"),
                (b"last-event-id", b"7"),
                (b"range", b"bytes=0-1"),
                (b"connection", b"keep-alive, X-Secret"),
                (b"x-secret", b"1"),
                (b"keep-alive", b"1"),
                (b"te", b"trailers"),
                (b"upgrade", b"h2c"),
                (b"expect", b"100-continue"),
                (b"forwarded", b"for=6.6.6.6"),
                (b"x-forwarded-for", b"6.6.6.6"),
                (b"legation-passed-by", b"srv_liar"),
            ]
        )
        answer = await caller.call(client, scripted.peer)
        host = scripted.peer.url.removeprefix("http://").encode()
        assert bytes(scripted.connections[0]) == (
            b"GET /v1/sessions/s HTTP/1.1\r\nhost: "
            + host
            + b"\r\nauthorization: Bearer t\r\nlast-event-id: 7\r\n"
            b"range: bytes=0-1\r\nlegation-passed-by: srv_us\r\n\r\n"
        )
        assert answer.status_code == 200
        assert caller.body == b"ok"
        assert caller.whole


async def test_an_answer_comes_as_it_is_but_for_its_connection() -> None:
    text = (
        b"HTTP/1.1 100 Continue\r\nx-interim: 1\r\n\r\n"
        b"HTTP/1.1 206 Partial Content\r\nDate: then\r\nContent-Range: bytes 0-1/9\r\nset-cookie: a\r\nset-cookie: b\r\n"
        b"Connection: keep-alive\r\nKeep-Alive: timeout=5\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    )
    async with peer_that(answers(text)) as (scripted, client):
        caller = AsgiCaller()
        await caller.call(client, scripted.peer)
        assert caller.sent[0] == {
            "type": "http.response.start",
            "status": 206,
            "headers": [
                (b"content-range", b"bytes 0-1/9"),
                (b"set-cookie", b"a"),
                (b"set-cookie", b"b"),
            ],
        }
        assert caller.body == b"abcde"
        assert caller.whole


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nuntil it ends",
    ],
)
async def test_what_breaks_off_there_breaks_off_here(text: bytes) -> None:
    async with peer_that(answers(text)) as (scripted, client):
        caller = AsgiCaller()
        await caller.call(client, scripted.peer)
        assert not caller.whole


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nx: \0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\nhello",
    ],
)
async def test_what_is_no_answer_is_no_server(text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with peer_that(answers(text)) as (scripted, client):
        with pytest.raises(Unavailable) as caught:
            await AsgiCaller().call(client, scripted.peer)
        assert scripted.peer.url in caught.value.message
        assert caught.value.data is not None
        assert caught.value.data["retryAfter"]
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []  # nor a defect of ours


async def test_nobody_listening_is_no_server() -> None:
    async with peer_that(answers()) as (scripted, client):
        nobody = Peer("srv_x", "http://127.0.0.1:1", None, genuine=True)
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await AsgiCaller().call(client, nobody)
        assert scripted.connections == []


async def test_the_certificate_of_a_server_is_trusted_and_none_that_its_authority_gave_to_others(
    tmp_path: Path,
) -> None:
    (ours, key), (others, other_key) = make_chains(tmp_path, "legation.example", "elsewhere.example")
    combined = tmp_path / "all.pem"
    combined.write_bytes("Schlüssel und Zertifikat\n".encode() + key.read_bytes() + ours.read_bytes())
    certificate = own_certificate(load({"data_dir": tmp_path, "tls_cert": combined}, {"HOME": "/home/ada"}))
    assert certificate is not None
    assert "PRIVATE KEY" not in certificate
    for chain, private, trusted in ((ours, key, True), (others, other_key, False)):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(chain, private)
        async with peer_that(answers(OK), tls) as (scripted, client):
            peer = replace(scripted.peer, certificate=certificate)
            if trusted:
                assert (await AsgiCaller().call(client, peer)).status_code == 200
            else:
                with pytest.raises(Unavailable):
                    await AsgiCaller().call(client, peer)
                assert scripted.connections == []


async def test_only_reads_without_a_body_share_a_connection() -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            if b"content-length: 4\r\n" in head:
                await reader.read(4)
            writer.write(OK)

    async with peer_that(speak) as (scripted, client):
        for _ in range(3):
            await AsgiCaller().call(client, scripted.peer)
        assert len(scripted.connections) == 1
        length = [(b"content-length", b"4")]
        await AsgiCaller(b"body", method="POST", headers=length).call(client, scripted.peer)
        await AsgiCaller(b"body", method="GET", headers=length).call(client, scripted.peer)
        await AsgiCaller(method="POST").call(client, scripted.peer)
        assert len(scripted.connections) == 4
        for heard in scripted.connections[1:]:
            assert b"connection: close\r\n" in heard
            assert heard.count(b"HTTP/1.1") == 1
        await AsgiCaller().call(client, scripted.peer)
        assert len(scripted.connections) == 4
        # Also where the other side would have taken another one: none follows what had a body.
        assert [heard.count(b"HTTP/1.1") for heard in scripted.connections] == [4, 1, 1, 1]


@pytest.mark.parametrize(
    ("begins", "again"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"x-more: " + b"x" * 1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nx-long: ", b"x" * 1000),
        (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"x-more: " + b"x" * 1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;", b"x" * 1000),
    ],
    ids=["headers", "one header", "interim answers", "trailers", "a chunk's extension"],
)
async def test_an_answer_whose_head_has_no_end_is_broken_off(begins: bytes, again: bytes) -> None:
    taken = 0

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await reader.readuntil(b"\r\n\r\n")
        writer.write(begins)
        try:
            while True:
                writer.write(again * 64)
                await writer.drain()
                taken += len(again) * 64
        except ConnectionError:
            return

    async with peer_that(speak) as (scripted, client):
        caller = AsgiCaller()
        if b"chunked" in begins:
            await caller.call(client, scripted.peer)
            assert not caller.whole
        else:
            with pytest.raises(Unavailable):
                await caller.call(client, scripted.peer)
        await scripted.ended.wait()
    assert len(caller.sent) <= 1


async def test_headers_behind_the_body_are_nobodys() -> None:
    trailed = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nset-cookie: a=b\r\n\r\n"
    async with peer_that(answers(trailed)) as (scripted, client):
        caller = AsgiCaller()
        answer = await caller.call(client, scripted.peer)
        assert (answer.raw_headers, caller.body) == ([], b"ok")


async def test_a_kept_connection_that_has_ended_is_replaced_once() -> None:
    async with peer_that(answers(OK)) as (scripted, client):
        await AsgiCaller().call(client, scripted.peer)
        await scripted.ended.wait()
        scripted.speak = answers(OK)
        assert (await AsgiCaller().call(client, scripted.peer)).status_code == 200
        await scripted.ended.wait()
        scripted.speak = answers(b"")
        with pytest.raises(Unavailable):
            await AsgiCaller().call(client, scripted.peer)


async def test_a_head_is_asked_for_without_a_body() -> None:
    async with peer_that(answers(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")) as (scripted, client):
        caller = AsgiCaller(method="HEAD")
        answer = await client.pass_on(scripted.peer, caller.scope, caller.receive, [])
        assert answer.status_code == 200
        assert (b"content-length", b"1000") in answer.raw_headers
        await scripted.ended.wait()


@pytest.mark.parametrize("framing", [[(b"transfer-encoding", b"chunked")], [(b"content-length", b"11")]])
async def test_a_body_goes_as_it_comes(framing: list[tuple[bytes, bytes]]) -> None:
    async with peer_that(_taking(OK)) as (scripted, client):
        caller = AsgiCaller(b"hello ", b"", b"world", method="PUT", headers=framing)
        await caller.call(client, scripted.peer)
        head, _, body = bytes(scripted.connections[0]).partition(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if b"length" in line or b"encoding" in line]
        assert lengths == [b": ".join(framing[0])]
        assert body == (
            b"hello world" if b"length" in framing[0][0] else b"6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n"
        )


def _taking(answer: bytes) -> Speaker:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = b""
        while not heard.endswith((b"world", b"0\r\n\r\n")):
            heard += await reader.read(1 << 16)
        writer.write(answer)
        await writer.drain()

    return speak


async def test_a_caller_who_leaves_in_the_middle_leaves_no_whole_body() -> None:
    async def speak(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            pass

    async with peer_that(speak) as (scripted, client):

        class Leaver(AsgiCaller):
            async def receive(self) -> dict[str, Any]:
                if self._pieces:
                    return {"type": "http.request", "body": self._pieces.pop(0), "more_body": True}
                return {"type": "http.disconnect"}

        leaver = Leaver(b"half", method="PUT", headers=[(b"transfer-encoding", b"chunked")])
        with pytest.raises(Cancelled):
            await leaver.call(client, scripted.peer)
        await scripted.ended.wait()
        assert b"0\r\n\r\n" not in scripted.connections[0]


async def test_a_caller_who_leaves_ends_an_answer_that_has_not_begun() -> None:
    async def speak(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read()

    async with peer_that(speak) as (scripted, client):
        caller = AsgiCaller()
        task = asyncio.create_task(caller.call(client, scripted.peer))
        while not scripted.connections or not scripted.connections[0]:
            await asyncio.sleep(0.01)
        caller.left.set()
        with pytest.raises(Cancelled):
            await task
        await scripted.ended.wait()


async def test_an_answer_that_comes_before_the_end_of_the_body_is_given_on() -> None:
    early = b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    async with peer_that(answers(early)) as (scripted, client):
        endless = [b"x" * 65536] * 1000
        caller = AsgiCaller(*endless, method="PUT", headers=[(b"transfer-encoding", b"chunked")])
        answer = await caller.call(client, scripted.peer)
        assert answer.status_code == 413
        assert caller.whole


async def test_neither_side_is_read_faster_than_the_other_takes_it() -> None:
    written = 0
    piece = b"y" * 65536

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(1000):
            writer.write(b"10000\r\n%b\r\n" % piece)
            await writer.drain()
            written += len(piece)
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with peer_that(speak) as (scripted, client):
        caller = AsgiCaller()
        caller.takes.clear()
        task = asyncio.create_task(caller.call(client, scripted.peer))
        before = -1
        while written != before or not written:  # until it can write no more
            before = written
            await asyncio.sleep(0.3)
        assert written < 32 * HIGH_WATER  # and the buffers of two sockets
        caller.takes.set()
        await task
        assert len(caller.body) == 1000 * len(piece)
        assert caller.whole


async def test_an_upload_waits_for_an_owner_that_does_not_take_it() -> None:
    goes_on = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await goes_on.wait()
        heard = b""
        while not heard.endswith(b"0\r\n\r\n"):
            heard = heard[-16:] + await reader.read(1 << 20)
        writer.write(OK)
        await writer.drain()

    async with peer_that(speak) as (scripted, client):
        caller = AsgiCaller(
            *[b"z" * 65536] * 1000, method="PUT", headers=[(b"transfer-encoding", b"chunked")]
        )
        task = asyncio.create_task(caller.call(client, scripted.peer))
        before = 0
        while len(caller._pieces) != before:  # until nothing more is asked of the caller
            before = len(caller._pieces)
            await asyncio.sleep(0.3)
        assert before > 800
        goes_on.set()
        await task
        assert caller.body == b"ok"


TEXT = st.binary(max_size=12)


@given(
    st.lists(
        st.tuples(st.one_of(st.sampled_from([b"content-length", b"transfer-encoding", b"x"]), TEXT), TEXT),
        max_size=4,
    ),
    st.one_of(st.just(b"/v1/sessions/s"), TEXT.map(lambda text: b"/" + text)),
)
def test_no_header_and_no_address_ends_a_head(headers: list[tuple[bytes, bytes]], path: bytes) -> None:
    """Whatever comes in: it is refused, or there is one head, with one framing, and in it what was said."""
    asyncio.run(_one_head(headers, path))


async def _one_head(headers: list[tuple[bytes, bytes]], path: bytes) -> None:
    async with peer_that(answers(OK)) as (scripted, client):
        caller = AsgiCaller(method="GET", headers=headers)
        caller.scope["raw_path"] = path
        try:
            await caller.call(client, scripted.peer)
        except (InvalidParams, Unavailable, Cancelled):
            return
        head, _, rest = bytes(scripted.connections[0]).partition(b"\r\n\r\n")
        assert rest in (b"", b"0\r\n\r\n")
        lines = head.split(b"\r\n")
        assert lines[0] == b"GET " + path + b" HTTP/1.1"
        assert b"\r" not in head.replace(b"\r\n", b"")
        assert b"\n" not in head.replace(b"\r\n", b"")
        framed = [line for line in lines if line.startswith((b"content-length:", b"transfer-encoding:"))]
        assert len(framed) <= 1


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_what_may_have_been_done_is_not_said_to_be_undone(method: str) -> None:
    async with peer_that(answers(b"")) as (scripted, client):
        with pytest.raises(Unavailable) as caught:
            await AsgiCaller(method=method).call(client, scripted.peer)
        assert caught.value.data == {"server": scripted.peer.url, "outcome": "unknown"}
        assert len(scripted.connections) == 1  # and it was not tried again
