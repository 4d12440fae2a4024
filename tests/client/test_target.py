"""Addresses and tokens that cannot be used are refused before anything is sent, without showing a secret."""

import os
from pathlib import Path

import msgspec
import pytest

from legation.client import AsyncLegation, Legation
from legation.client.connection import find
from legation.client.request import Located, RequestFailure, ServerTarget, segment, target
from legation.errors import InvalidParams, LegationError, NotFound, Unauthenticated, Unavailable
from legation.store.files import FolderLock
from legation.wire.api.server import OWNER_LOCK, SERVER_FILE, ServerFile


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


# After a restart.

OLD, NEW = target("http://127.0.0.1:1", "old"), target("http://127.0.0.1:2", "new")
REFUSED = RequestFailure(Unauthenticated("cannot know you"), passing=False)
UNSENT = RequestFailure(Unavailable("cannot connect"), passing=True, unsent=True)
LOST = RequestFailure(Unavailable("cannot read on"), passing=True)


def located(*found: ServerTarget | LegationError) -> Located:
    """One that finds these, one after the other."""
    looks = iter(found)

    def again() -> ServerTarget:
        seen = next(looks)
        if isinstance(seen, LegationError):
            raise seen
        return seen

    made = Located(OLD)
    made.again = again
    return made


@pytest.mark.parametrize("failure", [REFUSED, UNSENT])
def test_what_no_server_took_is_for_the_next_one(failure: RequestFailure) -> None:
    at = located(NEW)
    assert at.after(failure, OLD) is None
    assert at.now == NEW


def test_what_may_have_reached_a_server_is_not_sent_to_the_next_one() -> None:
    at = located(NEW)
    assert at.after(LOST, OLD) == LOST
    assert at.now == NEW  # where whatever may be repeated goes


def test_a_token_that_is_refused_by_the_server_it_is_for_stays_refused() -> None:
    assert located(OLD).after(REFUSED, OLD) == REFUSED
    assert Located(OLD).after(REFUSED, OLD) == REFUSED  # nobody said where else to look


def test_a_token_of_a_server_that_is_gone_is_refused_for_a_while() -> None:
    gone = Unavailable("cannot find it")
    left = located(gone).after(REFUSED, OLD)
    assert left is not None
    assert (left.error, left.passing, left.unsent) == (gone, True, True)


def test_a_refusal_that_has_nothing_to_do_with_restarts_is_left_alone() -> None:
    refused = RequestFailure(NotFound("cannot find that"), passing=False)
    assert located().after(refused, OLD) == refused


def test_the_file_of_a_server_that_was_killed_does_not_stand_for_one_that_starts(tmp_path: Path) -> None:
    former = ServerFile(url="http://127.0.0.1:1", token="t", pid=1, started_at=0, version="0")
    (tmp_path / SERVER_FILE).write_bytes(msgspec.json.encode(former))
    with pytest.raises(Unavailable, match="process 1 is gone"):
        find(tmp_path)
    lock = FolderLock(tmp_path / OWNER_LOCK)
    lock.acquire()
    try:
        with pytest.raises(Unavailable, match=f"process {os.getpid()} starts"):
            find(tmp_path)
        here = msgspec.structs.replace(former, pid=os.getpid())
        (tmp_path / SERVER_FILE).write_bytes(msgspec.json.encode(here))
        assert find(tmp_path) == here
    finally:
        lock.release()
