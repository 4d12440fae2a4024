"""One server for a test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.processes.bench import Bench, open_bench


@pytest.fixture
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    async with open_bench(tmp_path, request) as opened:
        yield opened
