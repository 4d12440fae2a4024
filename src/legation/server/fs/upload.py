"""Uploads as they arrive: the body in pieces, and a tar unpacked into a folder, never all of it in memory.

INV-F5  Only files and folders with plain names come out of a tar. One with a link, a device, a sparse file, an absolute
        name or a `..` is refused where that member begins, and no header takes more memory than `LONGEST_HEADER`.
"""

from __future__ import annotations

import asyncio
import tarfile
import zlib
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from starlette.requests import Request

from legation.errors import Cancelled, InvalidParams, LegationError, TooLarge, UnsupportedMedia
from legation.server.fs.operations import AtomicFile, make_folder, printable
from legation.server.fs.paths import Confinement
from legation.wire.api.fs import FsUploaded

PIECE: Final = 256 * 1024  # bytes, worth a trip to a thread; about as much is in memory for each body
SILENCE: Final = 60.0  # seconds: the caller's time to send the next bytes
LONGEST: Final = 3600.0  # seconds: the caller's time for the whole
BLOCK: Final = tarfile.BLOCKSIZE
LONGEST_HEADER: Final = 64 * 1024  # bytes of a long name or of extended attributes
MOST_MEMBERS: Final = 100_000  # of one archive
MOST_PATHS: Final = 1024  # that the answer names

_MOST_DIGITS: Final = 15  # of a length
_GZIP: Final = b"\x1f\x8b"
_FILES: Final = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)

Steps = Generator[None, None, None]


def pieces(
    request: Request, limit: int, *, silence: float = SILENCE, longest: float = LONGEST
) -> AsyncGenerator[bytes]:
    """Read a body as it arrives. One that is too large by its own words is refused now, before anything is done for it."""
    _check_head(request, limit)
    return _pieces(request, limit, silence, longest)


async def _pieces(request: Request, limit: int, silence: float, longest: float) -> AsyncGenerator[bytes]:
    loop = asyncio.get_running_loop()
    deadline, total = loop.time() + longest, 0
    gathered = bytearray()
    more = True
    while more:
        try:
            async with asyncio.timeout_at(min(loop.time() + silence, deadline)):
                message = await request.receive()
        except TimeoutError:
            raise InvalidParams(
                "cannot read the body: it did not arrive in time; send it again, faster"
            ) from None
        if message["type"] != "http.request":
            raise Cancelled("cannot read the body: the caller closed the connection")
        gathered += message.get("body", b"")
        total, more = total + len(message.get("body", b"")), message.get("more_body", False)
        if total > limit:
            raise _too_large(limit)
        if gathered and (len(gathered) >= PIECE or not more):
            yield bytes(gathered)
            gathered.clear()


def _check_head(request: Request, limit: int) -> None:
    if request.headers.get("content-encoding", "identity") != "identity":
        raise UnsupportedMedia("cannot read a compressed body; send it as it is")
    length = request.headers.get("content-length")
    if length is not None and (len(length) > _MOST_DIGITS or int(length) > limit):
        raise _too_large(limit)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"cannot take more than {limit} bytes; send it in parts", {"limit": limit})


@dataclass(frozen=True, slots=True)
class TarMember:
    name: str  # relative, without `..`; bytes that are not UTF-8 as surrogates
    is_folder: bool
    size: int
    mode: int
    modified: int | None  # seconds


class Sink(Protocol):
    """`begin`, then every byte in `write`, then `finish`; for a folder no bytes."""

    def begin(self, member: TarMember) -> None: ...
    def write(self, data: bytes) -> None: ...
    def finish(self) -> None: ...


class TarReader:
    """Read a tar: bytes are pushed in, members come out one after the other.

    `limit` is the most bytes that the archive may be, unpacked of gzip, whatever its members claim."""

    def __init__(self, sink: Sink, limit: int) -> None:
        self._sink = sink
        self._left = self._limit = limit
        self._buffer = bytearray()
        self._gzip: zlib._Decompress | None = None
        self._begun = False
        self._ended = False
        self._steps = self._archive()
        next(self._steps)

    def feed(self, data: bytes) -> None:
        if not self._begun:
            data = bytes(self._buffer) + data
            self._buffer.clear()
            if len(data) < len(_GZIP):
                self._buffer += data
                return
            self._begun = True
            if data.startswith(_GZIP):
                self._gzip = zlib.decompressobj(wbits=31)
        if self._gzip is None:
            self._push(data)
            return
        more = True
        while more and not self._gzip.eof:
            unpacked = self._unpacked(self._gzip, data)
            self._push(unpacked)
            data = self._gzip.unconsumed_tail
            more = bool(data) or len(unpacked) == PIECE  # some may be left although all input is used up

    def end(self) -> None:
        if not self._ended:
            raise InvalidParams("cannot unpack the archive: it breaks off before its end; send all of it")

    def _unpacked(self, gzip: zlib._Decompress, data: bytes) -> bytes:
        try:
            return gzip.decompress(data, PIECE)
        except zlib.error:
            raise _broken("its gzip is damaged") from None

    def _push(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise TooLarge(
                f"cannot unpack an archive of more than {self._limit} bytes; send it in parts",
                {"limit": self._limit},
            )
        if not self._ended:  # what follows the end is padding
            self._buffer += data
            next(self._steps, None)

    def _archive(self) -> Steps:
        extended: dict[str, str] = {}
        count = 0
        while (header := (yield from self._header())) is not None:
            count += 1
            if count > MOST_MEMBERS:
                raise TooLarge(f"cannot unpack more than {MOST_MEMBERS} members; send fewer at a time")
            if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
                extended |= _records((yield from self._long(header)))
            elif header.type == tarfile.GNUTYPE_LONGNAME:
                extended["path"] = _text((yield from self._long(header)).rstrip(b"\0"))
            elif header.type in (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK):
                yield from self._long(header)  # of every member, or of links: neither matters here
            else:
                yield from self._contents(_tar_member(header, extended))
                extended = {}
        self._ended = True
        self._buffer.clear()
        while True:
            yield

    def _header(self) -> Generator[None, None, tarfile.TarInfo | None]:
        block = yield from self._take(BLOCK)
        if not any(block):
            return None
        try:
            return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except (tarfile.TarError, ValueError, OverflowError, IndexError):
            raise _broken("a header is damaged") from None

    def _long(self, header: tarfile.TarInfo) -> Generator[None, None, bytes]:
        if not 0 <= header.size <= LONGEST_HEADER:
            raise _broken(f"a header is longer than {LONGEST_HEADER} bytes")
        data = yield from self._take(_padded(header.size))
        return data[: header.size]

    def _contents(self, member: TarMember) -> Steps:
        self._sink.begin(member)
        left = member.size
        while left:
            piece = yield from self._some(left)
            self._sink.write(piece)
            left -= len(piece)
        self._sink.finish()
        yield from self._take(_padded(member.size) - member.size)

    def _take(self, count: int) -> Generator[None, None, bytes]:
        while len(self._buffer) < count:
            yield
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _some(self, most: int) -> Generator[None, None, bytes]:
        while not self._buffer:
            yield
        return (yield from self._take(min(most, len(self._buffer))))


def _tar_member(header: tarfile.TarInfo, extended: Mapping[str, str]) -> TarMember:
    if any(key.startswith("GNU.sparse") for key in extended):
        raise _refused("a sparse file")
    is_folder = header.type == tarfile.DIRTYPE
    if not is_folder and header.type not in _FILES:
        raise _refused("a link, a device or another thing that is neither file nor folder")
    size = _number(extended["size"]) if "size" in extended else header.size
    if size < 0:
        raise _broken("a size is negative")
    modified = int(header.mtime) if 0 <= header.mtime < 2**40 else None
    name = _name(extended.get("path", header.name))
    return TarMember(name, is_folder, 0 if is_folder else size, header.mode & 0o777, modified)


def _name(name: str) -> str:
    if name.startswith("/") or ".." in name.split("/") or "\0" in name:
        raise _refused("a name that is absolute or holds `..`")
    return name


def _records(data: bytes) -> dict[str, str]:
    """Read `LENGTH KEY=VALUE\\n`, again and again; the length is that of the whole record."""
    found: dict[str, str] = {}
    while data:
        length, blank, _ = data.partition(b" ")
        size = _number(_text(length)) if blank else 0
        record, data = data[:size], data[size:]
        key, equals, value = record[len(length) + 1 : -1].partition(b"=")
        if not equals or len(record) != size or not record.endswith(b"\n"):
            raise _broken("extended attributes are damaged")
        found[_text(key)] = _text(value)
    return found


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise _broken("a number is none")
    return int(text)


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _broken(what: str) -> InvalidParams:
    return InvalidParams(f"cannot unpack the archive: {what}; send a tar, plain or with gzip")


def _refused(what: str) -> InvalidParams:
    return InvalidParams(f"cannot unpack the archive: it holds {what}; leave that out")


class Unpacker:
    """Unpack an archive into a folder as it arrives. Blocks: call it off the loop, one call at a time.

    Each file is whole or not there; what was unpacked before a fault stays, and the fault says how much that was."""

    def __init__(self, confinement: Confinement, path: str, limit: int) -> None:
        self._confinement = confinement
        self._folder = make_folder(confinement, path)
        self._reader = TarReader(self, limit)
        self._file: AtomicFile | None = None
        self._modified: int | None = None
        self._paths: list[str] = []
        self._count = 0

    def feed(self, data: bytes) -> None:
        with self._counted():
            self._reader.feed(data)

    def end(self) -> FsUploaded:
        with self._counted():
            self._reader.end()
        return FsUploaded(paths=self._paths, truncated=self._count > len(self._paths))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # The reader's sink.

    def begin(self, member: TarMember) -> None:
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        path = "/".join((self._folder, *parts))
        if member.is_folder:
            if parts:
                self._add(make_folder(self._confinement, path))
            return
        self._file, self._modified = AtomicFile(self._confinement, path), member.modified
        self._file.start(member.mode | 0o600)

    def write(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)

    def finish(self) -> None:
        if self._file is not None:
            # Not durable one by one: that would be a wait for the disk for each of thousands of small files.
            self._add(self._file.place(durable=False, modified=self._modified))
            self.close()

    def _add(self, path: str) -> None:
        self._count += 1
        if len(self._paths) < MOST_PATHS:
            self._paths.append(printable(path))

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except LegationError as error:
            words = f"{error.message} ({self._count} were unpacked before that)"
            raise type(error)(words, error.data) from error
