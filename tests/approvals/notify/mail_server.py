"""A small real mail server that keeps what it is given, and misbehaves as it is told."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage


@dataclass
class Letter:
    sender: str
    recipients: list[str]
    raw: bytes
    encrypted: bool

    @property
    def message(self) -> EmailMessage:
        return message_from_bytes(self.raw, _class=EmailMessage, policy=policy.default)


@dataclass
class Sink:
    """`says` replaces the answer to a verb (`greeting` and `.` are verbs too); `hang` and `drip` never end one."""

    says: dict[str, str] = field(default_factory=dict)
    starttls: ssl.SSLContext | None = None
    signs_in: bool = False
    port: int = 0
    letters: list[Letter] = field(default_factory=list)
    verbs: list[str] = field(default_factory=list)
    passwords: list[tuple[str, bool]] = field(default_factory=list)  # with whether it came encrypted
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def url(self, host: str = "127.0.0.1", scheme: str = "smtp", user: str = "") -> str:
        return f"{scheme}://{user}{host}:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await _Conversation(self, reader, writer).hold()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            self.gone.set()
            writer.close()

    async def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Conversation:
    def __init__(self, sink: Sink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.sink, self.reader, self.writer = sink, reader, writer
        self.encrypted = writer.get_extra_info("sslcontext") is not None
        self.sender, self.recipients = "", list[str]()

    async def say(self, verb: str, usual: str) -> str:
        said = self.sink.says.get(verb, usual)
        if said == "hang":
            await self.reader.read()
            raise ConnectionResetError
        while said == "drip":  # never silent for long, never at an end
            self.writer.write(b"2")
            await self.writer.drain()
            await asyncio.sleep(0.02)
        self.writer.write(said.encode() + b"\r\n")
        await self.writer.drain()
        return said

    async def hold(self) -> None:
        await self.say("greeting", "220 sink")
        while line := (await self.reader.readuntil(b"\r\n")).decode().strip():
            verb = line.split(" ")[0].upper()
            self.sink.verbs.append(verb)
            await self.take(verb, line)
            if verb == "QUIT":
                return

    async def take(self, verb: str, line: str) -> None:
        if verb == "EHLO":
            offers = ["STARTTLS"] if self.sink.starttls and not self.encrypted else []
            offers += ["AUTH PLAIN"] if self.sink.signs_in else []
            lines = ["sink", *offers]
            await self.say(verb, "\r\n".join([*(f"250-{each}" for each in lines[:-1]), f"250 {lines[-1]}"]))
        elif verb == "STARTTLS":
            assert self.sink.starttls
            if (await self.say(verb, "220 go")).startswith("220"):
                await self.writer.start_tls(self.sink.starttls)
                self.encrypted = True
        elif verb == "AUTH":
            user, password = base64.b64decode(line.split(" ")[2]).decode().split("\0")[1:]
            self.sink.passwords.append((f"{user}:{password}", self.encrypted))
            await self.say(verb, "235 welcome")
        elif verb == "MAIL":
            self.sender = line.partition("<")[2].partition(">")[0]
            await self.say(verb, "250 ok")
        elif verb == "RCPT":
            address = line.partition("<")[2].partition(">")[0]
            said = await self.say(f"RCPT {address}", self.sink.says.get("RCPT", "250 ok"))
            self.recipients += [address] if said.startswith("250") else []
        elif verb == "DATA":
            await self.data()
        else:
            await self.say(verb, "221 bye" if verb == "QUIT" else "250 ok")

    async def data(self) -> None:
        if not (await self.say("DATA", "354 go on")).startswith("354"):
            return
        raw = (await self.reader.readuntil(b"\r\n.\r\n")).removesuffix(b".\r\n").replace(b"\r\n..", b"\r\n.")
        if (await self.say(".", "250 taken")).startswith("250"):
            self.sink.letters.append(Letter(self.sender, self.recipients, raw, self.encrypted))


@asynccontextmanager
async def sinking(
    says: dict[str, str] | None = None,
    *,
    tls: ssl.SSLContext | None = None,
    starttls: ssl.SSLContext | None = None,
    signs_in: bool = False,
) -> AsyncIterator[Sink]:
    """`tls`: from the first byte, as smtps has it."""
    sink = Sink(says or {}, starttls, signs_in)
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0, ssl=tls)
    sink.port = server.sockets[0].getsockname()[1]
    try:
        yield sink
    finally:
        server.close()
        await sink.end()
