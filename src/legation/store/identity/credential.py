"""Tokens and sign-in codes as text, and the keyed hashes that stand for them in the database.

INV-I1  The text itself is nowhere but in the answer that hands it out. Without the pepper, which is not in the
        database, a hash cannot even be tested against a guess.
"""

import base64
import hmac
import os
from collections.abc import Callable
from typing import Final

from legation.secret import Secret
from legation.store.secrets.keys import derive, key_bytes

TOKEN_PREFIX: Final = "lgn_"  # noqa: S105 - so that scanners and people recognise one
HINT_LENGTH: Final = 4
_CHANCE_BYTES: Final = 24

Random = Callable[[int], bytes]


class CredentialHash:
    """A hash for each purpose, so that a code is no token and a token no code."""

    def __init__(self, pepper: Secret) -> None:
        self._pepper = key_bytes(pepper)
        self._link_key = derive(self._pepper, "sign-in-links")

    def token(self, text: str) -> bytes:
        return hmac.digest(self._pepper, text.encode(), "sha256")

    def link(self, code: str) -> bytes:
        return hmac.digest(self._link_key, code.encode(), "sha256")


def new_token(random: Random = os.urandom) -> Secret:
    return Secret(TOKEN_PREFIX + _text(random), "api-token")


def new_code(random: Random = os.urandom) -> Secret:
    return Secret(_text(random), "sign-in-code")


def hint_of(token: Secret) -> str:
    return token.reveal()[-HINT_LENGTH:]


def _text(random: Random) -> str:
    return base64.urlsafe_b64encode(random(_CHANCE_BYTES)).decode()  # 24 bytes need no padding
