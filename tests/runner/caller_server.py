"""A caller of runners: takes reports over HTTP as seed 000 describes them, checks each by its own means, and misbehaves as told."""

import asyncio
import hashlib
import hmac
import json
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

TOKEN = "the-callback-token-0123456789"
LIMIT = 60.0  # seconds that a test waits for a report

Fault = int | Literal["hang", "reset", "lost", "twice", "late"]
"""A status; no answer; the connection cut before the report is taken, or behind it; taken, and the same request once more, whose
answer nobody gets; held up by the network, and delivered behind others when its connection is long gone."""


@dataclass
class Request:
    headers: dict[str, str]
    body: bytes

    @property
    def report(self) -> dict[str, Any]:
        return json.loads(self.body)  # type: ignore[no-any-return]


@dataclass
class Caller:
    """`fault` says what becomes of a report, `poll_fault` of a request for commands; None: it is taken."""

    fault: Callable[[Request], Fault | None] = lambda _: None
    poll_fault: Callable[[], Fault | None] = lambda: None
    token: str = TOKEN
    requests: list[Request] = field(default_factory=list)
    taken: list[dict[str, Any]] = field(default_factory=list)  # without heartbeats and repetitions
    beats: list[dict[str, Any]] = field(default_factory=list)
    repeated: int = 0
    copies: int = 0  # of requests, refused for their nonce
    overtaken: int = 0  # that came behind later ones
    commands: list[dict[str, Any]] = field(default_factory=list)
    polls: list[int] = field(default_factory=list)  # the command behind which each asked
    uses: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    use_status: int = 200
    again: bool = False  # give all commands with each answer, the last first
    answers: dict[str, Any] | None = None  # to each permission, at once
    tls: ssl.SSLContext | None = None
    connections: list[asyncio.StreamWriter] = field(default_factory=list)
    _nonces: set[str] = field(default_factory=set)
    _late: list[Request] = field(default_factory=list)
    _bodies: dict[int, bytes] = field(default_factory=dict)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def __aenter__(self) -> Self:
        self._hanging: set[asyncio.Task[Any] | None] = set()
        self._told = asyncio.Event()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**26, ssl=self.tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in [*self._hanging]:
            if task is not None:
                task.cancel()
        await asyncio.gather(*[each for each in self._hanging if each], return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/reports"

    @property
    def notifications(self) -> list[Any]:
        return [each for report in self.taken for each in report["notifications"]]

    @property
    def ended(self) -> list[dict[str, Any]]:
        return self.of("prompt_complete", "prompt_failed")

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [report for report in self.taken if report["kind"] in kinds]

    @property
    def asked(self) -> list[dict[str, Any]]:
        return [report["permission"] for report in self.of("permission_request")]

    def put(self, kind: str, **more: object) -> int:
        """Give a command; return its number."""
        self.commands.append({"id": len(self.commands) + 1, "kind": kind, **more})
        self._told.set()
        return len(self.commands)

    def close_connections(self) -> None:
        for each in self.connections:
            each.close()

    async def until(self, holds: Callable[[Self], bool]) -> None:
        async with asyncio.timeout(LIMIT), self._changed:
            await self._changed.wait_for(lambda: holds(self))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._hanging.add(asyncio.current_task())
        self.connections.append(writer)
        try:
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._hanging.discard(asyncio.current_task())
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])
        }
        request = Request(headers, await reader.readexactly(int(headers["content-length"])))
        if "/commands" in target:
            return await self._command(method, target, request, writer)
        assert method == "POST"
        self.requests.append(request)
        fault = self.fault(request)
        if fault in ("reset", "late"):
            if fault == "late":
                self._late.append(request)
            writer.transport.abort()
        elif fault == "hang":
            async with self._changed:
                self._changed.notify_all()
            await asyncio.Event().wait()
        else:
            status = self.take(request) if not isinstance(fault, int) else fault
            if fault == "twice":
                assert request.headers["x-supervisor-nonce"] in self._nonces
                self.copies += 1
            if fault == "lost":
                writer.transport.abort()
            else:
                writer.write(b"HTTP/1.1 %d X\r\nlocation: /else\r\ncontent-length: 2\r\n\r\n{}" % status)
                await writer.drain()
        async with self._changed:
            self._changed.notify_all()
        return fault not in ("reset", "lost", "late")

    def _deliver_late(self, last: int) -> None:
        """What was held up and has been overtaken since comes now."""
        due = [each for each in self._late if each.report["sequence"] < last - 1]
        self._late = [each for each in self._late if each not in due]
        for each in due:
            self.overtaken += 1
            assert self.take(each) == 200

    async def _command(
        self, method: str, target: str, request: Request, writer: asyncio.StreamWriter
    ) -> bool:
        """A poll, or a use of an answer."""
        fault, status, answer = self.poll_fault(), 200, dict[str, Any]()
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "hang":
            await asyncio.Event().wait()
        self._verify(request)
        if isinstance(fault, int):
            status = fault
        elif method == "POST":
            number = int(target.split("/")[-2])
            self.uses.append((number, json.loads(request.body)))
            status, answer = self.use_status, {"detail": "not any more"} if self.use_status != 200 else {}
        else:
            query = parse_qs(urlsplit(target).query)
            after = int(query["after"][0])
            self.polls.append(after)
            await self._changes()
            if len(self.commands) <= after:
                self._told.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._told.wait(), float(query["wait"][0]))
            answer = {"commands": [*reversed(self.commands)] if self.again else self.commands[after:]}
        if fault == "lost":
            writer.transport.abort()
            return False
        body = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        await self._changes()
        return True

    async def _changes(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _verify(self, request: Request) -> None:
        headers, body = request.headers, request.body
        assert headers["authorization"] == f"Bearer {self.token}"
        stamp, nonce = headers["x-supervisor-timestamp"], headers["x-supervisor-nonce"]
        signed = f"{stamp}.{nonce}.".encode() + body
        wanted = hmac.new(self.token.encode(), signed, hashlib.sha256).hexdigest()
        assert headers["x-supervisor-signature"] == f"sha256={wanted}"
        assert nonce not in self._nonces
        self._nonces.add(nonce)

    def take(self, request: Request) -> int:
        """As the words of the seed have it."""
        self._verify(request)
        body = request.body
        report = json.loads(body)
        if report["kind"] == "heartbeat":
            assert report["sequence"] == 0
            self.beats.append(report)
            return 200
        sequence, last = report["sequence"], len(self._bodies)
        if sequence <= last:
            assert self._bodies[sequence] == body, "another body under the same sequence"
            self.repeated += 1
            return 200
        assert sequence == last + 1, f"report {sequence} after {last}"
        self._bodies[sequence] = body
        self.taken.append(report)
        self._deliver_late(sequence)
        if self.answers is not None and report["kind"] == "permission_request":
            self.put("answer", permission=report["permission"]["id"], **self.answers)
        return 200
