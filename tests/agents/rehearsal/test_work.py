import json
from pathlib import Path

import pytest
from tests.agents.rehearsal.conftest import StartAgent
from tests.agents.rehearsal.raw_client import RawClient, RefusedError, choose

pytestmark = pytest.mark.heavy  # a process or more for each test


def test_read_tells_the_text_and_where_it_is(client: RawClient, work: Path) -> None:
    (work / "a.txt").write_text("hello\n")
    session = client.open(work)
    played = client.play(session, "read a.txt")
    call = played.of("tool_call")[0]
    assert (call["kind"], call["title"], call["rawInput"]) == ("read", "Read a.txt", {"path": "a.txt"})
    assert call["locations"] == [{"path": str(work / "a.txt")}]
    assert played.statuses() == ["pending", "in_progress", "completed"]
    assert played.outcome["content"] == [{"type": "content", "content": {"type": "text", "text": "hello\n"}}]


def test_edit_and_write_change_files_and_show_the_diff(client: RawClient, work: Path) -> None:
    (work / "a.txt").write_text("one two")
    session = client.open(work)
    played = client.play(session, "edit a.txt one => 1", r'write "new folder/b.txt" x\ny')
    assert (work / "a.txt").read_text() == "1 two"
    assert (work / "new folder" / "b.txt").read_text() == "x\ny"
    edit, write = (call["content"][0] for call in played.of("tool_call"))
    assert edit == {"type": "diff", "path": str(work / "a.txt"), "oldText": "one two", "newText": "1 two"}
    assert (write["oldText"], write["newText"]) == (None, "x\ny")


@pytest.mark.parametrize(
    "step",
    ["read none.txt", "edit a.txt absent => x", "edit none.txt a => b", "read ../home", "write /elsewhere x"],
)
def test_what_cannot_be_done_is_a_failed_call_and_the_script_goes_on(
    client: RawClient, work: Path, step: str
) -> None:
    (work / "a.txt").write_text("one")
    session = client.open(work)
    played = client.play(session, step, "say still here")
    assert played.statuses()[-1] == "failed"
    assert (played.text, played.stop) == ("still here", "end_turn")


def test_a_link_out_of_the_folder_is_not_followed(client: RawClient, work: Path, home: Path) -> None:
    (home / "secret").write_text("s3cret")
    (work / "link").symlink_to(home / "secret")
    session = client.open(work)
    played = client.play(session, "read link", "write link x", "edit link s => x")
    assert played.statuses().count("failed") == 3
    assert (home / "secret").read_text() == "s3cret"


def test_a_hostile_step_leaves_the_folder(client: RawClient, work: Path, home: Path) -> None:
    (home / "secret").write_text("s3cret")
    session = client.open(work)
    played = client.play(session, "read! ~/secret", f"write! {home}/written x", "edit! ~/secret s3 => S3")
    assert played.of("tool_call_update")[1]["content"][0]["content"]["text"] == "s3cret"
    assert (home / "written").read_text() == "x"
    assert (home / "secret").read_text() == "S3cret"


def test_run_tells_output_and_exit_code(client: RawClient, work: Path) -> None:
    session = client.open(work)
    good = client.play(session, "run pwd; echo err >&2")
    assert good.outcome["status"] == "completed"
    assert good.outcome["content"][0]["content"]["text"] == f"{work}\nerr\n"
    bad = client.play(session, "run exit 3")
    assert (bad.outcome["status"], bad.outcome["rawOutput"]) == ("failed", {"exitCode": 3})


def test_a_cancel_ends_the_command_and_what_it_started(client: RawClient, work: Path) -> None:
    session = client.open(work)
    prompt = client.start(session, "run sleep 60; echo done > done", "say never")
    client.until(prompt, stop=lambda m: m.get("params", {}).get("update", {}).get("status") == "in_progress")
    client.send(method="session/cancel", params={"sessionId": session})
    ended = client.until(prompt)
    assert (ended.stop, ended.statuses(), ended.text) == ("cancelled", ["failed"], "")
    assert not (work / "done").exists()


@pytest.mark.parametrize(
    ("option", "status"),
    [
        ("allow-once", "completed"),
        ("allow-always", "completed"),
        ("reject-once", "failed"),
        ("reject-always", "failed"),
        ("option-0", "failed"),
    ],
)
def test_ask_obeys_each_answer(client: RawClient, work: Path, option: str, status: str) -> None:
    session = client.open(work)
    client.handlers["session/request_permission"] = choose(option)
    played = client.play(session, "ask May I?")
    request = played.requests[0]["params"]
    assert [entry["kind"] for entry in request["options"]] == [
        "allow_once",
        "allow_always",
        "reject_once",
        "reject_always",
    ]
    assert request["toolCall"]["toolCallId"] == played.of("tool_call")[0]["toolCallId"]
    assert (request["toolCall"]["title"], played.outcome["status"]) == ("May I?", status)


@pytest.mark.parametrize("allowed", [True, False])
def test_asked_work_is_done_only_if_allowed(client: RawClient, work: Path, allowed: bool) -> None:
    (work / "a.txt").write_text("one")
    session = client.open(work)
    client.handlers["session/request_permission"] = choose("allow-once" if allowed else "reject-once")
    played = client.play(session, "ask edit a.txt one => two", "ask write b.txt x", "ask run touch c.txt")
    assert (work / "a.txt").read_text() == ("two" if allowed else "one")
    assert (work / "b.txt").exists() is allowed
    assert (work / "c.txt").exists() is allowed
    kinds = [request["params"]["toolCall"]["kind"] for request in played.requests]
    assert kinds == ["edit", "edit", "execute"]
    assert played.requests[0]["params"]["toolCall"]["content"][0]["newText"] == "two"


def test_an_error_for_an_answer_is_no_permission(client: RawClient, work: Path) -> None:
    def refuse(_: object) -> None:
        raise RefusedError("nobody home")

    session = client.open(work)
    client.handlers["session/request_permission"] = refuse
    played = client.play(session, "ask write a.txt x")
    assert played.outcome["status"] == "failed"
    assert not (work / "a.txt").exists()


def test_a_question_can_be_withdrawn(client: RawClient, work: Path) -> None:
    session = client.open(work)
    played = client.play(session, "ask-withdraw never mind", "say on")
    asked, withdrawn = played.requests
    assert withdrawn["method"] == "$/cancel_request"
    assert withdrawn["params"]["requestId"] == asked["id"]
    assert (played.stop, played.text) == ("end_turn", "on")


EXECUTES = (
    "run touch made",
    "ask run touch made",
    "terminal touch made",
    "terminal! touch made",
    "spawn-tree",
    "read! ../secret",
    "edit! ../secret top => bottom",
    "write! ../made x",
    "big 100000000000",
    "flood 2 100000000",
    "stderr 100000000000",
)


@pytest.mark.parametrize("step", EXECUTES)
def test_a_step_that_executes_is_refused_unless_it_is_turned_on(
    start_agent: StartAgent, work: Path, step: str
) -> None:
    """Also inside a repeat, and before anything of the script was done."""
    (work.parent / "secret").write_text("top secret")
    client = start_agent(executes=False)
    session = client.open(work)
    for steps in ((step,), ("say first", "repeat 2 {", step, "}")):
        played = client.play(session, *steps)
        assert played.stop == "refusal"
        assert "which is off here: the owner turns it on" in played.text
        assert "first" not in played.text
        assert "top secret" not in json.dumps(played.updates)
        assert played.requests == []
    assert sorted(path.name for path in work.parent.rglob("made")) == []
    assert (work.parent / "secret").read_text() == "top secret"


@pytest.mark.parametrize("mode", ["default", "plan", "bypass"])
def test_a_plain_prompt_asks_before_the_tests_in_every_mode_unless_execution_is_turned_on(
    start_agent: StartAgent, work: Path, mode: str
) -> None:
    (work / "test_evil.py").write_text("import pathlib\npathlib.Path('made').write_text('x')\n")
    client = start_agent(executes=False)
    client.handlers["session/request_permission"] = choose("reject-once")
    session = client.open(work)
    client.call("session/set_mode", {"sessionId": session, "modeId": mode})
    played = client.prompt(session, "fix the failing test")
    assert [each["params"]["toolCall"]["rawInput"] for each in played.requests] == [
        {"command": "python -m unittest"}
    ]
    assert "I changed nothing" in played.text
    assert not (work / "made").exists()


def test_a_scenario_executes_nothing_either_unless_that_is_turned_on(
    start_agent: StartAgent, work: Path, tmp_path: Path
) -> None:
    (tmp_path / "scenario.json").write_text('{"steps": ["run touch made"]}')
    client = start_agent("--scenario", str(tmp_path / "scenario.json"), executes=False)
    assert client.prompt(client.open(work), "go").stop == "refusal"
    assert not (work / "made").exists()


def test_without_execution_files_are_read_and_written_by_the_client_alone(
    start_agent: StartAgent, work: Path
) -> None:
    """Its client decides what of the folder may be opened: here nothing is on the disk but what it says."""
    (work / "a.txt").write_text("on the disk")
    client = start_agent(executes=False)
    written: list[dict[str, str]] = []
    client.handlers["fs/read_text_file"] = lambda _: {"content": "told by the client"}

    def write(request: dict[str, str]) -> dict[str, str]:
        written.append(request)
        return {}

    client.handlers["fs/write_text_file"] = write
    session = client.open(work)
    played = client.play(session, "read a.txt", "edit a.txt told => said", "write b.txt new")
    assert "on the disk" not in json.dumps(played.updates)
    assert [(each["path"], each["content"]) for each in written] == [
        (str(work / "a.txt"), "said by the client"),
        (str(work / "b.txt"), "new"),
    ]
    assert (work / "a.txt").read_text() == "on the disk"
    assert not (work / "b.txt").exists()


def test_without_execution_and_a_client_that_serves_no_files_nothing_is_touched(
    start_agent: StartAgent, work: Path
) -> None:
    (work / "a.txt").write_text("on the disk")
    client = start_agent(executes=False)
    session = client.open(work, {})
    played = client.play(session, "read a.txt", "edit a.txt on => off", "write b.txt new")
    assert played.statuses().count("failed") == 3
    assert "on the disk" not in json.dumps(played.updates)
    assert sorted(path.name for path in work.iterdir()) == ["a.txt"]


def test_without_execution_and_a_client_that_serves_no_files_what_was_allowed_is_done_by_its_own_hands(
    start_agent: StartAgent, work: Path
) -> None:
    """As in a run: the permission is for this very change, in the folder."""
    (work / "a.txt").write_text("on the disk")
    client = start_agent(executes=False)
    answers = iter([choose("allow-once"), choose("reject-once")])
    client.handlers["session/request_permission"] = lambda request: next(answers)(request)
    session = client.open(work, {})
    played = client.play(session, "ask write b.txt new", "ask write c.txt new", "ask write ../d.txt new")
    assert sorted(path.name for path in work.iterdir()) == ["a.txt", "b.txt"]
    assert not (work.parent / "d.txt").exists()
    assert len(played.requests) == 2
