"""`legation agents`, as a command of its own; installing is also told apart in tests/agents/install."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents.catalogue.machine import CLAUDE, CODEX, Machine, disguised
from tests.agents.install.local_registry import LocalRegistry, local_registry
from tests.cli.command import AtTerminal, json_lines, legation
from tests.server.sessions import mirror_agent

from legation.cli.backup import ProgressLine
from legation.cli.main import run

pytestmark = pytest.mark.heavy  # a process or more for each test

ASKS = """#!/bin/sh
printf 'code: '
read code
mkdir -p "$HOME/.claude"
echo "$code $*" > "$HOME/.claude/.credentials.json"
env > "$HOME/seen"
echo signed in
exit 0
"""


@pytest.fixture
def machine(home: Path) -> Machine:
    """Its data folder is where the command looks for it."""
    made = Machine(home)
    (home / ".local/share").mkdir(parents=True)
    made.data.mkdir()
    (home / ".local/share/legation").symlink_to(made.data)
    return made


def test_a_bare_noun_lists_what_there_is_and_what_to_do_next(home: Path) -> None:
    done = legation(home, "agents")
    assert done.returncode == 0, done.stderr
    rows = {row.split()[0]: row for row in done.stdout.splitlines()}
    assert list(rows)[:5] == ["name", "claude", "codex", "opencode", "amp"]
    assert list(rows)[-2:] == ["rehearsal", "mock"]
    assert rows["claude"].endswith("legation agents install claude")
    assert "built in" in rows["rehearsal"]


def test_the_list_for_programs_says_which_keys_are_set_and_never_their_values(home: Path) -> None:
    done = legation(home, "agents", "--json", OPENAI_API_KEY="canary")
    agents = {agent["name"]: agent for agent in json_lines(done.stdout)}
    assert agents["codex"]["credentials"] == {"OPENAI_API_KEY": True, "CODEX_API_KEY": False}
    assert (agents["codex"]["sign_in"], agents["codex"]["how"], agents["codex"]["driver"]) == (
        "key",
        None,
        "codex",
    )
    assert agents["rehearsal"]["command"][1:] == ["-P", "-m", "legation.agents.rehearsal"]
    assert "canary" not in done.stdout


def test_help_teaches_and_names_every_command(home: Path) -> None:
    shown = legation(home, "agents", "--help").stdout
    for word in ("install", "verify", "login", "doctor", "uninstall", "models", "modes", "[agents.mine]"):
        assert word in shown
    assert "No script of a package is run" in " ".join(
        legation(home, "agents", "install", "--help").stdout.replace("│", "").split()
    )


WRONG = [
    (("agents", "install", "cloude"), 3, "did you mean claude?"),
    (("agents", "doctor", "zzz"), 3, "known are claude, codex"),
    (("agents", "install", "codex", "--version", "0.0.0"), 3, "the lock of this Legation has"),
    (("agents", "uninstall", "codex"), 3, "it is not installed"),
    (("agents", "verify", "codex"), 3, "legation agents install codex"),
    (("agents", "verify", "rehearsal"), 3, "it ships with Legation"),
    (("agents", "login", "rehearsal"), 6, "it needs none"),
    (("agents", "login", "claude"), 10, "legation agents install claude"),
    (("agents", "lgoin", "claude"), 2, "cannot read the command line"),
]


@pytest.mark.parametrize(("argv", "code", "said"), WRONG, ids=[" ".join(argv) for argv, _, _ in WRONG])
def test_what_is_wrong_is_one_line_with_what_to_do(
    home: Path, argv: tuple[str, ...], code: int, said: str
) -> None:
    done = legation(home, *argv)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("legation: cannot ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_doctor_starts_what_is_here(home: Path) -> None:
    done = legation(home, "agents", "doctor")
    assert done.returncode == 0, done.stdout
    assert "ok      rehearsal: built in" in done.stdout
    assert "absent  claude" in done.stdout
    assert legation(home, "agents", "doctor", "claude").returncode == 1
    (health,) = json_lines(legation(home, "agents", "doctor", "mock", "--json").stdout)
    assert (health["agent"], health["verdict"]) == ("mock", "ok")


def test_modes_and_models_say_who_says_so(home: Path) -> None:
    first = legation(home, "agents", "modes", "rehearsal")
    assert "asked of the agent just now" in first.stdout
    assert "default (default)" in first.stdout
    (kept,) = json_lines(legation(home, "agents", "models", "rehearsal", "--json").stdout)
    assert kept["source"] == "kept"
    locked = legation(home, "agents", "models", "codex")
    assert "as known when this Legation was made" in locked.stdout
    assert "it could not be asked" in locked.stdout


def test_variants_are_listed_with_the_models(machine: Machine, home: Path) -> None:
    machine.custom(f'[agents.mine]\ncommand = "{sys.executable}"\nargs = ["{mirror_agent.__file__}"]\n')
    assert "variants of small: low (default), high" in legation(home, "agents", "models", "mine").stdout
    (kept,) = json_lines(legation(home, "agents", "models", "mine", "--json").stdout)
    assert ([each["id"] for each in kept["variants"]], kept["default_variant"]) == (["low", "high"], "low")
    assert "variants" not in legation(home, "agents", "modes", "mine").stdout


def test_an_own_agent_is_listed_and_examined(machine: Machine, home: Path) -> None:
    machine.custom(
        f'[agents.mine]\ntitle = "Mine"\ncommand = "{sys.executable} -m legation.agents.rehearsal"\n'
    )
    assert "custom" in legation(home, "agents").stdout
    assert legation(home, "agents", "doctor", "mine").returncode == 0
    done = legation(home, "agents", "login", "mine")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stanza_that_is_wrong_is_told_with_its_place(machine: Machine, home: Path) -> None:
    machine.custom("[agents.mine]\n")
    done = legation(home, "agents")
    assert done.returncode == 2
    assert "agents.mine.command" in done.stderr


def test_a_changed_file_makes_verify_fail_and_names_it(machine: Machine, home: Path) -> None:
    machine.installed("codex-acp", CODEX, "bin/codex-acp")
    done = legation(home, "agents", "verify")
    assert done.returncode == 1
    assert "bin/codex-acp does not belong there" in done.stdout
    assert "next: legation agents install codex-acp --again" in done.stdout
    (found,) = json_lines(legation(home, "agents", "verify", "codex-acp", "--json").stdout)
    assert found["agent"] == "codex-acp"
    assert legation(home, "agents", "uninstall", "codex-acp").stdout == "removed codex-acp 0.0.1\n"
    assert legation(home, "agents", "verify").returncode == 0


def test_signing_in_is_between_the_person_and_the_agent(machine: Machine, home: Path) -> None:
    machine.installed("claude", CLAUDE, "claude", ASKS)
    refused = legation(home, "agents", "login", "claude")
    assert (refused.returncode, "without a terminal" in refused.stderr) == (2, True)
    at = AtTerminal(home, "agents", "login", "claude")
    at.until("code: ")
    at.type("1234\n")
    at.until("signed in")
    assert at.end() == 0
    own = machine.data / "agents/local/claude/home"
    assert (own / ".claude/.credentials.json").read_text() == "1234 auth login\n"
    assert (
        f"HOME={own}".replace(str(machine.data), str(home / ".local/share/legation"))
        in (own / "seen").read_text()
    )
    assert not (home / ".claude").exists()
    (claude,) = [
        each for each in json_lines(legation(home, "agents", "--json").stdout) if each["name"] == "claude"
    ]
    assert claude["sign_in"] == "signed in"


def test_ctrl_c_ends_a_sign_in(machine: Machine, home: Path) -> None:
    machine.installed("claude", CLAUDE, "claude", ASKS)
    at = AtTerminal(home, "agents", "login", "claude")
    at.until("code: ")
    at.interrupt()
    assert at.end() != 0
    assert not (machine.data / "agents/local/claude/home/.claude").exists()


class Looked(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_that_goes_where_somebody_looks() -> None:
    seen, unseen = Looked(), io.StringIO()
    for out in (seen, unseen):
        with ProgressLine("codex", out, then="unpacking") as progress:
            for done in (1_000_000, 40_000_000, 74_000_000):
                progress(done, 74_000_000)
    shown = seen.getvalue().split("\r")
    assert shown[1:3] == ["codex: 1 of 74 MB", "codex: 74 of 74 MB, unpacking"]
    assert (shown[-2].strip(), shown[-1]) == ("", "")
    assert unseen.getvalue() == ""


# With a lock of the test's own, hence in this process.


@pytest.fixture
def registry(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRegistry]:
    monkeypatch.setenv("LEGATION_DATA_DIR", str(machine.data))
    with local_registry() as served:
        lock, environ = disguised(served), {**served.environ, "PATH": os.environ["PATH"]}
        monkeypatch.setattr("legation.cli.agents.catalogue_of", lambda _: machine.catalogue(lock, **environ))
        yield served


def test_installing_says_what_was_installed_and_what_comes_next(
    registry: LocalRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["agents", "install", "codex-acp"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "codex-acp 7.0.0 is installed\nnext: legation agents login codex-acp\n"
    assert shown.err == ""  # nobody looks at it: no progress
    assert run(["agents", "verify"]) == 0
    assert "as locked" in capsys.readouterr().out
    assert run(["agents", "install", "codex-acp", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "7.0.0"
    assert len(registry.asked) == 1


def test_what_is_built_in_needs_no_installation(
    registry: LocalRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["agents", "install", "mock"]) == 0
    assert "part of Legation" in capsys.readouterr().out
    assert registry.asked == []


def test_an_installation_that_fails_says_why(
    registry: LocalRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.files.clear()
    assert run(["agents", "install", "codex-acp"]) == 10
    assert "the registry does not have it" in capsys.readouterr().err
