"""The inventories against the programs of today's pins. A failing test names what changed, and how to renew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests import real_agents

from tools.schemas import EXTRACTORS, Places, changes, committed

pytestmark = [pytest.mark.network, pytest.mark.heavy]


def _from_npm(name: str) -> Callable[[], Path]:
    def get() -> Path:
        try:
            return real_agents.install(name)
        except real_agents.NotAvailable as error:
            pytest.skip(str(error))

    return get


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        pytest.param("acp", _from_npm("typescript-sdk"), id="acp"),
        pytest.param("acp-unstable", _from_npm("typescript-sdk"), id="acp-unstable"),
        pytest.param("claude", _from_npm("claude"), id="claude"),
        pytest.param("codex", _from_npm("codex"), id="codex"),
        pytest.param("codex-experimental", _from_npm("codex"), id="codex-experimental"),
        pytest.param("amp", _from_npm("amp"), id="amp"),
        pytest.param("opencode", _from_npm("opencode"), id="opencode"),
    ],
)
async def test_the_program_publishes_what_is_committed(name: str, folder: Callable[[], Path]) -> None:
    extractor, place = EXTRACTORS[name], folder()
    program = extractor.find(Places((place,), path=""))
    if program is None:
        pytest.skip(f"cannot check {name}: {extractor.package} is not made for this machine")
    found, before = await extractor.extract(program), committed(name)
    drift = [str(each) for each in changes(before, found)]
    assert drift == [], f"renew it: python -m tools.schemas extract {name} --in <folder>"
    assert found == before
