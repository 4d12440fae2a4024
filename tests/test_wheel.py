"""The built wheel. That it installs and runs with nothing but what it names, `test_readme.py` shows."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.fresh_clone import fresh_clone, newcomer_environment

import legation

pytestmark = pytest.mark.heavy

DASHBOARD = (
    "index.html",
    "app.js",
    "style/tokens.css",
    "pages/inbox.js",
    "vendor/preact.js",
    "vendor/LICENSES.txt",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    clone = fresh_clone(folder / "clone")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(
        build, cwd=clone, env=newcomer_environment(folder / "home"), check=True, capture_output=True
    )
    (built,) = folder.glob("legation-*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "legation/py.typed" in names
    assert "legation/store/database/migrations/0001_spine.sql" in names
    assert "legation/server/assets/sign_in/sign-in.html" in names
    assert {f"legation/dashboard/{each}" for each in DASHBOARD} <= set(names)
    assert "legation/approvals/policy/starters/careful.yaml" in names
    assert "legation/agents/rehearsal/__main__.py" in names
    assert "legation/agents/install/lock.json" in names
    # What only those run who work on Legation stays in `tools/`.
    assert not [name for name in names if "schemas" in name or "make_" in name or "reference" in name]
    assert {name.split("/")[0] for name in names} == {
        "legation",
        f"legation-{legation.__version__}.dist-info",
    }
