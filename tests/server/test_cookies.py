"""Session cookies: whoever did not write one cannot change one."""

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from legation.errors import Unauthenticated
from legation.secret import Secret
from legation.server.auth import (
    SESSION_MS,
    Cookies,
    CookieSession,
    new_session,
    presented_session,
    presented_token,
)
from legation.store.secrets.sealer import new_key_text

NOW = 1_700_000_000_000
COOKIES = Cookies.of(Secret(new_key_text(), "cookie"), "http://127.0.0.1:8700")
SESSION = new_session("usr_1", "local", 3, NOW)


def request_with(*headers: tuple[str, str]) -> Request:
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    return Request({"type": "http", "method": "GET", "path": "/", "headers": raw})


def test_what_was_written_is_read() -> None:
    assert COOKIES.read(COOKIES.write(SESSION), NOW) == SESSION


def test_a_cookie_says_ids_and_times_and_nothing_else() -> None:
    _, said, _ = COOKIES.write(SESSION).split(".")
    assert msgspec.json.decode(base64.urlsafe_b64decode(said + "==")) == [
        "usr_1",
        "local",
        3,
        NOW,
        NOW + SESSION_MS,
    ]


def test_a_cookie_lasts_thirty_days() -> None:
    text = COOKIES.write(SESSION)
    assert COOKIES.read(text, NOW + 30 * 86_400_000 - 1) == SESSION
    assert COOKIES.read(text, NOW + 30 * 86_400_000) is None


def test_a_cookie_of_tomorrow_is_not_taken() -> None:
    assert COOKIES.read(COOKIES.write(SESSION), NOW - 60_000) == SESSION  # clocks differ a little
    assert COOKIES.read(COOKIES.write(SESSION), NOW - 60_001) is None


@pytest.mark.parametrize("at", range(len(COOKIES.write(SESSION))))
def test_no_character_can_be_changed(at: int) -> None:
    text = COOKIES.write(SESSION)
    for other in "AZaz09-_.=":
        if text[at] != other:
            assert COOKIES.read(text[:at] + other + text[at + 1 :], NOW) is None


def test_another_key_signs_nothing_of_ours() -> None:
    other = Cookies.of(Secret(new_key_text(), "cookie"), "http://127.0.0.1:8700")
    assert COOKIES.read(other.write(SESSION), NOW) is None


def test_the_signature_covers_what_is_said() -> None:
    mine, theirs = COOKIES.write(SESSION), COOKIES.write(CookieSession("usr_2", "local", 1, NOW, NOW + 5))
    version, said, _ = theirs.split(".")
    assert COOKIES.read(f"{version}.{said}.{mine.split('.')[2]}", NOW) is None


@given(st.text(max_size=300))
def test_anything_else_is_no_cookie(text: str) -> None:
    assert COOKIES.read(text, NOW) is None
    assert COOKIES.read(f"v1.{text}", NOW) is None
    assert COOKIES.read(f"v1.{text}.{text}", NOW) is None


def test_scripts_and_other_sites_do_not_get_it() -> None:
    header = COOKIES.header(SESSION, NOW)["set-cookie"]
    name, *attributes = header.split("; ")
    assert name == f"legation_session={COOKIES.write(SESSION)}"
    assert attributes == ["Max-Age=2592000", "Path=/", "HttpOnly", "SameSite=Strict"]


def test_over_https_it_stays_there() -> None:
    secure = Cookies.of(COOKIES.key, "https://legation.example.org")
    assert secure.header(SESSION, NOW)["set-cookie"].endswith("; Secure")
    assert secure.clearing()["set-cookie"] == (
        "legation_session=; Max-Age=0; Path=/; HttpOnly; SameSite=Strict; Secure"
    )


# What a request presents.


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc", "abc"),
        ("bearer abc", "abc"),
        ("BEARER   abc  ", "abc"),
        ("Token abc", "abc"),
        ("token abc", "abc"),
        (f"Basic {base64.b64encode(b'anybody:abc').decode()}", "abc"),
        (f"basic {base64.b64encode(b':abc').decode()}", "abc"),
        (f"Basic {base64.b64encode(b'x:a:b').decode()}", "a:b"),
    ],
)
def test_a_token_comes_in_three_ways(header: str, token: str) -> None:
    assert presented_token(request_with(("Authorization", header))) == token


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "abc",
        "Bearer a b",
        "Bearer a\tb",
        "Digest abc",
        "Basic abc",
        "Basic !!!!",
        f"Basic {base64.b64encode(b'without a colon').decode()}",
        f"Basic {base64.b64encode(b'user:').decode()}",
        f"Basic {base64.b64encode(bytes([255, 58, 255])).decode()}",
        "Bearer " + "x" * 1025,
    ],
)
def test_what_holds_no_token_is_a_wrong_credential(header: str) -> None:
    with pytest.raises(Unauthenticated, match="cannot accept this credential"):
        presented_token(request_with(("Authorization", header)))


def test_two_authorizations_are_none() -> None:
    with pytest.raises(Unauthenticated):
        presented_token(request_with(("Authorization", "Bearer abc"), ("Authorization", "Bearer abc")))


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("legation_session=v1.a.b", "v1.a.b"),
        ("theme=dark; legation_session=v1.a.b; x=y", "v1.a.b"),
        ("legation_session=first; legation_session=second", "first"),
        ("legation_session=", None),
        ("legation_session", None),
        ("other=1", None),
        ("", None),
    ],
)
def test_the_session_is_found_among_the_cookies(header: str, value: str | None) -> None:
    assert presented_session(request_with(("Cookie", header))) == value
    assert presented_token(request_with(("Cookie", header))) is None
