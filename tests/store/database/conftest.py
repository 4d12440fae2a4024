from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.database.databases import BOTH, Either, opened


@pytest.fixture(params=BOTH)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Either]:
    async for either in opened(request.param, tmp_path, request):
        yield either
