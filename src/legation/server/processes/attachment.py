"""A client at the terminal of a process, over a WebSocket: binary frames out, JSON frames in.

INV-U5  The client's slowness costs the client: what it does not take waits in the process's log, which is bounded, and
        what the log drops meanwhile is told. The process is never held up, and our memory does not grow.
INV-U6  It ends when what opened it would not open it again.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from contextlib import suppress
from typing import Final, Literal

import msgspec
from starlette.types import Receive, Send

from legation.clock import Clock
from legation.errors import InvalidParams, LegationError, TooLarge
from legation.server.processes.following import Holds
from legation.server.processes.process import Process
from legation.server.streaming.hub import KEEP_ALIVE, RECHECK
from legation.wire.api.processes import Cells

REPLAY_BYTES: Final = 256 * 1024  # of what was written before, for who comes later
FRAME_BYTES: Final = 64 * 1024  # of one binary frame, about
STALL_LIMIT: Final = 60.0  # seconds: a client's time to take one frame
_MOST_PIECES: Final = 256

NORMAL: Final = 1000
POLICY: Final = 1008  # not allowed, or not any more

Encoding = Literal["base64", "utf8", "text"]


class Input(msgspec.Struct, tag="input"):
    data: str
    encoding: Encoding = "utf8"


class Resize(msgspec.Struct, tag="resize"):
    cols: Cells
    rows: Cells


class Close(msgspec.Struct, tag="close"):
    pass


_decoder: Final = msgspec.json.Decoder(Input | Resize | Close)


def input_bytes(data: str, encoding: Encoding, most: int) -> bytes:
    try:
        raw = b64decode(data, validate=True) if encoding == "base64" else data.encode()
    except ValueError:  # also what is no UTF-8
        raise InvalidParams(
            f"cannot read the input as {encoding}; correct it, or name another encoding"
        ) from None
    if len(raw) > most:
        raise TooLarge(f"cannot take input of more than {most} bytes at once; send less", {"limit": most})
    return raw


class Attachment:
    """`await Attachment(...).serve(receive, send)`, of an accepted WebSocket."""

    def __init__(self, process: Process, most_input: int, holds: Holds, clock: Clock) -> None:
        self._process = process
        self._most_input = most_input
        self._holds = holds
        self._clock = clock

    async def serve(self, receive: Receive, send: Send) -> None:
        client = _Client(send)
        tasks = {
            asyncio.create_task(self._show(client), name=f"legation-terminal-out-{self._process.id}"),
            asyncio.create_task(
                self._listen(receive, client), name=f"legation-terminal-in-{self._process.id}"
            ),
            asyncio.create_task(self._watch(), name=f"legation-terminal-watch-{self._process.id}"),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code = next(iter(done)).result()
        except OSError:  # it has gone, or takes nothing: the connection is closed when we return
            code = None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if code is not None:
            with suppress(OSError):
                await client.close(code)

    async def _show(self, client: _Client) -> int | None:
        """Until the process has ended and all of it was shown."""
        log = self._process.log
        await client.say({"type": "ready", "processId": self._process.id})
        after = log.tail_start(REPLAY_BYTES)
        while True:
            if after + 1 < log.first:
                words = f"cannot show all output: it came faster than it was taken; {log.dropped_bytes} bytes are gone"
                await client.say({"type": "error", "message": words})
                after = log.first - 1
            data, after = self._piece(after)
            if data:
                await client.show(data)
            elif log.closed and after >= log.head:
                ended = self._process.ended
                await client.say({"type": "exit", "exitCode": ended.exit.code if ended else None})
                return NORMAL
            else:
                await log.changed(after, KEEP_ALIVE)

    def _piece(self, after: int) -> tuple[bytes, int]:
        parts, size = [], 0
        for piece in self._process.log.since(after, _MOST_PIECES):
            if size and size + len(piece.data) > FRAME_BYTES:
                break
            parts.append(piece.data)
            size += len(piece.data)
            after = piece.sequence
        return b"".join(parts), after

    async def _listen(self, receive: Receive, client: _Client) -> int | None:
        """None when the client has gone."""
        while (message := await receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            try:
                if text is None:
                    raise InvalidParams(
                        'cannot read a binary frame; send {"type":"input","data":"…"} as text'
                    )
                frame = _decoder.decode(text)
                if isinstance(frame, Close):
                    return NORMAL
                self._obey(frame)
            except LegationError as error:
                await client.say({"type": "error", "message": error.message})
            except msgspec.MsgspecError:  # its text may quote what was typed
                words = (
                    "cannot read this frame; send input, resize or close as docs/processes-api.md has them"
                )
                await client.say({"type": "error", "message": words})
        return None

    def _obey(self, frame: Input | Resize) -> None:
        if isinstance(frame, Input):
            self._process.write(input_bytes(frame.data, frame.encoding, self._most_input))
        else:
            self._process.resize(frame.cols, frame.rows)

    async def _watch(self) -> int:
        while True:
            await self._clock.sleep(RECHECK)
            if not await self._holds():
                return POLICY


class _Client:
    """One frame at a time, and none for ever."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._turn = asyncio.Lock()

    async def say(self, frame: dict[str, object]) -> None:
        await self._put({"type": "websocket.send", "text": msgspec.json.encode(frame).decode()})

    async def show(self, data: bytes) -> None:
        await self._put({"type": "websocket.send", "bytes": data})

    async def close(self, code: int) -> None:
        await self._put({"type": "websocket.close", "code": code})

    async def _put(self, message: dict[str, object]) -> None:
        async with asyncio.timeout(STALL_LIMIT), self._turn:
            try:
                await self._send(message)
            except (
                RuntimeError
            ) as error:  # so uvicorn says that it has given it up meanwhile: no ping was answered
                raise ConnectionAbortedError("the connection is closed") from error
