import threading
from pathlib import Path

import pytest

from legation.agents.rehearsal.bugfix import TEST_COMMAND, Search, TestRun, apply, candidates, search
from legation.agents.rehearsal.work import run_process

pytestmark = pytest.mark.heavy  # a process or more for each test


TEST = """
import unittest
from code_under import f


class T(unittest.TestCase):
    def test_f(self):
        for value, expected in {cases}:
            self.assertEqual(f(value), expected)
"""
CALM = threading.Event()


def fix(folder: Path, body: str, cases: str) -> Search:
    (folder / "code_under.py").write_text(f'def f(n):\n    """{body}"""\n    return {body}\n')
    (folder / "test_f.py").write_text(TEST.replace("{cases}", cases))
    run = TestRun.of(run_process(TEST_COMMAND, folder, CALM))
    assert run.failing == (("test_f", "test_f.T.test_f"),)
    return search(folder, candidates(folder, run.failing), CALM)


@pytest.mark.parametrize(
    ("body", "cases", "fixed"),
    [
        ("sum(range(1, n))", "[(3, 6)]", "return sum(range(1, n + 1))"),
        ("len(range(n))", "[(3, 4)]", "return len(range(n + 1))"),
        ("n < 10", "[(9, True), (10, True), (11, False)]", "return n <= 10"),
        ("(n + 0) < len('é') * 10", "[(9, True), (10, True)]", "return (n + 0) <= len('é') * 10"),
        ("n >= 10", "[(10, False), (11, True)]", "return n > 10"),
        ("n == 1", "[(1, False), (2, True)]", "return n != 1"),
        ("n + 1", "[(3, 3)]", "return n"),
        ("n - 1", "[(3, 4)]", "return n + 1"),
        ("n // 10", "[(45, 5), (50, 5)]", "return -(-n // 10)"),
        ("n > 1 and n < 5", "[(1, True), (9, True)]", "return n > 1 or n < 5"),
        ("bool(n and True)", "[(1, False)]", "return bool(n and False)"),
    ],
)
def test_a_classic_slip_is_found_and_the_folder_left_alone(
    tmp_path: Path, body: str, cases: str, fixed: str
) -> None:
    found = fix(tmp_path, body, cases).fix
    assert found is not None
    assert (found.path, found.line, found.new) == ("code_under.py", 3, fixed)
    text = (tmp_path / "code_under.py").read_text()
    assert f"return {body}\n" in text
    assert apply(found, text).endswith(f"    {fixed}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["code_under.py", "test_f.py"]


def test_what_it_does_not_know_it_does_not_fix(tmp_path: Path) -> None:
    result = fix(tmp_path, "n * 2 < 3", "[(1, 'surprise')]")
    assert result.fix is None
    assert result.tries > 0


def test_a_cancel_stops_the_search(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f(n):\n    return n < 1\n")
    cancelled = threading.Event()
    cancelled.set()
    assert search(tmp_path, candidates(tmp_path, ()), cancelled) == Search(None, 0)
