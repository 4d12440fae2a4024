"""One server for a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.processes.process_rig import ProcessRig, open_process_rig


@pytest.fixture
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ProcessRig]:
    async with open_process_rig(tmp_path, request) as opened:
        yield opened
