from collections.abc import Iterator

import pytest
from tests.gateway.backend import Backend
from tests.gateway.backend import backend as open_backend


@pytest.fixture
def backend() -> Iterator[Backend]:
    with open_backend() as made:
        yield made
