from __future__ import annotations

from pathlib import Path

import pytest
from tests import real_agents
from tools.schemas.codex import PROGRAM


@pytest.fixture(scope="session")
def codex() -> Path:
    """The real program; without a network to get it from, the test is skipped."""
    try:
        installed = real_agents.install("codex")
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    found = sorted((installed / "node_modules").glob(PROGRAM))
    assert found, "the package has no program for this machine"
    return found[0]
