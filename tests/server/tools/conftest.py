from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.gateway.backend import Backend
from tests.gateway.backend import backend as open_backend
from tests.server.rig import BOTH
from tests.server.tools.tool_calls import Calls, open_calls


@pytest.fixture
def backend() -> Iterator[Backend]:
    with open_backend() as made:
        yield made


@pytest.fixture(params=BOTH)
async def calls(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Calls]:
    async with open_calls(request.param, tmp_path, request, backend, monkeypatch) as made:
        yield made


@pytest.fixture
async def embedded(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Calls]:
    async with open_calls("sqlite", tmp_path, request, backend, monkeypatch) as made:
        yield made


@pytest.fixture
async def many(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Calls]:
    """One agent may have as many questions open as it likes."""
    async with open_calls("sqlite", tmp_path, request, backend, monkeypatch, pending_per_agent=1000) as made:
        yield made
