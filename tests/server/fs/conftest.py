from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.fs.drive import SECRET, Drive, open_drive


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    made = open_drive(tmp_path)
    yield made
    assert (made.outside / "secret").read_text() == SECRET
    assert (made.outside / "sub" / "b.txt").read_text() == SECRET
    assert sorted(path.name for path in made.outside.rglob("*")) == ["b.txt", "secret", "sub"]
    assert sorted(path.name for path in made.data.iterdir()) == ["keys.json", "legation.db", "server.json"]
    assert made.leftovers() == []
