"""Where the server listens, what it is called, and what it insists on before it starts."""

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from legation.errors import ConfigInvalid, Conflict
from legation.secret import Secret
from legation.server import requirements
from legation.server.address import browser_name, browser_url, hosts, is_loopback, public_url, take_address
from legation.settings import Settings, load
from legation.store.secrets.sealer import new_key_text

OWN = "legation-0123456789.localhost"


def settings(tmp_path: Path, **flags: object) -> Settings:
    return load({"data_dir": tmp_path, **flags}, {"HOME": "/home/ada"})


def taken() -> socket.socket:
    other = socket.socket()
    other.bind(("127.0.0.1", 0))
    other.listen()
    return other


def test_the_port_it_got_is_kept(tmp_path: Path) -> None:
    first = take_address(settings(tmp_path, port=0), OWN)
    first.listener.close()
    again = take_address(settings(tmp_path), OWN)
    again.listener.close()
    assert again.port == first.port
    assert again.public_url == f"http://127.0.0.1:{first.port}"


def test_a_first_start_takes_any_port_if_the_usual_one_is_taken(tmp_path: Path) -> None:
    with taken() as other:
        usual = other.getsockname()[1]
        address = take_address(replace(settings(tmp_path), port=usual), OWN)
        address.listener.close()
        assert address.port != usual


def test_a_port_that_was_asked_for_or_kept_is_insisted_on(tmp_path: Path) -> None:
    with taken() as other:
        port = other.getsockname()[1]
        with pytest.raises(Conflict, match=f"127.0.0.1:{port}: another program"):
            take_address(settings(tmp_path, port=port), OWN)
        (tmp_path / "port").write_text(str(port))
        with pytest.raises(Conflict, match="--port"):
            take_address(settings(tmp_path), OWN)


@pytest.mark.parametrize("text", ["", "garbage", "-1", "99999999"])
def test_a_damaged_note_of_the_port_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "port").write_text(text)
    address = take_address(settings(tmp_path, port=0), OWN)
    address.listener.close()
    assert (tmp_path / "port").read_text() == f"{address.port}\n"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_an_address_that_is_not_ours_is_told(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigInvalid, match="correct --host"):
        take_address(settings(tmp_path, host=host, port=0), OWN)


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.com")))


def test_its_names(tmp_path: Path) -> None:
    assert public_url(settings(tmp_path, host="::1"), 80) == "http://[::1]:80"
    assert public_url(settings(tmp_path, host="0.0.0.0"), 80) == "http://127.0.0.1:80"
    assert public_url(settings(tmp_path, public_url="https://x.example/"), 80) == "https://x.example"

    def names(**flags: object) -> set[str]:
        return set(hosts(settings(tmp_path, **flags), OWN) or ())

    assert names() == {"127.0.0.1", "localhost", "::1", OWN}
    assert hosts(settings(tmp_path, host="0.0.0.0"), OWN) is None
    assert names(host="0.0.0.0", allowed_hosts="Box.example") == {"box.example"}
    assert names(public_url="https://x.example") == {
        OWN,
        "x.example",
        "127.0.0.1",
        "localhost",
        "::1",
    }


def test_people_sign_in_under_a_name_of_its_own(tmp_path: Path) -> None:
    """A browser sends cookies to every port of a host: what an agent serves on 127.0.0.1 must not get ours."""
    assert browser_url(settings(tmp_path), 4517, OWN) == f"http://{OWN}:4517"
    assert browser_url(settings(tmp_path, public_url="https://x.example"), 4517, OWN) == "https://x.example"
    key, other = (Secret(new_key_text()) for _ in range(2))
    assert re.fullmatch(r"legation-[0-9a-f]{20}\.localhost", browser_name(key))
    assert browser_name(key) == browser_name(key) != browser_name(other)
    assert browser_url(settings(tmp_path, host="10.0.0.1"), 4517, OWN) == "http://10.0.0.1:4517"


def problems(given: Settings) -> list[str]:
    with pytest.raises(ConfigInvalid) as caught:
        requirements.check(given)
    assert caught.value.data is not None
    found = caught.value.data["problems"]
    assert isinstance(found, list)
    return found


def test_loopback_needs_nothing(tmp_path: Path) -> None:
    requirements.check(settings(tmp_path))


def test_everything_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    found = problems(
        settings(tmp_path, host="0.0.0.0", database_url="postgresql://u:canary@db/x", tls_key="/nowhere/key")
    )
    assert len(found) == 6
    assert not any("canary" in problem for problem in found)


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    (problem,) = problems(settings(tmp_path, token="canary"))
    assert "canary" not in problem
    requirements.check(settings(tmp_path, host="0.0.0.0", token="x" * 16))
