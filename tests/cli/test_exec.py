import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agents.bytes_agent import PRELUDE, scripted
from tests.cli.command import AtTerminal, environment, json_lines, legation, rehearse

from legation.approvals.trace.export import verify_lines, whole_lines
from legation.cli.demo import make_demo_repo
from legation.proc.tree import process

pytestmark = pytest.mark.heavy  # a process or more for each test

KILLS = 5
FIX = ("exec", "--agent", "rehearsal", "fix the failing test")
FIXED = "+    return list(range(1, page_count(total, size) + 1))"
TESTS = "Run python -m unittest"
ASKED = (TESTS, f"{TESTS} on changes in a scratch copy", "Edit pages.py", TESTS)  # by whoever fixes it
EDIT = ("exec", "--agent", "rehearsal", rehearse("ask write notes.txt hello"))


def until_asked(terminal: AtTerminal, which: str) -> str:
    """With a yes to all that is asked before."""
    for title in ASKED[: ASKED.index(which)]:
        assert f"rehearsal asks: {title}" in terminal.until("Allow it, once?")
        terminal.text = ""
        terminal.type("y\n")
    return terminal.until("Allow it, once?")


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
    assert f"denied · unattended · {TESTS}: careful:ask: " in done.stdout
    assert "Ran 4 tests" not in done.stdout
    assert "I may not run the tests here" in done.stdout
    assert "no file changed" in done.stdout


def test_unattended_the_tests_run_where_a_rule_allows_them_and_the_edit_is_denied(
    home: Path, repo: Path, rules: Path
) -> None:
    rule = '{id: tests, kind: execute, action: allow, when: {command: {glob: "python -m unittest *"}}}'
    rules.write_text(f"{{name: p, rules: [{rule}, {{id: rest, action: human_approval}}]}}")
    done = legation(home, *FIX, "--unattended", "--policy", str(rules), cwd=repo)
    assert done.returncode == 0
    assert f"by p:tests · {TESTS}" in done.stdout
    assert "Ran 4 tests" in done.stdout
    assert "denied · unattended · Edit pages.py" in done.stdout
    assert "no file changed" in done.stdout


def test_without_a_terminal_nobody_is_asked_and_it_is_denied(home: Path, repo: Path) -> None:
    done = legation(home, *FIX, stdin="y\ny\n", cwd=repo)
    assert "denied" in done.stdout
    assert "no file changed" in done.stdout


def test_a_person_says_yes(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *FIX, cwd=repo)
    shown = until_asked(terminal, "Edit pages.py")
    assert "rehearsal asks: Edit pages.py" in shown
    assert FIXED in shown
    terminal.text = ""
    terminal.type("y\n")
    assert "approved · person tester · Edit pages.py" in terminal.until("Allow it, once?")
    assert f"rehearsal asks: {TESTS}\n" in terminal.text
    terminal.type("y\n")
    assert terminal.end() == 0
    assert "1 file(s) changed" in terminal.text


@pytest.mark.parametrize("what", ASKED[:3])
def test_a_person_says_no(home: Path, repo: Path, what: str) -> None:
    terminal = AtTerminal(home, *FIX, cwd=repo)
    until_asked(terminal, what)
    terminal.type("n\n")
    assert terminal.end() == 0
    assert f"denied · person tester · {what}" in terminal.text
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


def test_a_cancel_that_is_answered_by_the_error_of_a_cancelled_request_is_a_cancel(
    home: Path, repo: Path
) -> None:
    source = """
hello(); session(); prompt = prompted(); update("I am busy")
while read().get("method") != "session/cancel": pass
send(id=prompt, error={"code": -32800, "message": "cancelled"}); stay()
"""
    command = shlex.join(scripted(source, home).argv)
    terminal = AtTerminal(home, "exec", "--command", command, "go", cwd=repo)
    terminal.until("I am busy")
    terminal.interrupt()
    assert terminal.end() == 130


def test_a_cancel_that_is_ignored_until_the_agent_is_killed_is_a_cancel(home: Path, repo: Path) -> None:
    script = rehearse("say I do not listen", "stall-hard 300")
    terminal = AtTerminal(home, "exec", "--agent", "rehearsal", script, "--stop-grace", "0s", cwd=repo)
    terminal.until("I do not listen")
    terminal.interrupt()
    assert terminal.end() == 130


def test_ctrl_c_twice_stops_an_agent_that_does_not_listen(home: Path, repo: Path) -> None:
    script = rehearse("say I do not listen", "stall-hard 300")
    terminal = AtTerminal(home, "exec", "--agent", "rehearsal", script, "--stop-grace", "0s", cwd=repo)
    terminal.until("I do not listen")
    terminal.interrupt()
    terminal.until("Ctrl-C again")
    terminal.interrupt()
    assert terminal.end() == 130
    assert "recorded as ses_" in terminal.text


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


STUBBORN = ("ignore-signals", "ignore-stdin-eof", "recall", "stall-hard 3600")


@pytest.mark.parametrize("how", ["TERM", "Ctrl-C twice"])
def test_an_agent_that_obeys_nothing_is_not_waited_for(home: Path, repo: Path, how: str) -> None:
    """Though it would be given five minutes to end by itself."""
    terminal = AtTerminal(
        home, "exec", "--agent", "rehearsal", rehearse(*STUBBORN), "--stop-grace", "300s", cwd=repo
    )
    terminal.until("prompts before this one")  # its last words
    if how == "TERM":
        os.kill(terminal.pid, signal.SIGTERM)
    else:
        terminal.interrupt()
        terminal.until("Ctrl-C again")
        terminal.interrupt()
    assert terminal.end() == 130
    assert "none running, none left behind" in legation(home, "doctor").stdout
    events = json_lines(legation(home, "events", "last", "--json").stdout)
    exited = next(event for event in events if event["type"] == "agent-exited")
    assert exited["raw"]["signal"] == signal.SIGKILL  # it was asked before


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


def test_an_agent_of_the_catalogue_gets_its_key_and_the_record_does_not(home: Path, repo: Path) -> None:
    agents = home / "agents.toml"
    agents.write_text(
        f'[agents.mine]\ncommand = "{sys.executable} -m legation.agents.rehearsal"\nenv = ["MY_API_KEY"]\n'
    )
    argv = ("exec", "--agent", "mine", rehearse("say canary-secret"), "--json")
    done = legation(home, *argv, cwd=repo, MY_API_KEY="canary-secret", LEGATION_AGENTS=str(agents))
    assert done.returncode == 0, done.stderr
    started, *rest = (each for each in done.stdout.splitlines() if "canary" in each or "redacted" in each)
    assert "prompt-started" in started  # what the user says is the user's
    assert "[redacted:MY_API_KEY]" in "".join(rest)
    assert "canary-secret" not in "".join(rest)


MISTAKES = [
    (("exec", "do it"), 2, "--agent NAME or --command"),
    (("exec", "--agent", "rehearsal", "--command", "x", "do it"), 2, "not both"),
    (("exec", "--agent", "rehersal", "do it"), 3, "did you mean rehearsal?"),
    (("exec", "--agent", "claude-code", "do it"), 3, "did you mean claude?"),
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
    assert "recorded as" not in done.stdout
    assert not list((home / ".local/share/legation/sessions").glob("*"))  # nothing happened, nothing is kept


def test_a_crash_of_the_agent_is_told_with_its_words_and_kept_on_record(home: Path, repo: Path) -> None:
    script = rehearse("say so far so good", "stderr 200", "crash 7")
    done = legation(home, "exec", "--agent", "rehearsal", script, cwd=repo)
    assert done.returncode == 7
    assert "so far so good" in done.stdout
    assert "exit code 7" in done.stderr
    assert "exit code 7" in legation(home, "events", "last").stdout
    (session,) = (path.name for path in (home / ".local/share/legation/sessions").iterdir())
    assert f"recorded as {session}; see it again with: legation events {session}" in done.stdout
    assert (
        "recorded as" not in legation(home, "exec", "--json", "--agent", "rehearsal", script, cwd=repo).stdout
    )


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


# Rules decide.

RULES = """
name: p
loop: off
rules:
  - {id: runs, kind: execute, action: allow}
  - {id: edits, kind: edit, action: supervisor, when: {paths: {under: $WORKSPACE}}}
  - {id: rest, action: deny, message: Leave it.}
"""


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(RULES)
    return path


def traces(home: Path) -> list[Path]:
    return sorted((home / ".local/share/legation/sessions").glob("*/trace.jsonl"))


def steps(trace: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["step"] for line in whole_lines(trace)]


def happened(trace: Path) -> list[str]:
    return [f"{step['step']}/{step['reason']}" if "reason" in step else step["step"] for step in steps(trace)]


def test_what_a_rule_allows_is_not_asked_and_what_it_denies_no_flag_lifts(
    home: Path, repo: Path, rules: Path
) -> None:
    script = rehearse("ask run true", "ask write a.txt hello", "ask something")
    argv = ("exec", "--agent", "rehearsal", script, "--policy", str(rules))
    done = legation(home, *argv, "--yes", cwd=repo)
    assert "allowed by p:runs · Run true\n" in done.stdout
    assert "approved · flag --yes · Write a.txt: p:edits: approved beforehand with --yes" in done.stdout
    assert "denied by p:rest · something: Leave it.\n" in done.stdout
    assert (repo / "a.txt").read_text() == "hello"
    done = legation(home, *argv, "--unattended", cwd=repo)
    assert "allowed by p:runs · Run true\n" in done.stdout
    assert "denied · unattended · Write a.txt: p:edits: " in done.stdout


def test_what_rules_decide_is_dim_or_red_on_a_terminal(home: Path, repo: Path, rules: Path) -> None:
    script = rehearse("ask run true", "ask something")
    argv = ("exec", "--agent", "rehearsal", script, "--policy", str(rules))
    terminal = AtTerminal(home, *argv, cwd=repo, TERM="xterm")
    assert terminal.end() == 0
    assert "\x1b[2mallowed by p:runs · Run true\x1b[0m" in terminal.text
    assert "\x1b[31mdenied by p:rest · something: Leave it.\x1b[0m" in terminal.text
    assert "Allow it" not in terminal.text


def test_without_a_policy_careful_holds(home: Path, repo: Path) -> None:
    script = rehearse("ask write .env hush", "ask run true")
    done = legation(home, "exec", "--agent", "rehearsal", script, "--yes", cwd=repo)
    assert "denied by careful:secrets · Write .env: This file may hold secrets." in done.stdout
    assert "approved · flag --yes · Run true: careful:ask: " in done.stdout
    assert not (repo / ".env").exists()


def test_the_setting_names_the_policy_and_the_flag_overrules_it(home: Path, repo: Path, rules: Path) -> None:
    other = rules.with_name("other.yaml")
    other.write_text("{name: other, rules: [{id: none, action: deny}]}")
    argv = ("exec", "--agent", "rehearsal", rehearse("ask run true"))
    assert "by p:runs" in legation(home, *argv, cwd=repo, LEGATION_POLICY=str(rules)).stdout
    done = legation(home, *argv, "--policy", str(other), cwd=repo, LEGATION_POLICY=str(rules))
    assert "denied by other:none" in done.stdout


def test_a_broken_policy_is_refused_before_anything_happens(home: Path, repo: Path, rules: Path) -> None:
    rules.write_text("{name: p, rules: [{action: denny}]}")
    done = legation(home, *FIX, "--yes", "--policy", str(rules), cwd=repo)
    assert done.returncode == 2
    assert "deny" in done.stderr
    assert not list((home / ".local/share/legation").glob("sessions/*"))


def test_the_record_and_the_trace_name_the_rule_and_who_decided(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *EDIT, cwd=repo)
    terminal.until("Allow it, once?")
    terminal.type("y\n")
    assert terminal.end() == 0
    [answered] = [
        event["raw"]
        for event in json_lines(legation(home, "events", "last", "--json").stdout)
        if event["type"] == "permission-answered"
    ]
    assert (answered["by"], answered["reason"]) == ("person tester", "careful:edit: yes, in the terminal")
    [trace] = traces(home)
    # Nobody but the person is here, and the trace says that no supervisor was.
    assert happened(trace) == ["proposed", "decided", "escalated/no-supervisor", "resolved", "consumed"]
    resolved = steps(trace)[3]
    assert (resolved["actor_kind"], resolved["actor"], resolved["actor_level"]) == ("person", "tester", 2)
    assert resolved["approval_id"] == answered["id"]
    assert (steps(trace)[1]["policy_rule"], resolved["session_id"]) == ("careful:edit", trace.parent.name)
    done = legation(home, "trace", "verify", str(trace))
    assert done.returncode == 0, done.stderr


def test_nothing_of_a_server_is_opened(home: Path, repo: Path) -> None:
    assert legation(home, *FIX, "--yes", cwd=repo).returncode == 0
    made = {path.name for path in (home / ".local/share/legation").iterdir()}
    assert made == {"agents", "children", "sessions"}


def test_a_cancel_at_the_question_is_in_the_trace(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *FIX, cwd=repo)
    terminal.until("Allow it, once?")
    terminal.type("c\n")
    assert terminal.end() == 130
    [trace] = traces(home)
    assert happened(trace)[-1] == "cancelled/turn-cancelled"


def test_silence_is_a_no_when_the_time_is_over(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *EDIT, "--permission-timeout", "1s", cwd=repo)
    assert terminal.end() == 0
    assert "(no longer asked)" in terminal.text
    assert "expired · policy · Write notes.txt: careful:edit: nobody answered in time" in terminal.text
    assert "no file changed" in terminal.text
    [trace] = traces(home)
    assert happened(trace)[-1] == "expired/unanswered"


@pytest.mark.parametrize(("reviewer", "shown"), [("tester", "approved · person tester"), ("ada", "to ada")])
def test_a_rule_with_reviewers_takes_the_answer_of_one_of_them(
    home: Path, repo: Path, rules: Path, reviewer: str, shown: str
) -> None:
    rule = f"{{id: all, action: human_approval, reviewers: [{reviewer}]}}"
    rules.write_text(f"{{name: p, rules: [{rule}]}}")
    argv = ("exec", "--agent", "rehearsal", rehearse("ask something"), "--policy", str(rules))
    terminal = AtTerminal(home, *argv, cwd=repo)
    terminal.until("Allow it, once?")
    terminal.type("y\n")
    terminal.end()
    assert shown in terminal.text


def test_killed_at_the_question_it_leaves_a_trace_that_verifies(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *EDIT, cwd=repo)
    terminal.until("Allow it, once?")
    terminal.kill()
    [trace] = traces(home)
    with trace.open("rb") as lines:
        report = verify_lines(lines)
    assert (report.ok, report.steps) == (True, 3)
    assert happened(trace) == ["proposed", "decided", "escalated/no-supervisor"]


def test_killed_anywhere_it_leaves_a_trace_that_verifies(home: Path, repo: Path, rules: Path) -> None:
    script = rehearse("say off we go", "repeat 1000 {", "ask run true", "ask write a.txt hello", "}")
    argv = [sys.executable, "-m", "legation", "exec", "--agent", "rehearsal", script, "--yes", "--json"]
    chance = random.Random(5)
    for _ in range(KILLS):
        with subprocess.Popen(
            [*argv, "--policy", str(rules)], cwd=repo, env=environment(home), stdout=subprocess.PIPE
        ) as running:
            assert running.stdout
            for _ in range(chance.randrange(20, 200)):
                assert running.stdout.readline()
            running.kill()
    assert len(traces(home)) == KILLS
    for trace in traces(home):
        report = verify_lines(whole_lines(trace))  # of one line the end may be missing, where two pages meet
        assert report.ok
        assert report.steps > 0


MASTERFUL = """
hello(); session(); prompt = prompted()
only = [option for option in OPTIONS if option["kind"] != "allow_once"]
permission(1, kind="edit", title="Edit a.txt", rawInput={"path": "a.txt"}, options=only)
update(answer(1)["result"]["outcome"]["optionId"]); done(prompt); stay()
"""


def an_agent(folder: Path, source: str) -> tuple[str, ...]:
    """Of any kind, by its command."""
    (folder / "agent.py").write_text(PRELUDE + source)
    return "exec", "--command", f"{sys.executable} -I -S {folder / 'agent.py'}", "go"


def test_a_person_allows_the_tool_of_an_agent_that_offers_only_always(home: Path, repo: Path) -> None:
    terminal = AtTerminal(home, *an_agent(home, MASTERFUL), cwd=repo)
    terminal.until("Allow this tool for all of this session?")
    terminal.type("y\n")
    assert terminal.end() == 0
    assert "approved · person tester · Edit a.txt" in terminal.text
    assert "its agent offers only always, and grt_" in terminal.text
    assert "allow_always" in terminal.text


def test_what_was_said_beforehand_presses_no_always(home: Path, repo: Path) -> None:
    done = legation(home, *an_agent(home, MASTERFUL), "--yes", cwd=repo)
    assert "denied by careful:" in done.stdout
    assert "offers only to allow it always" in done.stdout
    assert "reject_once" in done.stdout
    assert "allow_always" not in done.stdout


def test_what_a_program_prints_instead_of_speaking_is_in_the_error(home: Path, repo: Path) -> None:
    usage = "print('npm warn deprecated'); print('Usage: agent [OPTIONS]'); sys.exit(2)"
    done = legation(home, *an_agent(home, usage), "--yes", cwd=repo)
    assert done.returncode != 0
    assert "npm warn deprecated\nUsage: agent [OPTIONS]" in done.stderr


def test_a_permission_that_cannot_be_read_is_shown(home: Path, repo: Path) -> None:
    source = """
hello(); session(); prompt = prompted()
send(id=1, method="session/request_permission", params={"sessionId": "s1", "options": OPTIONS})
answer(1); update("lost", "stranger"); done(prompt); stay()
"""
    done = legation(home, *an_agent(home, source), "--yes", cwd=repo)
    assert "agent/unreadable-permission: the agent asked for a permission" in done.stdout
    assert "agent/unknown-session: 1 update(s) came for session stranger" in done.stdout


def test_an_agent_that_works_at_home_gets_nothing_of_ours(home: Path) -> None:
    data, rules = home / ".local/share/legation", home / "rules.yaml"
    data.mkdir(parents=True)
    (data / "keys.json").write_text("canary-5f1e\n")
    rules.write_text('name: p\nagent: "*"\nloop: off\nrules:\n  - {id: all, action: allow}  # canary-5f1e\n')
    (home / "hard").hardlink_to(data / "keys.json")
    (home / "soft").symlink_to(rules)
    before = rules.read_bytes()
    argv = ("exec", "--agent", "rehearsal", "--yes", "--policy", str(rules))
    for path in (data / "keys.json", home / "hard", rules):
        read = legation(home, *argv, rehearse(f"fs-read! {path}"), cwd=home)
        assert "canary-5f1e" not in read.stdout + read.stderr
    for path in (rules, home / "soft", home / "hard"):
        legation(home, *argv, rehearse(f"fs-write! {path} mine"), cwd=home)
    assert rules.read_bytes() == before
    assert (data / "keys.json").read_text() == "canary-5f1e\n"
    for folder in (data, data / "sessions"):
        refused = legation(home, *argv, "--cwd", str(folder), "hello", cwd=home)
        assert (refused.returncode, "Legation's own" in refused.stderr) == (4, True), refused.stderr
