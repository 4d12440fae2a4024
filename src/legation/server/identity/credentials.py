"""What a request presents: the token of its Authorization header, or the session of its cookie; as text, unchecked."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from starlette.requests import Request

from legation.errors import Unauthenticated

COOKIE_NAME: Final = "legation_session"
_LONGEST: Final = 1024  # characters of a token; ours have 36, an owner's own may have more


def wrong_credential() -> Unauthenticated:
    """One answer for whatever is wrong with it, so that nobody learns which tokens and users there are."""
    return Unauthenticated(
        "cannot accept this credential: it is not valid, or not any more; create another token or sign in again"
    )


def presented_token(request: Request) -> str | None:
    """The token; None without an Authorization header. Whatever cannot hold a token is a wrong credential."""
    found = request.headers.getlist("authorization")
    if not found:
        return None
    scheme, _, rest = found[0].strip().partition(" ")
    rest = rest.strip()
    match scheme.lower():
        case "bearer" | "token":
            token = rest
        case "basic":
            token = _password(rest)
        case _:
            token = ""
    if len(found) > 1 or not 0 < len(token) <= _LONGEST or not token.isprintable() or " " in token:
        raise wrong_credential()
    return token


def presented_session(request: Request) -> str | None:
    """The first cookie of our name; an empty one is none."""
    for header in request.headers.getlist("cookie"):
        for pair in header.split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE_NAME:
                return value or None
    return None


def _password(encoded: str) -> str:
    """The name before the colon says nothing: the token alone tells who it is."""
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
    return text.partition(":")[2]
