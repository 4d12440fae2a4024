"""The built wheel, in an environment with nothing but it and what it names."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from tests.fresh_clone import INSTALL_LIMIT, ROOT, fresh_clone, newcomer_environment

import legation


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
    assert "legation/approvals/policy/starters/careful.yaml" in names
    assert "legation/agents/rehearsal/__main__.py" in names
    assert "legation/agents/install/lock.json" in names
    # What only those run who work on Legation stays in `tools/`.
    assert not [name for name in names if "schemas" in name or "make_" in name or "reference" in name]
    assert {name.split("/")[0] for name in names} == {
        "legation",
        f"legation-{legation.__version__}.dist-info",
    }


@pytest.mark.network
@pytest.mark.timeout(2 * INSTALL_LIMIT)
def test_the_wheel_installs_and_runs_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    env = newcomer_environment(tmp_path / "home")
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    bin_ = tmp_path / "venv" / "bin"

    def run(*argv: str) -> str:
        return subprocess.run(
            argv, cwd=tmp_path, env=env, check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT
        ).stdout

    pip = (str(bin_ / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    run(*pip, "--require-hashes", "-r", str(ROOT / "requirements/run.txt"))
    run(*pip, "--no-deps", str(wheel))
    assert run(str(bin_ / "legation"), "--version") == f"legation {legation.__version__}\n"
    assert "left behind: nothing" in run(str(bin_ / "legation"), "demo", "--check")
