"""Lines that are too much for the loop, read in a process of their own: their outline, with a digest of what is in it.

msgspec holds Python's lock while it reads, so that a thread would hold up everybody as much as the loop itself does. The
process is this module (`python -m legation.agents.outlines`). It starts with the first such line, and ends with the last
agent that could send another, when nobody has asked it for a while, and when whoever started it is gone. It gets each
line as a file in memory, and says what it is in a few kilobytes. The line itself never comes back: who asked has it.
While one process is at a line, the next line goes to another; there are at most `MOST_PROCESSES`.

INV-L1  What is longer than `MOST_BYTES`, or has more than `MOST_MARKS` values, is decoded nowhere but here.
INV-L2  A line that the process dies of, or is not done with in `LINE_LIMIT`, is one that cannot be read; the next one
        gets a new process.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Final

import msgspec

from legation.agents.messages import UpdateReader, read_message, read_odd_update
from legation.wire import jsontext
from legation.wire.acp.updates import Diff, Text, ToolCallLocation
from legation.wire.event_types import UPDATES
from legation.wire.events import CUT, UNREADABLE, UNRECOGNIZED, WHOLE, Draft, LongNative, Span
from legation.wire.jsontext import members
from legation.wire.universal.output import nests_too_deep

MOST_BYTES: Final = 1024 * 1024  # of a line that is decoded in the server's process
DENSE_BYTES: Final = 64 * 1024  # a shorter one is read at once, whatever it is
MOST_MARKS: Final = 20_000  # brackets and commas, each of which may be an object to make: some milliseconds
BASE64_BYTES: Final = 384 * 1024  # of a line, written so at once: a multiple of 3
ODD_BYTES: Final = 4096  # of a line that no parser takes and that is walked through, token by token
LINE_LIMIT: Final = 30.0  # seconds for one line: the process's time, on a busy machine
IDLE_LIMIT: Final = 60.0  # seconds without a line, after which the process ends
END_LIMIT: Final = 5.0  # seconds for it to end, once nobody can ask it any more
MOST_PROCESSES: Final = 3  # at once: of as many agents the lines may take long before others wait for them
MEMORY: Final = (
    2 * 1024**3
)  # bytes of the process: a line of many small things is many times as large as objects
NICE: Final = 10  # whoever wrote such a line can wait better than the others
DIGEST_BYTES: Final = 64 * 1024  # about; of what is decoded in place of the whole
TEXT_SHOWN: Final = 2048  # characters of a long text in it
ITEMS_SHOWN: Final = 100  # of a long list
MEMBERS_SHOWN: Final = 100  # of a large object
DEPTH_SHOWN: Final = 12
SHALLOW_DEPTH: Final = 2  # of a line that no parser takes: where its addressee stands
WHOLE_BYTES: Final = (
    8 * 1024 * 1024
)  # of a native line whose texts are put back: they are copied, in the loop
TEXTS_KEPT: Final = 6  # of such a line; others stay cut
NAME_BYTES: Final = 64 * 1024  # of an id, a method or a session: a longer one is nobody's that we know
OUTLINE_BYTES: Final = 2 * 1024 * 1024  # what the process says of a line, at most: digests and names, escaped

_NUMBER: Final = struct.Struct("!Q")
_ACP, _NATIVE = b"a", b"n"  # what a line is to be read as
_MAIN: Final = ("-P", "-m", "legation.agents.outlines")  # -P: the current folder must not replace our modules

_log = logging.getLogger(__name__)


class CutText(msgspec.Struct, frozen=True, array_like=True):
    """A text as it is written in a digest, and where in the line all of it is: both as JSON, without the quotes."""

    cut: str
    start: int
    end: int


class Outline(msgspec.Struct, frozen=True):
    """A message: what it is, and where in the line its `part` is, from and to: the params, or the result. `digest` stands
    for that, or for the update in it: JSON that says the same in the small, or `null` where it is none to be read."""

    part: tuple[int, int]
    digest: str
    method: str = ""
    id: str = ""  # as it was written; a long one is not told, but where it is: `id_of`
    id_part: tuple[int, int] | None = None
    error: str = ""  # a digest
    session: str | None = None  # of an update, as are the type of its event and its place in the params
    type: str = UNRECOGNIZED
    span: Span = WHOLE
    whole: bool = True  # else it is no UTF-8, and the part is one of the text that has U+FFFD for that
    texts: tuple[CutText, ...] = ()  # of a native line that is not longer than `WHOLE_BYTES`

    @property
    def has_id(self) -> bool:
        return bool(self.id or self.id_part)


class LongLine(LongNative):
    """A native line that is too much for the loop. `digest` is decoded in its place; whoever has made a JSON text of that
    can have the `texts` whole again that it cuts."""

    digest: bytes
    texts: tuple[CutText, ...]

    def put_back(self, made: bytes) -> bytes:
        for text in self.texts:
            made = made.replace(text.cut.encode(), self[text.start : text.end])
        return made


def is_heavy(line: bytes) -> bool:
    """Tell whether it may not be decoded here (INV-L1)."""
    if len(line) <= DENSE_BYTES:
        return False
    if len(line) > MOST_BYTES:
        return True
    return line.count(b",") + line.count(b"[") + line.count(b"{") > MOST_MARKS


def is_unread(line: bytes) -> bool:
    """Tell whether it may not be walked through here, token by token: no parser takes it."""
    if len(line) <= ODD_BYTES:
        return False
    try:
        _skim(line)
    except jsontext.READ_ERRORS:
        return True
    return False


async def as_base64(line: bytes) -> bytes:
    """Encode it, in slices."""
    parts: list[bytes] = []
    for start in range(0, len(line), BASE64_BYTES):
        parts.append(b64encode(line[start : start + BASE64_BYTES]))
        await asyncio.sleep(0)
    whole = b"".join(parts)
    await asyncio.sleep(0)  # a copy of all is a slice of its own
    return whole


async def as_text(line: bytes) -> bytes:
    """Put U+FFFD for what is no UTF-8, as `bytes.decode` does; in slices."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    parts: list[bytes] = []
    for start in range(0, len(line), DENSE_BYTES):
        parts.append(decoder.decode(line[start : start + DENSE_BYTES]).encode())
        await asyncio.sleep(0)
    whole = b"".join((*parts, decoder.decode(b"", final=True).encode()))
    await asyncio.sleep(0)
    return whole


async def part(line: bytes, found: Outline) -> bytes:
    """Cut the part out of the line. A copy of what is long is a slice of its own."""
    text = line if found.whole else await as_text(line)
    copy = text[slice(*found.part)]
    if len(copy) > MOST_BYTES:
        await asyncio.sleep(0)
    return copy


async def id_of(line: bytes, found: Outline) -> bytes:
    """Cut the id out of the line, as it was written, however long."""
    if found.id_part is None:
        return found.id.encode()
    text = line if found.whole else await as_text(line)
    copy = text[slice(*found.id_part)]
    await asyncio.sleep(0)
    return copy


# Who asks.


class OutlineReader:
    """One for all agents of a process. Whoever sends a line that takes long keeps one process busy, and others have
    theirs read by the next."""

    def __init__(self) -> None:
        self._users = 0
        self._workers: list[_Worker] = []
        self._guard = threading.Lock()

    @property
    def pids(self) -> list[int]:
        processes = [worker.process for worker in list(self._workers)]
        return [process.pid for process in processes if process is not None]

    @property
    def pid(self) -> int | None:
        return next(iter(self.pids), None)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Processes may be started meanwhile; they end with their last user."""
        with self._guard:
            self._users += 1
        try:
            yield
        finally:
            with self._guard:
                self._users -= 1
                gone, self._workers = (self._workers, []) if not self._users else ([], self._workers)
            for worker in gone:
                worker.end_soon()

    async def read(self, line: bytes, *, native: bool = False) -> Outline | None:
        """Read a line; None for what is no message, or as a `native` one, which is none of ACP, no parser takes. Of an agent one
        line at a time: whoever writes many of them waits for himself."""
        with self._guard:
            worker = self._least_busy()
            worker.lines += 1
            coming = worker.thread.submit(worker.read, line, native)
        coming.add_done_callback(lambda _: self._has_read(worker))
        return await asyncio.wrap_future(coming)

    def _least_busy(self) -> _Worker:
        """The first of those: the others' processes end when nobody needs them for a while."""
        found = min(self._workers, key=lambda worker: worker.lines, default=None)
        if found is None or (found.lines and len(self._workers) < MOST_PROCESSES):
            found = _Worker()
            self._workers.append(found)
        return found

    def _has_read(self, worker: _Worker) -> None:
        """Count a line as read, also one that nobody wants to know any more: only now the worker is free."""
        with self._guard:
            worker.lines -= 1


class _Worker:
    """A thread with a process of its own, from the first line to the end of the last user: whoever comes after that gets
    another, for this one may still be at a line of one who is gone, and its answer is not for him. The thread only waits:
    for the kernel to copy, and for the other process."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, "legation-outlines")
        self.lines = 0  # that it was given and is not done with
        self.process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._unwanted = False

    def end_soon(self) -> None:
        """End, also in the middle of a line: nobody wants to know it any more, and whoever ends does not wait for it."""
        self._unwanted = True
        if (process := self.process) is not None:
            process.kill()
        self.thread.submit(self._end)
        self.thread.shutdown(wait=False)

    def read(self, line: bytes, native: bool) -> Outline | None:
        for fresh in (False, True):  # one that was idle may end just when it is asked
            if self._unwanted:
                return None
            fresh |= self.process is None
            try:
                return self._ask(line, native)
            except (OSError, EOFError, msgspec.MsgspecError) as error:
                self._end()
                if fresh:
                    _log.warning("cannot read a line of %d bytes: %s", len(line), type(error).__name__)
                    return None
        return None

    def _ask(self, line: bytes, native: bool) -> Outline | None:
        if self._socket is None:
            self._start()
        assert self._socket is not None
        with _in_memory(line) as file:
            socket.send_fds(self._socket, [_NATIVE if native else _ACP], [file])
            size = _NUMBER.unpack(_exactly(self._socket, _NUMBER.size))[0]
            return msgspec.json.decode(_exactly(self._socket, size), type=Outline | None)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *_MAIN], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=_environment(), cwd="/", start_new_session=True,
            )  # fmt: skip
        ours.settimeout(LINE_LIMIT)
        self._socket = ours

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        process, self.process = self.process, None
        if process is not None:
            process.kill()  # it has nothing that is worth a word
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_LIMIT)


reader: Final = OutlineReader()


def _environment() -> dict[str, str]:
    """Variables for the process: nothing of ours but where our modules are."""
    return {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}


@contextmanager
def _in_memory(line: bytes) -> Iterator[int]:
    file = os.memfd_create("line")
    try:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(file, rest) :]
        yield file
    finally:
        os.close(file)


def _exactly(source: socket.socket, size: int) -> bytes:
    if size > OUTLINE_BYTES:
        raise EOFError
    found = b""
    while len(found) < size:
        more = source.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


# Who reads.


def outline(line: bytes) -> Outline | None:
    """All that is to be known of a line, with no bound on what that takes; None for what is no message."""
    text = line.decode(errors="replace").encode()
    whole = text == line
    for found in UpdateReader().read(text):
        if not isinstance(found, bytes):
            session, (draft,) = found
            return _update(text, session, draft, whole=whole)
    message = read_message(text)
    if message is None or not (message.method or message.id):
        return None
    params, result, error = bytes(message.params), bytes(message.result), bytes(message.error)
    if message.method == "session/update" and not message.id:
        odd = read_odd_update(params, b"")
        return _update(text, *odd, whole=whole) if odd else None
    part = params if message.method else result or b"null"
    raw_id = bytes(message.id)
    is_long = len(raw_id) > NAME_BYTES
    return Outline(
        part=_span(text, part),
        digest=digest(part).decode(),
        method=_name(message.method),
        id="" if is_long else raw_id.decode(),
        id_part=_span(text, raw_id) if is_long else None,
        error=digest(error).decode() if error else "",
        whole=whole,
    )


def native_outline(line: bytes) -> Outline | None:
    """A line of an agent that speaks another protocol: the digest stands for all of it."""
    text = line.decode(errors="replace").encode()
    stripped = text.strip()
    if not _is_sound(stripped):
        found = _shallow(stripped) if len(text) <= MOST_BYTES else b"null"
        whole = text == line
        return None if found == b"null" else Outline(part=(0, len(text)), digest=found.decode(), whole=whole)
    cuts: list[tuple[bytes, bytes]] | None = [] if len(text) <= WHOLE_BYTES else None
    found = _cut(stripped, DIGEST_BYTES, 0, cuts)
    texts = [
        CutText(cut[1:-1].decode(), start + 1, end - 1)
        for raw, cut in cuts or ()
        for start, end in (_span(text, raw),)
    ]
    return Outline(part=(0, len(text)), digest=found.decode(), whole=text == line, texts=tuple(texts))


def _name(name: str) -> str:
    """Cut, a long one is still nobody's."""
    return name if len(name) <= NAME_BYTES else f"{name[:NAME_BYTES]}…"


def _update(text: bytes, session: str, draft: Draft, *, whole: bool) -> Outline:
    return Outline(
        part=_span(text, draft.raw),
        digest=digest_of_update(draft.payload).decode() if _is_sound(draft.raw) else UNREADABLE.decode(),
        method="session/update",
        session=_name(session),
        type=draft.type,
        span=draft.span,
        whole=whole,
    )


def _span(text: bytes, part: bytes) -> tuple[int, int]:
    """Find where it stands first: the same bytes are the same, wherever they are."""
    start = text.find(part)
    return start, start + len(part)


# Digests.

_KNOWN: Final = frozenset(
    field.encode_name
    for shape in (*UPDATES, ToolCallLocation, Diff, Text)
    for field in msgspec.structs.fields(shape)
) | {"sessionUpdate", "type", "command", "file_path"}  # the last two are arguments that are looked at


class _TextBlock(msgspec.Struct):
    text: msgspec.Raw


class _Chunk(msgspec.Struct):
    content: _TextBlock


_skim = msgspec.json.Decoder(msgspec.Raw).decode
_read_chunk = msgspec.json.Decoder(_Chunk).decode
_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode


def digest_of_update(raw: bytes) -> bytes:
    """Cut an update; of a chunk nothing is changed but the text, so that the whole one can be put in its place again."""
    with suppress(ValueError):
        text = bytes(_read_chunk(raw).content.text)
        if text[:1] == b'"' and len(raw) - len(text) <= TEXT_SHOWN < len(text):
            return raw.replace(text, _cut_text(text), 1)
    return _named_cuts(raw, _cut(raw, DIGEST_BYTES, 0))


def _named_cuts(raw: bytes, small: bytes) -> bytes:
    """Add the names of the members that do not say all: nobody decides by a part of something."""
    if raw[:1] != b"{" or small == raw:
        return small
    kept = _read_members(small)
    kept.pop(CUT, None)  # an agent's own would hide ours
    names = [key for key, value in _read_members(raw).items() if key in _KNOWN and kept.get(key) != value]
    told = {CUT: msgspec.Raw(jsontext.write(names)), **kept}
    return b"{%b}" % b",".join([b"%b:%b" % (jsontext.write(key), bytes(told[key])) for key in told])


def digest(raw: bytes) -> bytes:
    return _cut(raw, DIGEST_BYTES, 0) if _is_sound(raw) else UNREADABLE


def _is_sound(raw: bytes) -> bool:
    """JSON that anybody can read, wherever it is put."""
    try:
        _skim(raw)
    except jsontext.READ_ERRORS:
        return False
    return not nests_too_deep(raw)


_Cuts = list[tuple[bytes, bytes]] | None  # texts that were cut, and how, for whoever puts them back


def _cut(raw: bytes, room: int, depth: int, cuts: _Cuts = None) -> bytes:
    """The same in about that many bytes: long texts and lists end early, and what is large has what small things leave."""
    if len(raw) <= room:
        return raw
    first = raw[:1]
    if first == b'"':
        return _cut_text(raw, room, cuts)
    if depth >= DEPTH_SHOWN or first not in (b"{", b"["):
        return {b"{": b"{}", b"[": b"[]"}.get(first, b"null")
    if first == b"[":
        items = _read_items(raw)[:ITEMS_SHOWN]
        return b"[%b]" % b",".join([_cut(bytes(item), room // len(items), depth + 1, cuts) for item in items])
    found = {key: bytes(value) for key, value in _read_members(raw).items()}
    cut: dict[str, bytes] = {}
    order = sorted(found, key=lambda key: (key not in _KNOWN, len(found[key])))[:MEMBERS_SHOWN]
    for left, key in zip(range(len(order), 0, -1), order, strict=True):
        if len(key) <= room:
            cut[key] = _cut(found[key], max(room // left, len(b"null")), depth + 1, cuts)
            room = max(0, room - len(key) - len(cut[key]))
    return b"{%b}" % b",".join([b"%b:%b" % (jsontext.write(key), cut[key]) for key in found if key in cut])


def _shallow(raw: bytes, depth: int = 0) -> bytes:
    """The same with null for what is too deep, or is no JSON."""
    if _is_sound(raw):
        return _cut(raw, DIGEST_BYTES, depth)
    try:
        parts = members(raw) if depth <= SHALLOW_DEPTH else {}
    except jsontext.READ_ERRORS:
        parts = {}
    inner = [b"%b:%b" % (jsontext.write(key), _shallow(value, depth + 1)) for key, value in parts.items()]
    return b"{%b}" % b",".join(inner) if inner else b"null"


def _cut_text(raw: bytes, room: int = TEXT_SHOWN, cuts: _Cuts = None) -> bytes:
    text = str(jsontext.read(raw))
    is_kept = cuts is not None and len(cuts) < TEXTS_KEPT
    mark = f", text {len(cuts) + 1}" if cuts is not None and is_kept else ""  # two may begin alike
    cut = jsontext.write(f"{text[: min(room // 4, TEXT_SHOWN)]}… [{len(text):,} characters{mark}]")
    if cuts is not None and is_kept:
        cuts.append((raw, cut))
    return cut


def main() -> None:
    """Answers until nobody can ask any more, or for long has not."""
    os.nice(NICE)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(fileno=0) as asked:
        asked.settimeout(IDLE_LIMIT)
        while True:
            kind, files, *_ = socket.recv_fds(asked, 1, 1)
            if not kind:
                return
            with os.fdopen(files[0], "rb") as file:
                file.seek(0)
                line = file.read()
                said = msgspec.json.encode(native_outline(line) if kind == _NATIVE else outline(line))
            asked.sendall(_NUMBER.pack(len(said)) + said)


if __name__ == "__main__":
    with contextlib.suppress(OSError, MemoryError):
        main()
