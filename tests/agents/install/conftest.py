from collections.abc import Iterator

import pytest
from tests.agents.install.local_registry import LocalRegistry, local_registry


@pytest.fixture
def registry() -> Iterator[LocalRegistry]:
    with local_registry() as served:
        yield served
