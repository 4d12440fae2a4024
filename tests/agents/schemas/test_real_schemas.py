"""The inventories against the programs of today's pins. A failing test names what changed, and how to renew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests import real_agents

from legation.agents.install import InstallFolder, shipped
from legation.agents.schemas import EXTRACTORS, Places, changes, committed

pytestmark = pytest.mark.network

# A program of some hundred megabytes each, which no other test needs.
_LARGE = [pytest.mark.slow, pytest.mark.timeout(900)]


def _from_npm(name: str) -> Callable[[], Path]:
    def get() -> Path:
        try:
            return real_agents.install(name)
        except real_agents.NotAvailable as error:
            pytest.skip(str(error))

    return get


def _of_the_catalogue(name: str) -> Callable[[], Path]:
    """As Legation itself installs it."""

    def get() -> Path:
        try:
            real_agents.agent(name)
        except real_agents.NotAvailable as error:
            pytest.skip(str(error))
        return InstallFolder.of(real_agents.INSTALLED, name).version(shipped().release(name, None).version)

    return get


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        pytest.param("acp", _from_npm("typescript-sdk"), id="acp"),
        pytest.param("acp-unstable", _from_npm("typescript-sdk"), id="acp-unstable"),
        pytest.param("claude", _of_the_catalogue("claude"), id="claude"),
        pytest.param("codex", _from_npm("codex"), id="codex", marks=_LARGE),
        pytest.param("codex-experimental", _from_npm("codex"), id="codex-experimental", marks=_LARGE),
        pytest.param("amp", _from_npm("amp"), id="amp", marks=_LARGE),
        pytest.param("opencode", _of_the_catalogue("opencode"), id="opencode", marks=_LARGE),
    ],
)
async def test_the_program_publishes_what_is_committed(name: str, folder: Callable[[], Path]) -> None:
    extractor, place = EXTRACTORS[name], folder()
    program = extractor.find(Places((place,), path=""))
    if program is None:
        pytest.skip(f"cannot check {name}: {extractor.package} is not made for this machine")
    found, before = await extractor.extract(program), committed(name)
    drift = [str(each) for each in changes(before, found)]
    assert drift == [], f"renew it: python -m legation.agents.schemas extract {name} --in <folder>"
    assert found == before
