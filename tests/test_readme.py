"""The README, typed in its order at a terminal, by somebody who has just installed the command as it says."""

from __future__ import annotations

import ast
import os
import pty
import re
import select
import signal
import time
from pathlib import Path

import pytest
from tests.fresh_clone import INSTALL_LIMIT, ROOT, fresh_clone, newcomer_environment

from legation.cli.approver import ANSWERS
from legation.cli.demo import QUESTION, make_demo_repo

pytestmark = [pytest.mark.heavy, pytest.mark.network, pytest.mark.timeout(2 * INSTALL_LIMIT)]

QUESTIONS = (ANSWERS, QUESTION)  # of `exec`, and of `run`
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

# Another terminal: it stays there, and who goes on here waits until it is up. An agent takes a moment until it asks.
UP = 'legation() { if [ "$1" = up ]; then command legation "$@" & until command legation status; do sleep 1; done; elif [ "$1" = ps ]; then until command legation approvals --json | grep apr_; do sleep 1; done; command legation ps; else command legation "$@"; fi; }'


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


def type_at_a_terminal(script: str, folder: Path, env: dict[str, str]) -> tuple[int, str]:
    """Run it by bash, stop at the first command that fails, and say yes to what is asked. The exit code, and what was shown."""
    shell, terminal = pty.fork()
    if shell == 0:
        os.chdir(folder)
        os.execve("/bin/bash", ["bash", "-euc", script], env)
    shown, asked, deadline = "", 0, time.monotonic() + INSTALL_LIMIT
    while select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))[0]:
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # nobody is left at its other end
            break
        if sum(map(shown.count, QUESTIONS)) > asked:
            asked += 1
            os.write(terminal, b"y\n")
    else:
        os.killpg(shell, signal.SIGKILL)
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(shell, 0)[1]), shown.replace("\r\n", "\n")


def test_the_readme_can_be_typed_in_its_order(tmp_path: Path) -> None:
    clone, home = fresh_clone(tmp_path / "clone"), tmp_path / "home"
    env = newcomer_environment(home) | {"USER": "you", "TERM": "dumb"}
    make_demo_repo(home / "my-project")
    first, *rest = blocks()
    assert first.startswith("./dev up ")  # tests/test_newcomer.py types these
    code, shown = type_at_a_terminal("\n".join(["set -o pipefail", UP, *rest]), clone, env)
    assert code == 0, shown
    for told in (
        "1 file(s) changed, +1 -1",
        " succeeded\n",  # the run
        "Legation is up: http://",
        "rehearsal",
        "Run python -m unittest",  # what waits, on the screen and in the list
        "waits for you (1)",
        "human_approval by careful:ask",
        "stopped (pid ",
    ):
        assert told in shown, shown


# What only those know who have read our papers, or the code.
INNER_WORDS = re.compile(r"\b(seed(s|'s)?|spine|foundation)\b", re.IGNORECASE)
PAGES = [
    "README.md",
    "CHANGELOG.md",
    *(f"{each.relative_to(ROOT)}" for each in (ROOT / "docs").rglob("*.md")),
]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_for_users_names_public_systems_and_not_our_papers(page: str) -> None:
    assert not INNER_WORDS.search((ROOT / page).read_text())


def test_only_the_page_that_explains_the_door_uses_the_word() -> None:
    used = {
        page
        for page in PAGES
        if page.startswith("docs/") and re.search(r"\bdoor\b", (ROOT / page).read_text())
    }
    assert used <= {"docs/host.md"}


def test_what_the_program_says_names_them_neither() -> None:
    """Messages, help and descriptions of the API: every text in the code but the docstrings that nobody is shown."""
    said: dict[str, str] = {}
    for file in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(file.read_text())
        shown = (
            "cli" in file.parts or "api" in file.parts or "routes" in file.parts
        )  # help, and the API's document
        nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
        hidden = {
            id(node.body[0].value)
            for node in nodes
            if node.body
            and isinstance(node.body[0], ast.Expr)
            and (isinstance(node, ast.Module) or not shown)
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in hidden:
                continue
            if found := INNER_WORDS.search(node.value):
                said[f"{file.relative_to(ROOT)}:{node.lineno}"] = found[0]
    assert said == {}
