import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.cli import AtTerminal, environment, json_lines, legation, rehearse

from legation.agents.rehearsal.demo_repo import make_demo_repo
from legation.proc.kernel import process

pytestmark = pytest.mark.heavy  # a process or more for each test

FIX = ("exec", "--agent", "rehearsal", "fix the failing test")
FIXED = "+    return list(range(1, page_count(total, size) + 1))"


def test_yes_approves_and_the_diff_is_shown_at_the_end(home: Path, repo: Path) -> None:
    done = legation(home, *FIX, "--yes", cwd=repo)
    assert done.returncode == 0, done.stderr
    assert "approved · flag --yes · Edit pages.py" in done.stdout
    assert FIXED in done.stdout
    assert "1 file(s) changed, +1 -1" in done.stdout
    assert "size) + 1))" in (repo / "pages.py").read_text()


def test_unattended_denies_and_nothing_changes(home: Path, repo: Path) -> None:
    done = legation(home, *FIX, "--unattended", cwd=repo)
    assert done.returncode == 0
    assert "denied · unattended · Edit pages.py" in done.stdout
    assert "no file changed" in done.stdout


def test_without_a_terminal_nobody_is_asked_and_it_is_denied(home: Path, repo: Path) -> None:
    done = legation(home, *FIX, stdin="y\ny\n", cwd=repo)
    assert "denied" in done.stdout
    assert "no file changed" in done.stdout


def test_a_person_says_yes(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *FIX, cwd=repo)
    shown = terminal.until("Allow it, once?")
    assert "rehearsal asks: Edit pages.py" in shown
    assert FIXED in shown
    terminal.type("y\n")
    assert terminal.end() == 0
    assert "approved · person tester · Edit pages.py" in terminal.text
    assert "1 file(s) changed" in terminal.text


def test_a_person_says_no(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *FIX, cwd=repo)
    terminal.until("Allow it, once?")
    terminal.type("n\n")
    assert terminal.end() == 0
    assert "denied · person tester" in terminal.text
    assert "no file changed" in terminal.text


def test_what_is_no_answer_is_asked_again_and_never_consent(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *FIX, cwd=repo)
    terminal.until("Allow it, once?")
    terminal.text = ""
    terminal.type("\n")
    terminal.until("Allow it, once?")
    terminal.text = ""
    terminal.type("maybe\n")
    terminal.until("Allow it, once?")
    terminal.type("n\n")
    assert terminal.end() == 0
    assert "no file changed" in terminal.text


def test_a_person_cancels_the_turn_at_the_question(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *FIX, cwd=repo)
    terminal.until("Allow it, once?")
    terminal.type("c\n")
    assert terminal.end() == 130
    assert "cancelled · person tester" in terminal.text
    assert "stopped: cancelled" in terminal.text


def test_ctrl_c_cancels_the_turn(home: Path, repo: Path) -> None:
    script = rehearse("say I am busy", "stall 300")
    terminal = AtTerminal(home, "exec", "--agent", "rehearsal", script, cwd=repo)
    terminal.until("I am busy")
    terminal.interrupt()
    assert terminal.end() == 130
    assert "cancelling; Ctrl-C again" in terminal.text


def test_ctrl_c_twice_stops_an_agent_that_does_not_listen(home: Path, repo: Path) -> None:
    script = rehearse("say I do not listen", "stall-hard 300")
    terminal = AtTerminal(home, "exec", "--agent", "rehearsal", script, "--stop-grace", "0s", cwd=repo)
    terminal.until("I do not listen")
    terminal.interrupt()
    terminal.until("Ctrl-C again")
    terminal.interrupt()
    assert terminal.end() == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_the_terminal_stops_the_agent_and_its_tree(
    home: Path, repo: Path, number: signal.Signals
) -> None:
    script = rehearse("spawn-tree", "say I am busy", "stall 300")
    terminal = AtTerminal(home, "exec", "--agent", "rehearsal", script, "--stop-grace", "0s", cwd=repo)
    terminal.until("I am busy")
    os.kill(terminal.pid, number)
    assert terminal.end() == 130
    assert "it was stopped" in terminal.text
    assert "none running, none left behind" in legation(home, "doctor").stdout


def test_the_whole_tree_is_gone_afterwards(home: Path, repo: Path) -> None:
    done = legation(home, "exec", "--agent", "rehearsal", "--yes", rehearse("spawn-tree"), cwd=repo)
    pids = [int(number) for number in re.findall(r"\b\d{2,7}\b", done.stdout.split("no file changed")[0])]
    assert len(pids) >= 3
    assert [pid for pid in pids if process(pid)] == []


def test_json_prints_every_event_with_its_number(home: Path, repo: Path) -> None:
    done = legation(home, *FIX, "--yes", "--json", cwd=repo)
    events = json_lines(done.stdout)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    types = [event["type"] for event in events]
    assert types[-1] == "session-status"
    assert {"prompt-started", "permission-asked", "permission-answered", "prompt-finished", "plan"} <= set(
        types
    )


def test_any_acp_agent_runs_by_its_command(home: Path, repo: Path) -> None:
    command = f"{sys.executable} -m legation.agents.rehearsal"
    done = legation(home, "exec", "--command", command, rehearse("say hello there"), cwd=repo)
    assert done.returncode == 0
    assert "hello there" in done.stdout


def test_the_prompt_can_come_from_stdin(home: Path, repo: Path) -> None:
    done = legation(home, "exec", "--agent", "rehearsal", stdin=rehearse("say from stdin"), cwd=repo)
    assert "from stdin" in done.stdout


def test_the_agent_sees_only_what_it_was_given(home: Path, repo: Path) -> None:
    script = rehearse("env SECRET_KEY GIVEN PASSED HOME LEGATION_CHILD")
    argv = ("exec", "--agent", "rehearsal", script, "--env", "GIVEN=one", "--env", "PASSED")
    done = legation(home, *argv, cwd=repo, SECRET_KEY="canary-secret", PASSED="two")
    assert "canary-secret" not in done.stdout + done.stderr
    assert "GIVEN" in done.stdout
    assert "PASSED" in done.stdout


MISTAKES = [
    (("exec", "do it"), 2, "--agent NAME or --command"),
    (("exec", "--agent", "rehearsal", "--command", "x", "do it"), 2, "not both"),
    (("exec", "--agent", "rehersal", "do it"), 3, "known are: rehearsal"),
    (("exec", "--command", "", "do it"), 2, "empty --command"),
    (("exec", "--command", "'", "do it"), 2, "check its quotes"),
    (("exec", "--command", "no-such-agent-program", "do it"), 2, "no-such-agent-program"),
    (("exec", "--agent", "rehearsal"), 2, "without a prompt"),
    (("exec", "--agent", "rehearsal", " "), 2, "without a prompt"),
    (("exec", "--agent", "rehearsal", "--cwd", "missing", "do it"), 2, "no folder"),
    (("exec", "--agent", "rehearsal", "--yes", "--unattended", "do it"), 2, "--yes or --unattended"),
    (("exec", "--agent", "rehearsal", "--env", "NOT_SET", "do it"), 2, "--env NOT_SET=VALUE"),
    (("exec", "--agent", "rehearsal", "--env", "=x", "do it"), 2, "without a name"),
    (("exec", "--command", "..", "do it"), 2, "no program"),
    (("exec", "--agent", "rehearsal", "fix", "it"), 2, "legation exec --help"),
    (("exec", "--agent", "rehearsal", "--idle-timeout", "soon", "do it"), 2, "--idle-timeout"),
    (("exec", "--command", "true", "do it"), 7, "exit code 0"),
    (("exec", "--command", "sh -c 'echo broken >&2; exit 3'", "do it"), 7, "broken"),
    (("exec", "--command", "cat", "--start-timeout", "1s", "do it"), 6, "initialize"),
    (("exec", "--command", "sleep 60", "--start-timeout", "0.5s", "do it"), 8, "0.5 s"),
]


@pytest.mark.parametrize(("argv", "code", "told"), MISTAKES, ids=lambda value: str(value)[:60])
def test_a_mistake_is_one_clear_message(home: Path, argv: tuple[str, ...], code: int, told: str) -> None:
    done = legation(home, *argv)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert told in done.stderr
    assert "cannot" in done.stderr
    assert not list((home / ".local/share/legation/sessions").glob("*"))  # nothing happened, nothing is kept


def test_a_crash_of_the_agent_is_told_with_its_words_and_kept_on_record(home: Path, repo: Path) -> None:
    script = rehearse("say so far so good", "stderr 200", "crash 7")
    done = legation(home, "exec", "--agent", "rehearsal", script, cwd=repo)
    assert done.returncode == 7
    assert "so far so good" in done.stdout
    assert "exit code 7" in done.stderr
    assert "exit code 7" in legation(home, "events", "last").stdout


def test_an_error_answer_is_told(home: Path, repo: Path) -> None:
    done = legation(home, "exec", "--agent", "rehearsal", rehearse("error -32603 out of luck"), cwd=repo)
    assert done.returncode == 6
    assert "out of luck" in done.stdout


def test_a_stuck_agent_runs_into_the_idle_limit(home: Path, repo: Path) -> None:
    argv = ("exec", "--agent", "rehearsal", rehearse("stall 300"), "--idle-timeout", "1s")
    done = legation(home, *argv, cwd=repo)
    assert done.returncode == 8
    assert "idle_timeout" in done.stderr


def test_a_data_folder_that_cannot_be_written_is_named(home: Path, repo: Path) -> None:
    blocked = home / "file"
    blocked.write_text("")
    done = legation(home, *FIX, "--data-dir", str(blocked / "data"), cwd=repo)
    assert done.returncode == 9
    assert str(blocked) in done.stderr
    assert "Traceback" not in done.stderr


def test_two_at_once_do_not_disturb_each_other(home: Path, tmp_path: Path) -> None:
    repos = [tmp_path / "one", tmp_path / "two"]
    running = []
    for folder in repos:
        make_demo_repo(folder)
        argv = [sys.executable, "-m", "legation", *FIX, "--yes"]
        running.append(subprocess.Popen(argv, cwd=folder, env=environment(home), stdout=subprocess.PIPE))
    for process_ in running:
        out, _ = process_.communicate(timeout=60)
        assert process_.returncode == 0
        assert b"1 file(s) changed" in out
    assert len(legation(home, "events").stdout.splitlines()) == 2
