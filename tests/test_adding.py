"""The stubs of docs/adding.md: each applied to a copy of the tree, which then keeps its rules and passes the tests it names."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fresh_clone import ROOT, fresh_clone, newcomer_environment
from tools.rules import committed_files, to_add

from legation.store.database.migrations import newest
from legation.wire.events import VERSION

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]  # four commands, each within its limit

LIMIT = 300.0  # seconds for the checks of one copy: their time, on a loaded machine
SECTIONS = {
    section.partition("\n")[0]: section
    for section in (ROOT / "docs" / "adding.md").read_text().split("\n## ")[1:]
}


def run(copy: Path, home: Path, *argv: str, given: str = "") -> str:
    environment = newcomer_environment(home) | {"PYTHONPATH": f"{copy / 'src'}:{copy}"}
    done = subprocess.run(
        argv,
        cwd=copy,
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stub_of(section: str) -> str:
    """The diff, with the numbers that are next by now."""
    stub = "".join(re.findall(r"^```diff\n(.*?)^```$", section, re.DOTALL | re.MULTILINE))
    stub = re.sub(r"/migrations/\d{4}_", f"/migrations/{newest() + 1:04d}_", stub)
    return re.sub(
        r"^-VERSION = \d+\n\+VERSION = \d+$",
        f"-VERSION = {VERSION}\n+VERSION = {VERSION + 1}",
        stub,
        flags=re.MULTILINE,
    )


@pytest.fixture(scope="module")
def only_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fresh_clone(tmp_path_factory.mktemp("stubs") / "copy")


@pytest.fixture
def copy(only_copy: Path) -> Iterator[Path]:
    """One for all stubs, so that it is compiled once; a test leaves it as it was."""
    before = {*committed_files(only_copy)}
    yield only_copy
    for name in {*committed_files(only_copy)} - before:
        (only_copy / name).unlink()
    fresh_clone(only_copy)


@pytest.mark.parametrize("thing", SECTIONS)
def test_a_stub_is_all_there_is_to_add(thing: str, copy: Path, tmp_path: Path) -> None:
    stub = stub_of(SECTIONS[thing])
    tests = re.findall(r"`(tests/[\w/.]+\.py(?:::\w+)?)`", SECTIONS[thing])
    assert stub
    assert tests
    home = tmp_path / "home"
    run(copy, home, "git", "apply", "-C1", given=stub)
    run(copy, home, sys.executable, "-m", "tools.pages")
    run(copy, home, sys.executable, "-m", "ruff", "check", "-q", ".")
    own = f"--basetemp={tmp_path / 'pytest'}"
    checks = ("-m", "pytest", "-q", "-k", "not postgres", own, "tests/test_tree.py", *tests)
    passed = run(copy, home, sys.executable, *checks)
    assert " passed" in passed
    assert "skipped" not in passed


@pytest.mark.parametrize("thing", SECTIONS)
def test_a_stub_touches_the_files_that_contributing_names(thing: str) -> None:
    touched = re.findall(r"^\+\+\+ b/(\S+)$", SECTIONS[thing], re.MULTILINE)
    named = to_add((ROOT / "CONTRIBUTING.md").read_text())[thing.lower()]
    patterns = [re.sub(r"<\w+>", r"\\w+", re.escape(path)) for path in named]
    for path in touched:
        assert any(re.fullmatch(pattern, path) for pattern in patterns), path
    assert len(set(touched)) <= len(named)
