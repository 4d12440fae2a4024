"""Sealed values: AES-256-GCM, each under a data key of its own, which a key of the installation wraps.

INV-S1  What is sealed for one workspace, owner and purpose opens for no other: they are bound into both layers,
        each with its length before it, so that no two of them can be read as one another.
INV-S2  Without the data key nothing opens: who deletes the wrapped key has destroyed what it sealed.
INV-S3  Re-wrapping changes the wrapped key alone; the body stays as it is.
INV-S4  A failure to open tells nothing of what is inside.

Nonces are 96 random bits. A bundle's data key seals once. The data key of a run seals many pages: up to 2^32 of
them the chance that two share a nonce stays below 2^-32 (NIST SP 800-38D, 8.3), and a run has some thousands.
A wrapping key has the same room: 2^32 bundles and runs, then rotate. Python cannot wipe memory: an opened
value lives until it is collected.

What is not sealed may only be ids, addresses, numbers, and words out of closed sets (`must_be_plain`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import TYPE_CHECKING, Final

from legation.errors import ConfigInvalid, InternalError, InvalidParams, StorageFailed
from legation.settings import variable
from legation.store.secrets.keys import KEY_BYTES, Key, KeyRing, derive

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    Random = Callable[[int], bytes]

FORMAT: Final = b"\x01"  # the first byte of a wrapped key
_NONCE: Final = 12
_TAG: Final = 16

LONGEST: Final = 200
# An id is 30 characters long; 24 random bytes, the shortest token there is, are 32.
LONGEST_WORD: Final = 31

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:,%-]*", re.ASCII)
_LONG_WORD: Final = re.compile(rf"[A-Za-z0-9_-]{{{LONGEST_WORD + 1}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class WrappedKey:
    key_id: str
    wrapped_key: bytes


@dataclass(frozen=True, slots=True)
class SealedValue(WrappedKey):
    """Three columns of a row; only `body` grows, by 28 bytes over the plain value."""

    body: bytes


class DataKey:
    """An open key: it seals and opens pages, and cannot be printed or stored."""

    __slots__ = ("_cipher", "_random")

    def __init__(self, key: bytes, random: Random) -> None:
        self._cipher = _cipher(key)
        self._random = random

    def seal_page(self, plain: bytes | memoryview, bound: Sequence[str]) -> bytes:
        """`bound` names the page's place as well: purpose, workspace, run, first and last number."""
        return _encrypt(self._cipher, self._random, plain, _binding("page", bound))

    def open_page(self, page: bytes | memoryview, bound: Sequence[str]) -> bytes:
        return _decrypt(self._cipher, page, _binding("page", bound))


class Sealer:
    def __init__(self, ring: KeyRing, random: Random = os.urandom) -> None:
        self._ring = ring
        self._random = random

    def use(self, ring: KeyRing) -> None:
        """From now on: whatever seals with this sealer follows a rotation."""
        self._ring = ring

    @property
    def current_key_id(self) -> str:
        return self._ring.current.id

    def seal(self, plain: bytes | memoryview, bound: Sequence[str]) -> SealedValue:
        """`bound` is what it belongs to: purpose, workspace, owner, version."""
        key = self._random(KEY_BYTES)
        body = _encrypt(_cipher(key), self._random, plain, _binding("body", bound))
        wrapped = self._wrap(key, bound)
        return SealedValue(wrapped.key_id, wrapped.wrapped_key, body)

    def open(self, sealed: SealedValue, bound: Sequence[str]) -> bytes:
        return _decrypt(_cipher(self._unwrap(sealed, bound)), sealed.body, _binding("body", bound))

    def new_data_key(self, bound: Sequence[str]) -> tuple[WrappedKey, DataKey]:
        """One for each run; store the wrapped one, and delete it to destroy every page."""
        key = self._random(KEY_BYTES)
        return self._wrap(key, bound), DataKey(key, self._random)

    def open_data_key(self, wrapped: WrappedKey, bound: Sequence[str]) -> DataKey:
        return DataKey(self._unwrap(wrapped, bound), self._random)

    def rewrap_key(self, wrapped: WrappedKey, bound: Sequence[str]) -> WrappedKey:
        """Under the current key; one that is under it already stays as it is."""
        if wrapped.key_id == self._ring.current.id:
            return wrapped
        return self._wrap(self._unwrap(wrapped, bound), bound)

    def _wrap(self, key: bytes, bound: Sequence[str]) -> WrappedKey:
        current = self._ring.current
        binding = _binding("key", bound)
        return WrappedKey(
            current.id, FORMAT + _encrypt(_cipher(current.reveal()), self._random, key, binding)
        )

    def _unwrap(self, wrapped: WrappedKey, bound: Sequence[str]) -> bytes:
        key = self._ring.find(wrapped.key_id)
        if key is None:
            raise ConfigInvalid(
                f"cannot open a sealed value: it needs vault key {wrapped.key_id[:8]!r}, which is not here; "
                f"add that key to {variable('vault_key')}, or restore keys.json from a backup",
                {"keyId": wrapped.key_id[:8]},
            )
        if wrapped.wrapped_key[:1] != FORMAT:
            raise _unopened()
        return _decrypt(_cipher(key.reveal()), memoryview(wrapped.wrapped_key)[1:], _binding("key", bound))


def check_value(key: Key) -> bytes:
    """Stored beside sealed values, so that a start with another key is noticed before anything is sealed."""
    return derive(key.reveal(), "vault key check")


def matches(key: Key, value: bytes) -> bool:
    return compare_digest(check_value(key), value)


def _cipher(key: bytes) -> AESGCM:
    # 30 ms of import, as long as a fifth of a command takes: only what seals or opens pays for it.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _encrypt(cipher: AESGCM, random: Random, plain: bytes | memoryview, binding: bytes) -> bytes:
    nonce = random(_NONCE)
    return nonce + cipher.encrypt(nonce, plain, binding)


def _decrypt(cipher: AESGCM, sealed: bytes | memoryview, binding: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    if len(sealed) < _NONCE + _TAG:
        raise _unopened()
    view = memoryview(sealed)
    try:
        return cipher.decrypt(view[:_NONCE], view[_NONCE:], binding)
    except InvalidTag:
        raise _unopened() from None


def _binding(layer: str, bound: Sequence[str]) -> bytes:
    if isinstance(bound, str) or not bound:
        raise InvalidParams(
            "cannot seal a value that belongs to nothing: name its purpose, workspace and owner"
        )
    try:
        parts = [part.encode() for part in ("legation/sealed/1", layer, *bound)]
    except UnicodeEncodeError:
        raise InvalidParams("cannot bind a sealed value to that: it is not valid Unicode") from None
    return b"".join(len(part).to_bytes(4) + part for part in parts)


def _unopened() -> StorageFailed:
    return StorageFailed(
        "cannot open a sealed value: it was changed, or sealed for another workspace or owner; "
        "restore it from a backup"
    )


def must_be_plain(text: str, what: str) -> str:
    """Refuse for a table what could be a secret; else the text itself. The error names `what` and never quotes the text.

    Text that somebody typed may hold a secret, and no check can tell. So nothing typed is let in: no space, no letter
    beyond ASCII, and no word as long as a token. It is a net under the rule, not the rule: a short password would
    pass, and whoever calls must not hand one over."""
    if fault := _fault(text):
        del text
        raise InternalError(
            f"cannot store {what}: {fault}, so it could be a secret; give an id, an address or a fixed word"
        )
    return text


def is_plain(text: str) -> bool:
    return _fault(text) is None


def _fault(text: str) -> str | None:
    if len(text) > LONGEST:
        return f"it is longer than {LONGEST} characters"
    if not _PLAIN.fullmatch(text):
        return "it holds more than letters, digits and _ . : , % -"
    if _LONG_WORD.search(text):
        return f"it holds a word of more than {LONGEST_WORD} characters"
    return None
