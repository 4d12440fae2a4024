"""Session cookies: `v1.<what it says>.<signature>`. Whoever reads one learns ids and times, and nothing secret.

A cookie is valid as long as the user's `token_version` is the one that it was made with: raising that number ends
every session of the user, without a table of sessions.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import Final

import msgspec

from legation.secret import Secret
from legation.server.identity.credentials import COOKIE_NAME
from legation.store.keys import derive, key_bytes

SESSION_MS: Final = 30 * 86_400_000  # without a visit; each visit starts it anew
RENEW_AFTER_MS: Final = 86_400_000  # not at every visit: a new cookie a day is enough
_VERSION: Final = "v1"
_LONGEST: Final = 1024


class Session(msgspec.Struct, frozen=True, array_like=True):
    user: str
    workspace: str
    token_version: int
    issued_ms: int
    expires_ms: int


def new_session(user: str, workspace: str, token_version: int, now_ms: int) -> Session:
    return Session(user, workspace, token_version, now_ms, now_ms + SESSION_MS)


@dataclass(frozen=True, slots=True)
class Cookies:
    key: Secret
    secure: bool  # only over https

    @classmethod
    def of(cls, key: Secret, public_url: str) -> Cookies:
        return cls(key, public_url.lower().startswith("https://"))

    def write(self, session: Session) -> str:
        said = f"{_VERSION}.{_encode(msgspec.json.encode(session))}"
        return f"{said}.{_encode(self._sign(said))}"

    def read(self, text: str, now_ms: int) -> Session | None:
        """None for what we did not write, or what is over."""
        said, _, signature = text.rpartition(".")
        if len(text) > _LONGEST or not text.isascii() or not said.startswith(f"{_VERSION}."):
            return None
        # Signatures are compared as text: base64 has several spellings of the same bytes, ours has one.
        if not hmac.compare_digest(_encode(self._sign(said)), signature):
            return None
        payload = said.removeprefix(f"{_VERSION}.")
        session = msgspec.json.decode(
            base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=Session
        )
        return session if session.issued_ms <= now_ms + _SKEW_MS and now_ms < session.expires_ms else None

    def header(self, session: Session, now_ms: int) -> dict[str, str]:
        seconds = (session.expires_ms - now_ms) // 1000
        return {"set-cookie": f"{COOKIE_NAME}={self.write(session)}; Max-Age={seconds}; {self._attributes}"}

    def clearing(self) -> dict[str, str]:
        return {"set-cookie": f"{COOKIE_NAME}=; Max-Age=0; {self._attributes}"}

    @property
    def _attributes(self) -> str:
        return f"Path=/; HttpOnly; SameSite=Strict{'; Secure' if self.secure else ''}"

    def _sign(self, said: str) -> bytes:
        return hmac.digest(derive(key_bytes(self.key), "session-cookies"), said.encode(), "sha256")


_SKEW_MS: Final = 60_000  # how far the clocks of two servers may be apart


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
