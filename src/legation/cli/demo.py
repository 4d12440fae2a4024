"""`legation demo`: the first minute. A real agent process fixes a bug in a small repository, made for it; you decide."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import legation
from legation.agents import catalogue
from legation.approvals.trace.export import verify_lines, whole_lines
from legation.cli.approver import TerminalApprover, open_tty
from legation.cli.command import Console
from legation.cli.door import TRACE
from legation.cli.exec import Done, Job, exit_code, run_turn, show_changes
from legation.cli.folders import Folders
from legation.cli.view import Renderer, Screen
from legation.host.options import AgentDefinition
from legation.host.requests.handlers import Approver
from legation.proc.tree import own_children
from legation.settings import Settings, load
from legation.store.jsonl import JsonlReader
from legation.wire.action import Ask, Decision

AUTOPILOT_AFTER = 20.0  # seconds a person has before the demo answers for itself
PACE = 0.04  # seconds between pieces of text, so that a person can follow
PROMPT = "One test fails in this repository. Find out why and fix it."

# What `--check` insists on: every line of the first minute, as far as it exists.
_YES = "approved · demo:autopilot"
PROMISES = (
    ("the plan is shown", "plan: ▸ Run the tests"),
    ("the tests are run by permission, and fail", f"{_YES} · Run python -m unittest:", "✗ Run python"),
    ("the edit is asked about", f"{_YES} · Edit pages.py"),
    ("the edit is made", "✓ Edit pages.py"),
    ("the tests pass", "✓ Run python -m unittest\n", "All 4 tests pass"),
    ("the diff is shown", "+    return list(range(1, page_count(total, size) + 1))"),
    ("the size of the change is told", "1 file(s) changed, +1 -1"),
    ("the record is whole", "0 lost, 0 doubled"),
    ("nothing is left", "left behind: nothing"),
    ("the next step is named", "legation exec --agent rehearsal"),
)


def demo(
    *,
    check: Annotated[
        bool, Parameter(negative="", help="Headless: assert every line and say which one is missing.")
    ] = False,
) -> int:
    """Watch the first minute: a scripted agent fixes a bug in a small repository, and asks you on the way.

    No key, no account, no network. Without a terminal, or after 20 seconds, a visible autopilot answers.
    """
    if check:
        return _check()
    tty = open_tty()
    person = None if tty is None else TerminalApprover(tty)
    return _show(Console(), load({}, os.environ), person, PACE)


class Autopilot:
    """An approver in place of a person who is not there. In the demo only: elsewhere silence stays no."""

    def __init__(self, out: Console, person: Approver | None) -> None:
        self._out = out
        self._person = person

    async def decide(self, ask: Ask) -> Decision:
        if self._person is not None:
            try:
                async with asyncio.timeout(AUTOPILOT_AFTER):
                    return await self._person.decide(ask)
            except TimeoutError:
                self._out.say(f"nobody answered for {AUTOPILOT_AFTER:g} s", "yellow")
        return Decision("approved", "demo:autopilot", "nobody is at the terminal, and this is only a demo")


def _show(out: Console, settings: Settings, person: Approver | None, pace: float) -> int:
    version = legation.__version__
    out.say(f"Legation {version}, the first minute: an agent fixes a bug, and you are in charge.", "bold")
    with tempfile.TemporaryDirectory(prefix="legation-demo-") as place:
        repository = Path(place) / "pages"
        make_demo_repo(repository)
        # In a folder of its own, for whoever has a shell here.
        program, *args = catalogue.command_of("rehearsal")
        args += ["--execute", "--pace", str(pace)]
        agent = AgentDefinition(id="rehearsal", command=program, args=tuple(args), cwd=repository)
        job = Job(agent, repository, PROMPT)
        done = run_turn(job, replace(settings, policy=None), Screen(Renderer(out)), Autopilot(out, person))
    out.say()
    show_changes(out, done.changes)
    _account(out, done, Folders(settings.data_dir), Path(place))
    return exit_code(done)


def _account(out: Console, done: Done, folders: Folders, place: Path) -> None:
    """Say what was kept, what was left, and what to try next."""
    reader = JsonlReader(folders.sessions / done.session_id, done.session_id)
    seqs = [event.seq for batch in reader.batches(0, lambda _: None) for event in batch]
    lost, doubled = reader.info().head - len(set(seqs)), len(seqs) - len(set(seqs))
    out.say(f"on the record: {len(seqs)} events, {lost} lost, {doubled} doubled", "bold")
    out.say(f"trace verify: {_verified(folders.sessions / done.session_id / TRACE)}", "bold")
    out.say(f"left behind: {', '.join(_left_behind(folders, place)) or 'nothing'}", "bold")
    out.say()
    out.say("Next, in a folder of yours:")
    out.say('  legation exec --agent rehearsal "fix the failing test"')
    out.say('  legation exec --command "any-acp-agent --its-flags" "what to do"')
    out.say(f"  legation events {done.session_id}")


def _verified(trace: Path) -> str:
    if not trace.exists():
        return "nothing was asked"
    report = verify_lines(whole_lines(trace))
    return f"ok, {report.steps} steps" if report.ok else report.faults[0].what


def _left_behind(folders: Folders, place: Path) -> list[str]:
    processes = [f"process {pid}" for pid in own_children()]
    files = [str(path) for path in (place, *folders.data.glob("agents/*/*/tmp/*")) if path.exists()]
    return processes + files


def _check() -> int:
    """Show the same as anybody sees, without a terminal, in a data folder of its own."""
    seen = io.StringIO()
    with tempfile.TemporaryDirectory(prefix="legation-check-") as data:
        code = _show(Console(seen), load({"data_dir": Path(data)}, {}), None, 0.0)
    transcript = seen.getvalue()
    sys.stdout.write(transcript)
    missing = [what for what, *lines in PROMISES if not all(line in transcript for line in lines)]
    for what, *_ in PROMISES:
        print(f"{'MISSING' if what in missing else 'held':<8}{what}")
    print(f"check: {len(PROMISES) - len(missing)} of {len(PROMISES)} hold, exit code {code}")
    return 1 if missing else code


# The small repository: one module, one off-by-one bug, one failing test.

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
