import json
from pathlib import Path

import pytest
from tests.cli.canned_command import command
from tests.cli.command import json_lines, legation
from tests.cli.server_process import running
from tests.client.canned_door import canned

from legation.approvals.policy.load import load_text
from legation.wire.api.approvals import Replay, Replayed

pytestmark = pytest.mark.heavy  # a process or more for each test


def test_the_first_policy_is_written_checked_and_explained(home: Path) -> None:
    made = legation(home, "policy", "init")
    assert (
        made.stdout
        == "wrote policy.yaml (careful); test your edits with `legation policy check policy.yaml`\n"
    )
    checked = legation(home, "policy", "check")
    assert checked.returncode == 0
    assert checked.stdout.startswith(
        "careful: agent *, rules: secrets, read, think, edit, ask\ngood; version "
    )
    explained = legation(home, "policy", "explain", "--kind", "edit", "--path", "src/a.py")
    assert explained.returncode == 0
    assert "careful:edit (policy.yaml:50): matches, supervisor\n" in explained.stdout
    assert explained.stdout.endswith("supervisor by careful:edit\n    rule edit of policy careful matches\n")


def test_a_file_that_exists_is_left_alone(home: Path) -> None:
    (home / "policy.yaml").write_text("mine")
    done = legation(home, "policy", "init")
    assert done.returncode == 5
    assert done.stderr == "legation: cannot write policy.yaml: it exists; choose another name, or remove it\n"
    assert (home / "policy.yaml").read_text() == "mine"


def test_every_starter_is_listed_and_can_be_written(home: Path) -> None:
    names = [each["name"] for each in json_lines(legation(home, "policy", "starters", "--json").stdout)]
    assert names == ["careful", "overnight", "read-only", "yolo-in-jail"]
    for name in names:
        assert legation(home, "policy", "init", f"{name}.yaml", "--starter", name).returncode == 0
    assert legation(home, "policy", "check", ".").returncode == 0
    assert (
        legation(home, "policy", "init", "-", "--starter", "read-only").stdout
        == (home / "read-only.yaml").read_text()
    )


def test_check_lists_every_problem_and_ends_with_2(home: Path) -> None:
    (home / "p.yaml").write_text("name: p\nrules:\n- action: denny\n- {action: allow, tools: '['}\n")
    done = legation(home, "policy", "check", "p.yaml")
    assert done.returncode == 2
    assert done.stderr == (
        "legation: cannot use the policies; correct this:\n"
        "- p.yaml:3: unknown action 'denny'; did you mean 'deny'?\n"
        "- p.yaml:4: malformed glob '[': a `[` without its `]`\n"
    )


def test_a_call_is_explained_from_json(home: Path) -> None:
    legation(home, "policy", "init", "--starter", "overnight")
    call = {
        "agent": "claude",
        "tool": "Bash",
        "kind": "execute",
        "params": {"command": "git status; rm -rf ~"},
    }
    (home / "call.json").write_text(json.dumps(call))
    for argv, stdin in ((("call.json",), ""), (("-",), json.dumps(call))):
        (found,) = json_lines(legation(home, "policy", "explain", *argv, "--json", stdin=stdin).stdout)
        assert (found["action"], found["name"]) == ("supervisor", "overnight:rest")
        assert {step["part"] for step in found["steps"]} == {"git status", "rm -rf ~"}


def test_a_call_is_explained_from_flags(home: Path) -> None:
    (home / "p.yaml").write_text(
        "name: p\nrules:\n- {tools: refund, action: allow, when: {amount: {'<': 5}}}\n"
    )
    argv = ("policy", "explain", "--policy", "p.yaml", "--tool", "refund", "--agent", "a")
    assert legation(home, *argv, "--param", "amount=4").stdout.splitlines()[-2] == "allow by p:rule-1"
    text = legation(home, *argv, "--param", 'amount="4"').stdout
    assert "amount < 5: is '4' (text) -> unknown" in text
    assert text.splitlines()[-2] == "deny by default:no-match"


@pytest.mark.parametrize(
    ("argv", "stdin", "expected"),
    [
        (("-",), "[1]", "it is no JSON object"),
        (("-",), '{"toll": 1}', "has an unknown key 'toll'"),
        (("--param", "x"), "", "cannot read a --param without `=`"),
        (("--kind", "raed"), "", "unknown kind 'raed'"),
    ],
)
def test_a_call_that_cannot_be_read_is_refused(
    home: Path, argv: tuple[str, ...], stdin: str, expected: str
) -> None:
    legation(home, "policy", "init")
    done = legation(home, "policy", "explain", *argv, stdin=stdin)
    assert done.returncode == 2
    assert expected in done.stderr


def test_an_explanation_holds_no_control_sequence(home: Path) -> None:
    legation(home, "policy", "init")
    done = legation(home, "policy", "explain", "--tool", "\x1b]0;evil\x07", "--command", "echo \x1b[2J")
    assert "\x1b" not in done.stdout


def test_a_changed_policy_is_replayed_against_the_record(home: Path) -> None:
    differs = Replayed(
        trace_id="t1",
        timestamp="T",
        agent_id="a",
        tool="\x1b[2JBash",
        was="allow",
        was_rule="p:old",
        now="deny",
        now_rule="p:new",
    )
    counts = {"allow -> deny": 2}
    found = Replay(version="v", calls=9, unknown=1, limited=1, differing=2, counts=counts, changed=[differs])
    (home / "a").mkdir()
    (home / "a" / "1.yaml").write_text("---\nname: p\nrules:\n- {action: allow, tools: x}\n")
    (home / "a" / "2.yaml").write_text("name: q\nrules:\n- {action: deny, tools: y}\n")
    with canned(replayed=found) as server:
        run = command(home, server)
        done = run("policy", "replay", "--policy", "a", "--since", "24h", "--agent", "a", "--tool", "t")
        assert done.returncode == 0, done.stderr
        (sent,) = server.door.bodies
        (whole,) = json_lines(run("policy", "replay", "--policy", "a/1.yaml", "--json").stdout)
    assert [policy.name for policy in load_text(sent.policy).policies] == ["p", "q"]
    assert (sent.since, sent.agent, sent.tool, sent.limit) == ("24h", "a", "t", 10_000)
    assert "2  allow -> deny" in done.stdout
    assert "allow (p:old)  deny (p:new)" in done.stdout
    assert done.stdout.endswith("2 of 9 calls would be decided otherwise\n")
    assert "\x1b" not in done.stdout
    assert whole["differing"] == 2


def test_a_policy_with_a_mistake_is_not_sent(home: Path) -> None:
    (home / "p.yaml").write_text("name: p\nrules:\n- action: denny\n")
    with canned() as server:
        done = command(home, server)("policy", "replay", "--policy", "p.yaml")
        assert server.door.bodies == []
    assert done.returncode == 2
    assert "p.yaml:3: unknown action 'denny'" in done.stderr


def test_rules_are_counted(home: Path) -> None:
    with canned() as server:
        done = command(home, server)("policy", "hits", "--since", "7d")
        assert server.door.bodies == ["7d"]
    assert done.stdout.splitlines()[1].split()[:3] == ["p:r", "allow", "7"]


def test_the_commands_of_a_line_that_takes_the_parser_are_explained(home: Path) -> None:
    legation(home, "policy", "init", "--starter", "overnight")
    line = "git commit -m \"$(cat <<'EOF'\nA message\nEOF\n)\""
    explained = legation(home, "policy", "explain", "--command", line)
    assert "as execute: cat\n" in explained.stdout
    assert "as execute: git commit -m A message\n" in explained.stdout
    assert "allow by overnight:commands\n" in explained.stdout


def test_a_call_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = legation(tmp_path, "policy", "explain", "nowhere.json")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "legation: cannot read the call in nowhere.json: No such file or directory; "
    )


def test_without_a_file_what_is_in_force_is_explained(home: Path) -> None:
    argv = ("policy", "explain", "--kind", "edit", "--path", "src/a.py")
    done = legation(home, *argv)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ("explained by the policies in force: no server runs here; with starter careful\n")
    assert done.stdout.endswith("supervisor by careful:edit\n    rule edit of policy careful matches\n")
    (home / "mine.yaml").write_text("name: mine\nrules:\n- {id: all, action: allow}\n")
    done = legation(home, *argv, LEGATION_POLICY=str(home / "mine.yaml"))
    assert done.stdout.endswith("allow by mine:all\n    rule all of policy mine matches\n")


def test_without_a_file_the_policy_of_the_server_that_runs_is_explained(home: Path) -> None:
    argv = ("policy", "explain", "--kind", "edit", "--path", "src/a.py")
    (home / "ours.yaml").write_text("name: ours\nrules:\n- {id: all, action: deny}\n")
    with running(home, "up", "--policy", str(home / "ours.yaml")) as server:
        server.line()
        done = legation(home, *argv)
        assert done.stdout.endswith("deny by ours:all\n    rule all of policy ours matches\n"), done.stderr
        assert done.stderr == f"explained by the policies in force: the server's: {home}/ours.yaml\n"
        (home / "ours.yaml").write_text("name: ours\nrules:\n- {action: denny}\n")
        done = legation(home, *argv)
    assert done.returncode != 0
    assert done.stderr.startswith("legation: cannot explain the policies in force: ")
