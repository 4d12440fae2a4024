from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.database.databases import BOTH, Either, make, opened


@pytest.fixture(params=BOTH)
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Either]:
    """Each of the two databases, fresh, with the newest schema."""
    async with opened(make(request.param, tmp_path, request)) as either:
        yield either
