from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents.catalogue.machine import Machine
from tests.agents.install.local_registry import LocalRegistry, local_registry


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def registry() -> Iterator[LocalRegistry]:
    with local_registry() as served:
        yield served
