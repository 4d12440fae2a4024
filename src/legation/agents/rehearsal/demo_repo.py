"""The small repository of the first minute: one module, one off-by-one bug, one failing test."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

GIT_LIMIT = 30.0  # git's time for one command on four small files

README = """\
# pages

Splits a list into numbered pages. Run the tests with `python -m unittest`.
"""

PAGES = '''\
"""Split a list into numbered pages."""


def page_count(total: int, size: int) -> int:
    """How many pages it takes to show `total` items, `size` on each."""
    if size < 1:
        raise ValueError("a page holds at least one item")
    return (total + size - 1) // size


def page_items(items: list[str], number: int, size: int) -> list[str]:
    """The items of one page; the first page is number 1."""
    start = (number - 1) * size
    return items[start : start + size]


def page_numbers(total: int, size: int) -> list[int]:
    """The numbers below the list, from 1 to the last page."""
    return list(range(1, page_count(total, size)))
'''

TESTS = """\
import unittest

from pages import page_count, page_items, page_numbers


class PagesTest(unittest.TestCase):
    def test_a_last_page_that_is_not_full_counts(self) -> None:
        self.assertEqual(page_count(45, 10), 5)

    def test_a_page_holds_at_least_one_item(self) -> None:
        with self.assertRaises(ValueError):
            page_count(45, 0)

    def test_the_second_page_starts_where_the_first_ends(self) -> None:
        self.assertEqual(page_items(list("abcde"), 2, 2), ["c", "d"])

    def test_every_page_has_a_number(self) -> None:
        self.assertEqual(page_numbers(45, 10), [1, 2, 3, 4, 5])


if __name__ == "__main__":
    unittest.main()
"""

FILES: Mapping[str, str] = {
    "README.md": README,
    "pages.py": PAGES,
    "test_pages.py": TESTS,
    ".gitignore": "__pycache__/\n",
}


def make_demo_repo(folder: Path) -> None:
    """Writes the files, and commits them where git is to be had."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    if git := shutil.which("git"):
        # An empty template: no sample hooks, nothing of the machine's own.
        _git(git, folder, "init", "--quiet", "--initial-branch=main", "--template=")
        _git(git, folder, "add", "--all")
        _git(git, folder, "commit", "--quiet", "--no-verify", "--message=Pages, with a bug")


def _git(git: str, folder: Path, *arguments: str) -> None:
    settings = {
        "user.name": "Rehearsal",
        "user.email": "rehearsal@example.invalid",
        "core.hooksPath": os.devnull,
        "commit.gpgSign": "false",
        "core.autocrlf": "false",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    subprocess.run([git, *options, *arguments], cwd=folder, env=env, check=True, timeout=GIT_LIMIT)
