from __future__ import annotations

from pathlib import Path

import pytest
from tests import real_agents


@pytest.fixture(scope="session")
def amp() -> Path:
    """The real program; without a network to get it from, the test is skipped."""
    try:
        folder = real_agents.install("amp")
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    return next(folder.glob("node_modules/@ampcode/*/amp"))
