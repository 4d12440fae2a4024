"""Addresses and tokens that cannot be used are refused before anything is sent, without showing a secret."""

import pytest

from legation.client import AsyncLegation, Legation
from legation.client.target import segment, target
from legation.errors import InvalidParams


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:2468",
        "ftp://host",
        "http://",
        "http://host:0",
        "http://host:99999",
        "http://user:canary@host",
        "http://host/?token=canary",
        "http://host/#canary",
        "http://ho st",
        "http://host\r\nX: y",
        "http://[::1",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidParams, match="cannot use the server's address") as caught:
        Legation.connect(url, "t")
    assert "canary" not in repr(caught.value)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "é"])
def test_a_token_that_fits_no_header_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InvalidParams) as caught:
        target("http://host", token)
    assert not token or token not in str(caught.value)


def test_a_workspace_that_fits_no_header_is_refused() -> None:
    with pytest.raises(InvalidParams, match="workspace"):
        target("http://host", "t", "a\r\nb")


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://localhost", True),
        ("http://10.0.0.1", False),
        ("https://localhost.example", False),
    ],
)
def test_what_is_on_this_machine_is_known(url: str, local: bool) -> None:
    assert target(url, "t").is_local is local


@pytest.mark.parametrize("value", ["", ".", "..", "\ud800"])
def test_what_is_no_id_is_refused(value: str) -> None:
    with pytest.raises(InvalidParams, match="cannot make an address"):
        segment(value)


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="timeout"):
        Legation.connect("http://host", "t", timeout=3)  # type: ignore[call-arg]


def test_a_path_before_the_api_is_kept() -> None:
    assert target("https://host/legation/", "t").url("/v1/me", (("a", "b c"),)) == (
        "https://host/legation/v1/me?a=b+c"
    )


async def test_nothing_shows_the_token() -> None:
    with Legation.connect("http://127.0.0.1:1", "canary-token") as legation:
        assert (
            "canary"
            not in f"{legation!r}{vars(legation)}{vars(legation.caller)}{target('http://x', 'canary')}"
        )
        assert repr(legation) == "<Legation at http://127.0.0.1:1>"
    async with AsyncLegation.connect("http://127.0.0.1:1", "canary-token") as other:
        assert repr(other) == "<AsyncLegation at http://127.0.0.1:1>"
