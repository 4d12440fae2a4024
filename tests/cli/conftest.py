from pathlib import Path

import pytest

from legation.cli.demo import make_demo_repo


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "pages"
    make_demo_repo(folder)
    return folder
