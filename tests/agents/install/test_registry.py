"""Where packages come from is npm's setting, and a repository cannot change it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from legation.agents.install.fetch import configured
from legation.errors import ConfigInvalid, Unavailable


def home(tmp_path: Path, npmrc: str = "") -> dict[str, str]:
    if npmrc:
        (tmp_path / ".npmrc").write_text(npmrc)
    return {"HOME": str(tmp_path), "PATH": "/nonexistent"}


@pytest.fixture
def npm(tmp_path: Path) -> str:
    """A program of that name, which says what it was asked and answers."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "npm").write_text(
        '#!/bin/sh\n[ "$*" = "config get registry" ] && echo http://127.0.0.1:3/npm/\n'
    )
    (folder / "npm").chmod(0o755)
    return f"{folder}{os.pathsep}{os.defpath}"


def test_the_variable_decides_first(tmp_path: Path) -> None:
    environ = {**home(tmp_path, "registry=http://127.0.0.1:2/"), "npm_config_registry": "http://127.0.0.1:1"}
    assert configured(environ).base("left-pad") == "http://127.0.0.1:1/"


def test_then_the_file_of_the_user(tmp_path: Path) -> None:
    environ = home(tmp_path, "; a comment\nregistry = http://127.0.0.1:${PORT}/x\n") | {"PORT": "2"}
    assert configured(environ).base("left-pad") == "http://127.0.0.1:2/x/"


def test_then_npm_is_asked(tmp_path: Path, npm: str) -> None:
    environ = {**home(tmp_path), "PATH": npm}
    assert configured(environ).base("left-pad") == "http://127.0.0.1:3/npm/"


def test_without_any_of_them_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legation.agents.install.fetch.find_spec", lambda _: None)
    with pytest.raises(Unavailable, match="install npm, or set NPM_CONFIG_REGISTRY"):
        configured(home(tmp_path))


def test_the_file_of_the_current_folder_is_not_read(
    tmp_path: Path, npm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / ".npmrc").write_text("registry=http://127.0.0.1:666/\n")
    monkeypatch.chdir(repository)
    assert "666" not in configured({**home(tmp_path), "PATH": npm}).base("left-pad")


def test_a_scope_may_have_its_own(tmp_path: Path) -> None:
    found = configured(home(tmp_path, "registry=http://127.0.0.1:1\n@acme:registry=http://127.0.0.1:2\n"))
    assert (found.base("@acme/x"), found.base("@other/x")) == ("http://127.0.0.1:2/", "http://127.0.0.1:1/")


def test_a_token_goes_to_its_place_only_and_is_not_shown(tmp_path: Path) -> None:
    npmrc = "registry=http://127.0.0.1:1/npm/\n//127.0.0.1:1/npm/:_authToken=${CANARY}\n"
    found = configured(home(tmp_path, npmrc) | {"CANARY": "canary"})
    assert found.headers("http://127.0.0.1:1/npm/x/-/x-1.tgz") == {"Authorization": "Bearer canary"}
    assert found.headers("http://127.0.0.1:1/other") == {}
    assert found.headers("http://127.0.0.1:2/npm/x") == {}
    assert "canary" not in repr(found)


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="correct NPM_CONFIG_REGISTRY"):
        configured({**home(tmp_path), "NPM_CONFIG_REGISTRY": "file:///etc"})
