"""`legation sessions` as a process, against a server whose sessions a test chooses."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.canned_command import Command, command
from tests.cli.command import LIMIT, AtTerminal, environment, json_lines, legation, rehearse
from tests.client.canned_door import TOKEN
from tests.client.canned_sessions import CannedSessions, Steps, canned_sessions, info

from legation.errors import STATUS, Code
from legation.host.resume import WAYS_OUT
from legation.wire.acp.methods import StopReason
from legation.wire.acp.rpc import RpcError
from legation.wire.acp.updates import AgentMessageChunk, Text
from legation.wire.action import Action
from legation.wire.api.sessions import LocalMcp, NewSession, RemoteMcp, Skills, SkillSource
from legation.wire.event_types import (
    Known,
    PermissionAnswered,
    PermissionAsked,
    PromptFinished,
    PromptStarted,
    QuestionAnswered,
    QuestionAsked,
    SessionStatus,
)

pytestmark = pytest.mark.heavy  # a process or more for each test

EVIL = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe"
ASKED = PermissionAsked(
    id="apr_1",
    title="Run the tests",
    action=Action(agent="rehearsal", tool="Bash", kind="execute", command="make test"),
    options=(),
    asked_at=0,
)
ANSWERED = PermissionAnswered(id="apr_1", outcome="approved", by="user:usr_me")


def starts(text: str, turn: str = "t1") -> PromptStarted:
    return PromptStarted(turn=turn, prompt=(Text(text=text),))


def says(text: str) -> AgentMessageChunk:
    return AgentMessageChunk(content=Text(text=text))


def stops(reason: StopReason = "end_turn", turn: str = "t1", error: RpcError | None = None) -> PromptFinished:
    return PromptFinished(turn=turn, stop_reason=reason, error=error)


def turn(text: str, *steps: Known) -> Steps:
    return [starts(text), *steps, stops()]


@pytest.fixture
def server() -> Iterator[CannedSessions]:
    with canned_sessions(info("ses_1", title="A thing", exit={"code": 3, "signal": None})) as running:
        yield running


@pytest.fixture
def run(home: Path, server: CannedSessions) -> Command:
    return command(home, server)


def at_terminal(home: Path, server: CannedSessions, *argv: str) -> AtTerminal:
    return AtTerminal(home, *argv, LEGATION_URL=server.url, LEGATION_TOKEN=TOKEN)


def test_a_bare_noun_lists(run: Command) -> None:
    done = run("sessions")
    assert (done.returncode, done.stderr) == (0, "")
    head, row = done.stdout.splitlines()
    assert head.split() == ["id", "agent", "status", "mode", "model", "events", "changed", "title"]
    assert row.startswith("ses_1  rehearsal  active")
    assert [each["sessionId"] for each in json_lines(run("sessions", "--json").stdout)] == ["ses_1"]


def test_a_long_list_comes_in_pages(home: Path) -> None:
    with canned_sessions(*(info(f"ses_{number}") for number in range(7))) as server:
        run = command(home, server)
        assert len(run("sessions").stdout.splitlines()) == 8
        assert [row["sessionId"] for row in json_lines(run("sessions", "--json").stdout)] == [
            f"ses_{number}" for number in range(7)
        ]


def test_no_sessions_say_how_to_begin_one(home: Path) -> None:
    with canned_sessions() as server:
        assert "legation sessions new" in command(home, server)("sessions").stdout


def test_one_is_shown(run: Command) -> None:
    shown = run("sessions", "show", "ses_1").stdout
    for words in ("ses_1", "A thing", "rehearsal", "active", "native", "code: 3"):
        assert words in shown
    (found,) = json_lines(run("sessions", "show", "ses_1", "--json").stdout)
    assert found["directory"] == "/w"


@pytest.mark.parametrize(
    "argv", [("show",), ("send", "x"), ("tail",), ("cancel",), ("terminate",), ("continue",)]
)
def test_an_id_that_is_none_says_where_to_look(run: Command, argv: tuple[str, ...]) -> None:
    done = run("sessions", argv[0], "ses_9", *argv[1:])
    assert done.returncode == STATUS[Code.NOT_FOUND].exit
    assert "`legation sessions` lists it" in done.stderr


def test_without_a_server_it_says_how_to_start_one(home: Path) -> None:
    done = legation(home, "sessions")
    assert done.returncode == STATUS[Code.UNAVAILABLE].exit
    assert "legation up" in done.stderr


def test_a_new_one_says_its_id_alone(run: Command, server: CannedSessions) -> None:
    done = run(
        "sessions", "new", "claude", "--id", "mine", "--directory", ".", "--model", "m", "--mode", "plan",
        "--permission-mode", "plan", "--variant", "v", "--title", "t",
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "mine\n", "")
    (sent,) = server.desk.bodies
    assert isinstance(sent, NewSession)
    assert (sent.agent, sent.model, sent.agent_mode, sent.permission_mode) == ("claude", "m", "plan", "plan")
    assert (sent.variant, sent.title) == ("v", "t")
    assert sent.directory is not None
    assert Path(sent.directory).is_absolute()
    again = run("sessions", "new", "claude", "--id", "mine")
    assert again.returncode == STATUS[Code.CONFLICT].exit


def test_one_is_continued_in_a_new_one(run: Command, server: CannedSessions) -> None:
    done = run("sessions", "continue", "ses_1")
    assert (done.returncode, done.stderr) == (0, "")
    (sent,) = server.desk.bodies
    assert isinstance(sent, NewSession)
    assert (sent.agent, sent.continues, sent.title, sent.fork) == ("rehearsal", "ses_1", "A thing", None)
    assert done.stdout.startswith("ses_")
    assert done.stdout != "ses_1\n"
    assert run("sessions", "continue", "ses_1", "--agent", "claude").returncode == 0
    assert server.desk.bodies[-1].agent == "claude"
    assert run("sessions", "continue", "ses_1", " ").returncode == STATUS[Code.INVALID_PARAMS].exit


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_a_new_one_without_a_word_to_say_is_not_begun(
    run: Command, server: CannedSessions, prompt: str
) -> None:
    done = run("sessions", "new", "claude", prompt)
    assert done.returncode == STATUS[Code.INVALID_PARAMS].exit
    assert "leave the prompt out" in done.stderr
    assert server.desk.bodies == []


def test_folders_above_are_sent_as_the_server_takes_them(run: Command, server: CannedSessions) -> None:
    assert run("sessions", "new", "claude", "--directory", "../x", "--skill", "..").returncode == 0
    (made,) = server.desk.bodies
    assert isinstance(made, NewSession)
    assert made.directory is not None
    assert made.directory.endswith("/x")
    assert ".." not in made.directory
    assert made.skills is not None
    assert ".." not in made.skills.sources[0].source


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_what_is_piped_and_no_text_is_not_sent(home: Path, server: CannedSessions, locale: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "legation", "sessions", "send", "ses_1"],
        input=b"caf\xe9",
        capture_output=True,
        env=environment(home, LEGATION_URL=server.url, LEGATION_TOKEN=TOKEN) | {"LANG": locale},
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == STATUS[Code.INVALID_PARAMS].exit
    assert b"not UTF-8" in done.stderr
    assert server.desk.bodies == []


def test_a_new_one_is_given_mcp_servers_from_a_file_and_skills_from_folders(
    run: Command, server: CannedSessions, tmp_path: Path
) -> None:
    file = tmp_path / "mcp.json"
    local = {"command": "files", "args": ["--here"], "env": {"KEY": "k"}}
    file.write_text(json.dumps({"mcpServers": {"files": local, "far": {"url": "http://127.0.0.1:9/mcp"}}}))
    done = run("sessions", "new", "rehearsal", "--mcp", str(file), "--skill", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (made,) = server.desk.bodies
    assert isinstance(made, NewSession)
    assert made.mcp == {
        "files": LocalMcp(command="files", args=("--here",), env={"KEY": "k"}),
        "far": RemoteMcp(url="http://127.0.0.1:9/mcp", transport="http"),
    }
    assert made.skills == Skills(sources=[SkillSource(type="local", source=str(tmp_path))])


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "as MCP servers"), ('{"mcpServers": {"a": {}}}', "a command or a url"), (None, "cannot read")],
)
def test_a_file_that_names_no_mcp_servers_is_refused(
    run: Command, server: CannedSessions, tmp_path: Path, text: str | None, problem: str
) -> None:
    file = tmp_path / "mcp.json"
    if text is not None:
        file.write_text(text)
    done = run("sessions", "new", "rehearsal", "--mcp", str(file))
    assert done.returncode != 0
    assert problem in done.stderr
    assert server.desk.bodies == []


def test_a_prompt_is_followed_to_the_end_of_its_turn(run: Command, server: CannedSessions) -> None:
    server.desk.on_message = turn("fix it", says("on it, "), says("done"))
    done = run("sessions", "new", "rehearsal", "fix it", "--id", "s")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:3] == ["s", "> fix it", "on it, done"]
    assert "legation sessions send s" in done.stdout


def test_a_session_that_is_lost_says_by_which_command_it_goes_on(
    run: Command, server: CannedSessions
) -> None:
    lost = RpcError(code=-32603, message=f"cannot complete session/load: no such thing; {WAYS_OUT}")
    server.desk.on_message = [starts("x"), stops("cancelled", error=lost)]
    done = run("sessions", "send", "ses_1", "x")
    assert done.stdout.splitlines()[-1].endswith("legation sessions continue ses_1 ...")
    server.desk.on_message = [starts("x"), SessionStatus(status="closed")]
    assert "to go on: legation sessions continue ses_1" in run("sessions", "send", "ses_1", "x").stdout


def test_json_is_the_session_and_then_its_events(run: Command, server: CannedSessions) -> None:
    server.desk.on_message = turn("x", says("hi"))
    first, *events = json_lines(run("sessions", "new", "rehearsal", "x", "--id", "s", "--json").stdout)
    assert first["sessionId"] == "s"
    assert [each["type"] for each in events] == ["prompt-started", "agent-message-chunk", "prompt-finished"]


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (stops("cancelled"), Code.CANCELLED),
        (stops("refusal"), Code.AGENT_ERROR),
        (stops(error=RpcError(code=-32603, message="out of luck")), Code.AGENT_ERROR),
        (SessionStatus(status="closed"), Code.AGENT_ERROR),
    ],
)
def test_the_exit_code_says_how_the_turn_ended(
    run: Command, server: CannedSessions, end: PromptFinished | SessionStatus, code: Code
) -> None:
    server.desk.on_message = [starts("x"), end]
    assert run("sessions", "send", "ses_1", "x").returncode == STATUS[code].exit


def test_what_is_sent_waits_for_the_turns_before_it(run: Command, server: CannedSessions) -> None:
    others = [starts("other", "t0"), stops("refusal", "t0")]
    server.desk.on_message = [stops("refusal", "t9"), *others, *turn("x", says("mine"))]
    done = run("sessions", "send", "ses_1", "x")
    assert done.returncode == 0
    assert "mine" in done.stdout


def test_a_message_may_come_from_standard_input_and_need_not_be_waited_for(
    run: Command, server: CannedSessions
) -> None:
    done = run("sessions", "send", "ses_1", "--detach", stdin="from a pipe\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert server.desk.bodies == ["from a pipe\n"]
    assert run("sessions", "send", "ses_1").returncode == 2


def test_a_session_is_followed_from_a_number_until_it_is_terminated(
    run: Command, server: CannedSessions
) -> None:
    closed = SessionStatus(status="closed")
    server.run(lambda: server.desk.happen("ses_1", [*turn("x", says("hi")), closed]))
    assert "> x\nhi\n" in run("sessions", "tail", "ses_1").stdout
    events = json_lines(run("sessions", "tail", "ses_1", "--from", "3", "--json").stdout)
    assert [each["seq"] for each in events] == [3, 4]
    assert run("sessions", "tail", "ses_1", "--from", "0").returncode == 2


def test_sessions_are_deleted_where_somebody_says_so(home: Path) -> None:
    with canned_sessions(info("ses_1", title=EVIL), info("ses_2"), info("ses_3", busy=True)) as server:
        run = command(home, server)
        piped = run("sessions", "delete", "ses_1")
        assert (piped.returncode, "--yes" in piped.stderr) == (STATUS[Code.INVALID_PARAMS].exit, True)
        assert run("sessions", "delete").returncode == STATUS[Code.INVALID_PARAMS].exit
        missing = run("sessions", "delete", "ses_1", "ses_9", "--yes")
        assert missing.returncode == STATUS[Code.NOT_FOUND].exit
        for said in ("n\n", "\n"):
            terminal = at_terminal(home, server, "sessions", "delete", "ses_1", "ses_2")
            shown = terminal.until("[y/N] ")
            assert "ses_1" in shown
            assert "\x1b]0;" not in shown
            terminal.type(said)
            assert terminal.end() == STATUS[Code.CANCELLED].exit
        assert server.desk.bodies == []
        terminal = at_terminal(home, server, "sessions", "delete", "ses_1")
        terminal.until("[y/N] ")
        terminal.type("y\n")
        assert (terminal.end(), server.desk.bodies) == (0, ["delete ses_1"])
        done = run("sessions", "delete", "ses_2", "ses_3", "--yes")
        assert (done.returncode, done.stdout) == (STATUS[Code.PROMPT_IN_FLIGHT].exit, "deleted ses_2\n")
        assert "a turn runs" in done.stderr


def test_a_turn_is_cancelled_and_a_session_terminated(run: Command, server: CannedSessions) -> None:
    assert run("sessions", "cancel", "ses_1").returncode == 0
    assert "sessions tail ses_1" in run("sessions", "terminate", "ses_1").stdout
    assert server.desk.bodies == ["cancel", "terminate"]


def test_without_a_terminal_it_says_where_to_answer(home: Path, server: CannedSessions) -> None:
    server.ask("apr_1")
    server.desk.on_message = [starts("x"), ASKED]
    with subprocess.Popen(
        [sys.executable, "-m", "legation", "sessions", "send", "ses_1", "x"],
        env=environment(home, LEGATION_URL=server.url, LEGATION_TOKEN=TOKEN),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # no controlling terminal, whoever runs the tests
    ) as process:
        assert process.stderr is not None
        assert "legation approvals show apr_1" in process.stderr.readline()
        server.answered_elsewhere("apr_1", "ses_1", [ANSWERED, stops()])
        assert process.wait(LIMIT) == 0


@pytest.mark.parametrize(
    ("typed", "reply", "outcome"), [("y", "once", "approved"), ("a", "always", "approved"), ("n", "reject", "denied")]
)  # fmt: skip
def test_a_permission_is_answered_at_the_terminal(
    home: Path, server: CannedSessions, typed: str, reply: str, outcome: str
) -> None:
    server.ask("apr_1")
    server.desk.on_message = [starts("x"), says("may I?"), ASKED]
    decided = PermissionAnswered(
        id="apr_1", outcome="approved" if outcome == "approved" else "denied", by="me"
    )
    server.desk.on_answer = [decided, says("thanks"), stops()]
    terminal = at_terminal(home, server, "sessions", "send", "ses_1", "x")
    shown = terminal.until("[c]ancel the turn: ")
    assert (
        shown.index("may I?") < shown.index("rehearsal asks: Run the tests") < shown.index("runs make test")
    )
    terminal.type("what?\n")
    terminal.until("[c]ancel the turn: what?\nAllow it?")
    terminal.type(f"{typed}\n")
    assert terminal.end() == 0
    assert "thanks" in terminal.text
    assert server.desk.bodies[1:] == [("apr_1", reply)]


def test_what_a_rule_decided_is_not_asked(home: Path, server: CannedSessions) -> None:
    ruled = PermissionAnswered(id="apr_1", outcome="approved", by="policy", reason="careful:test")
    server.desk.on_message = [starts("x"), ASKED, ruled, stops()]
    terminal = at_terminal(home, server, "sessions", "send", "ses_1", "x")
    assert terminal.end() == 0
    assert "Allow it?" not in terminal.text
    assert "allowed by careful:test" in terminal.text


def test_what_somebody_else_answers_is_taken_back(home: Path, server: CannedSessions) -> None:
    server.ask("apr_1")
    server.desk.on_message = [starts("x"), ASKED]
    terminal = at_terminal(home, server, "sessions", "send", "ses_1", "x")
    terminal.until("[c]ancel the turn: ")
    server.answered_elsewhere("apr_1", "ses_1", [ANSWERED, stops()])
    assert terminal.end() == 0
    assert "(no longer asked)" in terminal.text
    assert server.desk.bodies == ["x"]


def test_an_answer_that_comes_too_late_says_so_and_the_following_goes_on(
    home: Path, server: CannedSessions
) -> None:
    server.ask("apr_1")
    server.desk.on_message = [starts("x"), ASKED]
    terminal = at_terminal(home, server, "sessions", "send", "ses_1", "x")
    terminal.until("[c]ancel the turn: ")
    server.resolve("apr_1", "denied")  # its event is still on the way
    terminal.type("y\n")
    terminal.until("the first answer stands")
    server.run(lambda: server.desk.happen("ses_1", [stops()]))
    assert terminal.end() == 0


@pytest.mark.parametrize(("typed", "replied"), [("blue\n", [["blue"]]), ("\n", None)])
def test_a_question_is_answered_at_the_terminal(
    home: Path, server: CannedSessions, typed: str, replied: object
) -> None:
    schema = {"type": "object", "properties": {"colour": {"type": "string", "enum": ["blue", "red"]}}}
    asked = QuestionAsked(id="q1", message="Which colour?", mode="form", requested_schema=schema)
    server.desk.on_message = [starts("x"), asked]
    server.desk.on_answer = [QuestionAnswered(id="q1", outcome="accepted", by="me"), stops()]
    terminal = at_terminal(home, server, "sessions", "send", "ses_1", "x")
    terminal.until("colour (blue | red; nothing: no answer): ")
    terminal.type(typed)
    assert terminal.end() == 0
    assert server.desk.bodies[1:] == [("q1", replied)]


def test_who_closes_the_terminals_input_is_told_how_to_answer_elsewhere(
    home: Path, server: CannedSessions
) -> None:
    server.ask("apr_1")
    server.desk.on_message = [starts("x"), ASKED]
    terminal = at_terminal(home, server, "sessions", "send", "ses_1", "x")
    terminal.until("[c]ancel the turn: ")
    terminal.type("\x04")
    terminal.until("it waits for an answer: legation approvals show apr_1")
    server.answered_elsewhere("apr_1", "ses_1", [ANSWERED, stops()])
    assert terminal.end() == 0


def test_what_was_answered_long_ago_is_no_question_and_no_warning(
    run: Command, server: CannedSessions
) -> None:
    asked = QuestionAsked(id="q1", message="Which colour?", mode="form", requested_schema={})
    answered = QuestionAnswered(id="q1", outcome="accepted", by="me")
    over = SessionStatus(status="closed")
    server.run(lambda: server.desk.happen("ses_1", [*turn("x", ASKED, asked, ANSWERED, answered), over]))
    done = run("sessions", "tail", "ses_1")
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_cancels_the_turn_and_the_end_is_still_shown(home: Path, server: CannedSessions) -> None:
    server.desk.on_message = [starts("x"), says("working")]
    server.desk.on_cancel = [stops("cancelled")]
    terminal = at_terminal(home, server, "sessions", "send", "ses_1", "x")
    terminal.until("working")
    terminal.interrupt()
    assert terminal.end() == STATUS[Code.CANCELLED].exit
    assert "stopped: cancelled" in terminal.text


def test_ctrl_c_twice_leaves_the_turn_alone(home: Path, server: CannedSessions) -> None:
    server.desk.on_message = [starts("x"), says("working")]
    terminal = at_terminal(home, server, "sessions", "send", "ses_1", "x")
    terminal.until("working")
    terminal.interrupt()
    terminal.until("Ctrl-C again")
    terminal.interrupt()
    assert terminal.end() == 130
    assert "Traceback" not in terminal.text


def test_nothing_an_agent_wrote_reaches_the_terminal_raw(
    home: Path, run: Command, server: CannedSessions
) -> None:
    evil = info(
        f"e{EVIL}", agent=EVIL, title=EVIL, model=EVIL, status=EVIL, directory=EVIL, exit={EVIL: EVIL}
    )
    server.desk.sessions["evil"] = evil
    server.ask("apr_1")
    action = Action(agent=EVIL, tool=EVIL, command=f"ls\n{EVIL}", paths=(EVIL,))
    asked = PermissionAsked(id="apr_1", title=EVIL, action=action, options=(), asked_at=0)
    question = QuestionAsked(
        id="q",
        message=EVIL,
        mode="url",
        url=EVIL,
        requested_schema={"properties": {EVIL: {"title": EVIL, "enum": [EVIL]}}},
    )
    server.desk.on_message = [starts("x"), says(EVIL), asked]
    server.desk.on_answer = [PermissionAnswered(id="apr_1", outcome="denied", by=EVIL, reason=EVIL), question]
    for argv in (("sessions",), ("sessions", "show", "evil")):
        assert not set(run(*argv).stdout) & set("\x1b\x07\u202e")
    terminal = at_terminal(home, server, "sessions", "send", "ses_1", "x")
    terminal.until("[c]ancel the turn: ")
    terminal.type("n\n")
    terminal.until("nothing: no answer): ")
    server.desk.on_answer = [stops()]
    terminal.type("\n")
    assert terminal.end() == 0
    assert not set(terminal.text) & set("\x1b\x07\u202e")


def test_json_lines_are_whole_whatever_the_agent_wrote(run: Command, server: CannedSessions) -> None:
    server.desk.on_message = turn("x", says(EVIL))
    lines = run("sessions", "send", "ses_1", "x", "--json").stdout.splitlines()
    assert json.loads(lines[1])["raw"]["content"]["text"] == EVIL


def test_events_finds_the_sessions_of_the_server_too(run: Command, server: CannedSessions) -> None:
    server.run(lambda: server.desk.happen("ses_1", [*turn("x", says("hi")), SessionStatus(status="closed")]))
    (row,) = json_lines(run("events", "--json").stdout)
    assert (row["id"], row["title"], row["cwd"]) == ("ses_1", "A thing", "/w")
    assert "ses_1" in run("events").stdout
    for wanted in ("ses_1", "ses", "last"):
        assert "> x\nhi\n" in run("events", wanted).stdout
    followed = json_lines(run("events", "ses_1", "--follow", "--after", "2", "--json").stdout)
    assert [each["seq"] for each in followed] == [3, 4]
    assert run("events", "ses_9").returncode == STATUS[Code.NOT_FOUND].exit


def test_events_of_exec_are_found_beside_those_of_the_server(
    home: Path, repo: Path, run: Command, server: CannedSessions
) -> None:
    server.desk.sessions["ses_1"] = info("ses_1", created_at=1)
    done = legation(home, "exec", "--agent", "rehearsal", rehearse("say from exec"), cwd=repo)
    assert done.returncode == 0
    rows = json_lines(run("events", "--json").stdout)
    assert [each["id"] == "ses_1" for each in rows] == [False, True]
    assert "from exec" in run("events", "last").stdout
    assert "from exec" in run("events", rows[0]["id"]).stdout


def test_events_of_exec_are_read_though_the_server_refuses(home: Path, server: CannedSessions) -> None:
    done = legation(home, "events", LEGATION_URL=server.url, LEGATION_TOKEN="another")
    assert done.returncode == 0
    assert "left out" in done.stderr
