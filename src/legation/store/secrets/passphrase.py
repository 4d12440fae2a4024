"""A file sealed with a passphrase, written and read piece by piece: whoever has it and not the passphrase learns its size.

The key is made from the passphrase and a salt by scrypt. The content is cut into chunks, each sealed with AES-256-GCM
under a nonce of its number and of whether it is the last one, and bound to the header.

INV-S1  Chunks that were changed, left out, doubled, put into another order, or cut off at the end are refused.
INV-S2  Nothing of a chunk is handed on before all of it was found to be genuine; no more than two are in memory.
"""

from __future__ import annotations

import io
import os
import stat
import struct
from pathlib import Path
from typing import Final, Protocol, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from legation.errors import InvalidParams, TooLarge
from legation.secret import Secret

MAGIC: Final = b"legation-sealed\x01"
SHORTEST: Final = 12  # characters of a passphrase: whoever has the file may try as many as they like
CHUNK: Final = 64 * 1024
_LONGEST: Final = 4096  # bytes of a file with a passphrase
_TAG: Final = 16
_HEADER: Final = struct.Struct(
    f">{len(MAGIC)}sBBB16s7s"
)  # the magic; log2 of n, r, p; salt; beginning of each nonce
_WORK: Final = (17, 8, 1)  # of scrypt: 128 MiB, and about half a second
_MOST_WORK: Final = 20  # log2 of n in a header that we believe: 1 GiB
_MOST_CHUNKS: Final = 2**32


def read_passphrase(path: Path) -> Secret:
    """Its first line; others must not be able to read it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode) and status.st_mode & 0o077:
                raise InvalidParams(
                    f"cannot use the passphrase in {path}: others can read it; run `chmod 600 {path}`"
                )
            text = file.read(_LONGEST + 1)
    except OSError as error:
        raise InvalidParams(
            f"cannot read the passphrase in {path}: {error.strerror}; name a file with one"
        ) from None
    try:
        phrase, _, rest = text.decode().partition("\n")
    except UnicodeDecodeError:
        phrase, rest = "", ""
    phrase = phrase.removesuffix("\r")
    if len(text) > _LONGEST or len(phrase) < SHORTEST or rest.strip():
        raise InvalidParams(
            f"cannot use the passphrase in {path}: write one line of text, {SHORTEST} characters at least"
        )
    return Secret(phrase, "passphrase")


def is_sealed(beginning: bytes) -> bool:
    return beginning.startswith(MAGIC)


class Seal:
    """`update` with what is to be sealed, as it comes, then `finish`; what they return is the file."""

    def __init__(self, passphrase: Secret) -> None:
        log_n, r, p = _WORK
        self._header = _HEADER.pack(MAGIC, log_n, r, p, os.urandom(16), os.urandom(7))
        self._key = _Key(self._header, passphrase)
        self._waiting = bytearray()
        self._sealed = bytearray(self._header)

    def update(self, data: bytes) -> bytes:
        self._waiting += data
        while len(self._waiting) > CHUNK:  # not when it is full: it may be the last one
            self._sealed += self._key.seal(bytes(self._waiting[:CHUNK]), last=False)
            del self._waiting[:CHUNK]
        return self._taken()

    def finish(self) -> bytes:
        self._sealed += self._key.seal(bytes(self._waiting), last=True)
        return self._taken()

    def _taken(self) -> bytes:
        taken = bytes(self._sealed)
        self._sealed.clear()
        return taken


class _ByteSource(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Unsealing(io.RawIOBase):
    """A sealed file, read in order. Its end is an end only where `Seal.finish` put it."""

    def __init__(self, source: _ByteSource, passphrase: Secret, name: str) -> None:
        self._source = source
        self._name = name
        self._open = memoryview(b"")
        header = source.read(_HEADER.size)
        if len(header) < _HEADER.size or not is_sealed(header):
            raise self._damaged()
        _, log_n, r, p, _, _ = _HEADER.unpack(header)
        if not _WORK[0] <= log_n <= _MOST_WORK or (r, p) != _WORK[1:]:
            raise InvalidParams(
                f"cannot open {name}: it is damaged, or of a newer Legation; update this one, or choose another file"
            )
        self._key = _Key(header, passphrase)
        self._next = source.read(CHUNK + _TAG)
        if not self._next:  # nothing, sealed, is a chunk too
            raise self._damaged()
        self._first = True

    def __enter__(self) -> Self:
        return self

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            pieces = []
            while piece := self.read(CHUNK):
                pieces.append(piece)
            return b"".join(pieces)
        if not self._open and self._next:
            self._open = memoryview(self._chunk())
        taken = bytes(self._open[:size])
        self._open = self._open[size:]
        return taken

    def _chunk(self) -> bytes:
        sealed, self._next = self._next, self._source.read(CHUNK + _TAG)
        try:
            opened = self._key.open(sealed, last=not self._next)
        except InvalidTag:
            if self._first:
                raise InvalidParams(
                    f"cannot open {self._name}: the passphrase is not the one it was sealed with, or the file is damaged; "
                    "check --passphrase-file"
                ) from None
            raise self._damaged() from None
        self._first = False
        return opened

    def _damaged(self) -> InvalidParams:
        return InvalidParams(f"cannot open {self._name}: it is damaged or cut off; choose another backup")


class _Key:
    def __init__(self, header: bytes, passphrase: Secret) -> None:
        _, log_n, r, p, salt, prefix = _HEADER.unpack(header)
        key = Scrypt(salt=salt, length=32, n=2**log_n, r=r, p=p).derive(passphrase.reveal().encode())
        self._header, self._cipher, self._number = header, AESGCM(key), 0
        self._prefix: bytes = prefix

    def seal(self, plain: bytes, *, last: bool) -> bytes:
        return self._cipher.encrypt(self._nonce(last=last), plain, self._header)

    def open(self, sealed: bytes, *, last: bool) -> bytes:
        return self._cipher.decrypt(self._nonce(last=last), sealed, self._header)

    def _nonce(self, *, last: bool) -> bytes:
        if self._number == _MOST_CHUNKS:
            raise TooLarge("cannot seal more than 256 TiB in one file; back up in parts")
        nonce = self._prefix + struct.pack(">I?", self._number, last)
        self._number += 1
        return nonce
