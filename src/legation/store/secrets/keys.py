"""The keys of an installation: from settings, else from `keys.json` in the data folder, which is made if absent.

INV-K1  A key is 32 random bytes, written in base64; nothing shorter, longer or mistyped is taken.
INV-K2  The file is the owner's alone (0600, no link, no other user), or it is refused.
INV-K3  Whoever starts at the same moment gets the same keys: the file appears whole, once.
INV-K4  With `require_given` nothing is made up: two servers with keys of their own could not read each other.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from legation.errors import ConfigInvalid
from legation.secret import Secret
from legation.settings import variable
from legation.store import files

KEY_BYTES: Final = 32
VERSION: Final = 1  # of the file
_LARGEST: Final = 64 * 1024  # bytes; a ring of a thousand keys
_MAKE_ONE: Final = "`legation keys new` prints one"
_FEWEST_DIFFERENT: Final = 8  # bytes; chance gives about 30, and fewer than 8 never


@dataclass(frozen=True, slots=True)
class Key:
    """`id` is a digest: it says which key sealed something, and nothing about the key."""

    id: str
    secret: Secret

    def reveal(self) -> bytes:
        return key_bytes(self.secret)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Sealing takes the current key; opening takes whichever it was sealed with."""

    current: Key
    older: tuple[Key, ...] = ()

    def find(self, key_id: str) -> Key | None:
        return next((key for key in (self.current, *self.older) if key.id == key_id), None)


@dataclass(frozen=True, slots=True)
class Keys:
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
    text = files.read_private(path, _LARGEST, secret=True)
    try:
        file = msgspec.json.decode(text, type=_KeyFile)
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
