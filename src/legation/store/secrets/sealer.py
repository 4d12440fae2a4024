"""Keys of an installation, and what is sealed with them.

Keys come from settings, else from `keys.json` in the data folder, which is made if absent.

INV-K1  A key is 32 random bytes, written in base64; nothing shorter, longer or mistyped is taken.
INV-K2  The file is the owner's alone (0600, no link, no other user), or it is refused.
INV-K3  Whoever starts at the same moment gets the same keys: the file appears whole, once.
INV-K4  With `require_given` nothing is made up: two servers with keys of their own could not read each other.

Sealed values are AES-256-GCM, each under a data key of its own, which a key of the installation wraps.

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

import base64
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from legation.errors import ConfigInvalid, InternalError, InvalidParams, StorageFailed
from legation.secret import Secret
from legation.settings import variable
from legation.store import files

KEY_BYTES: Final = 32
VERSION: Final = 1  # of the file
_LARGEST: Final = 64 * 1024  # bytes; a ring of a thousand keys
_MAKE_ONE: Final = "`legation keys new` prints one"
_FEWEST_DIFFERENT: Final = 8  # bytes; chance gives about 30, and fewer than 8 never


class Key(msgspec.Struct, frozen=True):
    """`id` is a digest: it says which key sealed something, and nothing about the key."""

    id: str
    secret: Secret


class KeyRing(msgspec.Struct, frozen=True):
    """Sealing takes the current key; opening takes whichever it was sealed with."""

    current: Key
    older: tuple[Key, ...] = ()

    def find(self, key_id: str) -> Key | None:
        return next((key for key in (self.current, *self.older) if key.id == key_id), None)


class Keys(msgspec.Struct, frozen=True):
    vault: KeyRing
    pepper: Secret  # for the hashes of tokens
    cookie: Secret
    links: Secret  # for signed links to blobs; derived from `cookie`, so that it needs no setting

    @classmethod
    def of(cls, vault: KeyRing, pepper: Secret, cookie: Secret) -> Keys:
        links = Secret(encode(derive(key_bytes(cookie), "links")), "links-key")
        return cls(vault, pepper, cookie, links)


class BadKey(Exception):
    """A key that cannot be used: what is wrong with it, and what to write instead; never the key."""


def new_key_text() -> str:
    return encode(os.urandom(KEY_BYTES))


def encode(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).rstrip(b"=").decode()


def key_bytes(secret: Secret) -> bytes:
    """The bytes of a key that was read by this module: all of them are kept in one spelling."""
    return base64.urlsafe_b64decode(secret.reveal() + "=")


def derive(secret: bytes, purpose: str, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256 (RFC 5869): a key for one purpose, from which neither the secret nor its sisters follow."""
    if not 0 < length <= 255 * 32:
        raise ValueError("HKDF gives 1 to 8160 bytes")
    extracted = hmac.digest(bytes(32), secret, "sha256")
    info = b"legation/" + purpose.encode()
    block, derived = b"", b""
    while len(derived) < length:
        block = hmac.digest(extracted, block + info + bytes([len(derived) // 32 + 1]), "sha256")
        derived += block
    return derived[:length]


def read_key(text: str, name: str) -> Secret:
    """From base64, of either alphabet, padded or not."""
    spelled = text.strip().rstrip("=").replace("+", "-").replace("/", "_")
    try:
        raw = base64.b64decode(spelled + "=", altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    # The last character carries two idle bits: a typing error in them is an error as well.
    fault = len(raw) != KEY_BYTES or encode(raw) != spelled
    weak = not fault and len(set(raw)) < _FEWEST_DIFFERENT
    del text, raw
    if fault:
        del spelled
        raise BadKey(f"is not {KEY_BYTES} bytes in base64: {_MAKE_ONE}")
    if weak:
        del spelled
        raise BadKey(f"is not random: {_MAKE_ONE}")
    return Secret(spelled, name)


def ring_of(texts: Sequence[str]) -> KeyRing:
    """The first is the current one."""
    keys = [make_key(read_key(text, "vault-key")) for text in texts]
    if not keys:
        raise BadKey(f"is empty: {_MAKE_ONE}")
    if len({key.id for key in keys}) < len(keys):
        raise BadKey("holds the same key twice: leave one of the two out")
    return KeyRing(keys[0], tuple(keys[1:]))


def make_key(secret: Secret) -> Key:
    digest = hashlib.sha256(b"legation/vault key id\0" + key_bytes(secret)).hexdigest()
    return Key(digest[:8], secret)


def load_keys(path: Path, given: Mapping[str, Secret | None], *, require_given: bool = False) -> Keys:
    """`given` has `vault_key` (comma-separated, the current one first), `token_pepper` and `cookie_key`, each of
    them Secret or None; each stands before the one in the file. The file is not looked at when all are given."""

    problems: list[str] = []
    vault = _given_ring(given.get("vault_key"), problems)
    pepper = _given_key("token_pepper", given.get("token_pepper"), problems)
    cookie = _given_key("cookie_key", given.get("cookie_key"), problems)
    absent = [name for name in ("vault_key", "token_pepper", "cookie_key") if given.get(name) is None]
    if require_given:
        problems += [f"{variable(name)} is not set: set it on every server; {_MAKE_ONE}" for name in absent]
    elif absent and not problems:  # nothing is written for an installation that does not start
        kept = open_key_file(path)
        vault, pepper, cookie = vault or kept.vault, pepper or kept.pepper, cookie or kept.cookie
    if problems or not (vault and pepper and cookie):
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(f"cannot use the keys; correct this:{lines}", {"problems": problems})
    return Keys.of(vault, pepper, cookie)


def _given_ring(secret: Secret | None, problems: list[str]) -> KeyRing | None:
    if secret is None:
        return None
    try:
        return ring_of(secret.reveal().split(","))
    except BadKey as fault:
        problems.append(f"{variable('vault_key')} {fault}")
        return None


def _given_key(name: str, secret: Secret | None, problems: list[str]) -> Secret | None:
    if secret is None:
        return None
    try:
        return read_key(secret.reveal(), name.replace("_", "-"))
    except BadKey as fault:
        problems.append(f"{variable(name)} {fault}")
        return None


class _KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`keys.json`: the keys of an installation that was given none, readable by its owner alone."""

    version: int
    vault: list[str]  # the current one first
    pepper: str
    cookie: str


def open_key_file(path: Path) -> Keys:
    """The keys in the file; it is made if there is none."""
    try:
        return _keys(path, _read(path))
    except FileNotFoundError:
        with files.sole_writer(path):
            try:
                return _keys(path, _read(path))  # another was faster
            except FileNotFoundError:
                file = _KeyFile(VERSION, [new_key_text()], new_key_text(), new_key_text())
                _write(path, file)
                return _keys(path, file)


def rotate_key_file(path: Path) -> Key:
    """Puts a new current vault key before the others; seal again what the older ones sealed, then drop them."""
    with files.sole_writer(path):
        file = _existing(path)
        file = msgspec.structs.replace(file, vault=[new_key_text(), *file.vault])
        _write(path, file)
        return _keys(path, file).vault.current


def renew_key_file(path: Path) -> None:
    """As `rotate_key_file`, with a new cookie key: every sign-in and every signed link ends. The pepper stays, for with another
    no token would be known; by itself it opens nothing."""
    with files.sole_writer(path):
        file = _existing(path)
        _write(
            path, msgspec.structs.replace(file, vault=[new_key_text(), *file.vault], cookie=new_key_text())
        )


def drop_older_keys(path: Path) -> tuple[str, ...]:
    """The ids of the keys that are gone now; what is still sealed with one of them can never be opened."""
    with files.sole_writer(path):
        file = _existing(path)
        older = _keys(path, file).vault.older
        if older:
            _write(path, msgspec.structs.replace(file, vault=file.vault[:1]))
        return tuple(key.id for key in older)


def _existing(path: Path) -> _KeyFile:
    try:
        file = _read(path)
    except FileNotFoundError:
        raise ConfigInvalid(
            f"cannot rotate {path}: it does not exist; keys from settings are rotated by changing the settings"
        ) from None
    _keys(path, file)
    return file


def _keys(path: Path, file: _KeyFile) -> Keys:
    place = "vault"
    try:
        vault: KeyRing = ring_of(file.vault)
        place = "pepper"
        pepper: Secret = read_key(file.pepper, "token-pepper")
        place = "cookie"
        cookie: Secret = read_key(file.cookie, "cookie-key")
    except BadKey as fault:
        raise ConfigInvalid(
            f"cannot use {path}: {place} {fault}, or restore the file from a backup"
        ) from None
    return Keys.of(vault, pepper, cookie)


def _read(path: Path) -> _KeyFile:
    try:
        text = files.read_private(path, _LARGEST, secret=True)
        file = msgspec.json.decode(text, type=_KeyFile)
    except NotADirectoryError as error:  # a data folder that is none; where there is no file yet, one is made
        raise ConfigInvalid(f"cannot use {path}: {error.strerror}; choose another data folder") from error
    except msgspec.DecodeError:  # its text stays here: it is made from the file
        raise ConfigInvalid(
            f"cannot use {path}: it is not a file of keys; restore it from a backup"
        ) from None
    if file.version != VERSION:
        raise ConfigInvalid(
            f"cannot use {path}: its version is {file.version}, this Legation reads {VERSION}; use a newer one"
        )
    return file


def _write(path: Path, file: _KeyFile) -> None:
    """Only while alone."""
    files.replace_private(path, msgspec.json.format(msgspec.json.encode(file)) + b"\n")


if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    Random = Callable[[int], bytes]

FORMAT: Final = b"\x01"  # the first byte of a wrapped key
_NONCE: Final = 12
_TAG: Final = 16

LONGEST: Final = 200
# An id is 30 characters long; 24 random bytes, the shortest token there is, are 32.
LONGEST_WORD: Final = 31

_LETTERS: Final = re.compile(r"[A-Za-z0-9_.:,%-]*", re.ASCII)
_PLAIN: Final = re.compile(rf"[.:,%]*(?:[A-Za-z0-9_-]{{1,{LONGEST_WORD}}}(?:[.:,%]+|\Z))*", re.ASCII)


class WrappedKey(msgspec.Struct, frozen=True):
    key_id: str
    wrapped_key: bytes


class SealedValue(WrappedKey, frozen=True):
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
        self._random = random
        self.use(ring)

    def use(self, ring: KeyRing) -> None:
        """From now on: whatever seals with this sealer follows a rotation."""
        self._ring = ring
        self._wrapping: AESGCM | None = None  # the cipher of its current key, from when it is first needed

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
        if self._wrapping is None:
            self._wrapping = _cipher(key_bytes(current.secret))
        binding = _binding("key", bound)
        return WrappedKey(current.id, FORMAT + _encrypt(self._wrapping, self._random, key, binding))

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
        return _decrypt(
            _cipher(key_bytes(key.secret)), memoryview(wrapped.wrapped_key)[1:], _binding("key", bound)
        )


def check_value(key: Key) -> bytes:
    """Stored beside sealed values, so that a start with another key is noticed before anything is sealed."""
    return derive(key_bytes(key.secret), "vault key check")


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


def content_bound(workspace: str, owner: str) -> Sequence[str]:
    return ("content", workspace, owner)


def _binding(layer: str, bound: Sequence[str]) -> bytes:
    if isinstance(bound, str) or not bound:
        raise InvalidParams(
            "cannot seal a value that belongs to nothing: name its purpose, workspace and owner"
        )
    try:
        return b"".join(map(_framed, ("legation/sealed/1", layer, *bound)))
    except UnicodeEncodeError:
        raise InvalidParams("cannot bind a sealed value to that: it is not valid Unicode") from None


@lru_cache(maxsize=256)  # most parts are the same from one value to the next; none is a secret
def _framed(part: str) -> bytes:
    encoded = part.encode()
    return len(encoded).to_bytes(4) + encoded


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
    if _PLAIN.fullmatch(text):
        return None
    if not _LETTERS.fullmatch(text):
        return "it holds more than letters, digits and _ . : , % -"
    return f"it holds a word of more than {LONGEST_WORD} characters"
