"""Every message of a well-behaved agent, held against the models of the official SDK."""

import json
from pathlib import Path
from typing import Any

import pytest
from acp import schema
from pydantic import BaseModel, TypeAdapter
from tests.agents.rehearsal.raw_client import RawClient

from legation.cli.demo import make_demo_repo

pytestmark = pytest.mark.heavy  # to load the models takes a second in each process that reads this file

REQUESTS: dict[str, Any] = {
    "session/request_permission": schema.RequestPermissionRequest,
    "fs/read_text_file": schema.ReadTextFileRequest,
    "fs/write_text_file": schema.WriteTextFileRequest,
    "terminal/create": schema.CreateTerminalRequest,
    "terminal/wait_for_exit": schema.WaitForTerminalExitRequest,
    "terminal/output": schema.TerminalOutputRequest,
    "terminal/release": schema.ReleaseTerminalRequest,
    "elicitation/create": schema.CreateElicitationRequest,
    "elicitation/complete": schema.CompleteElicitationNotification,
}
# Stable in the protocol, but newer than the SDK's models: held against their required fields.
NEWER = {
    "notice": {"severity", "title"},
    "compaction_update": {"compactionId", "status"},
    "compaction_summary_chunk": {"compactionId", "content"},
}
ANSWERS: dict[str, type[BaseModel]] = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/prompt": schema.PromptResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
}
SCRIPT = (
    *("say hello", "think hm", "user you", "plan a; b", "plan-done 1", "usage 1 2 0.5", "mode plan"),
    *("model rehearsal-terse", "commands a, b", "title T", "notice info N", "compact C", "content image"),
    *("content audio", "content resource_link", "content resource", "echo", "recall", "write a.txt one"),
    *("read a.txt", "edit a.txt one => two", "run cat a.txt", "run exit 1", "ask May I", "env HOME"),
    *(
        "ask edit a.txt two => three",
        "ask write b.txt x",
        "ask run true",
        "fs-read a.txt",
        "fs-write c.txt x",
    ),
    *(
        "terminal ls",
        "elicit What? a:string b:boolean",
        "elicit-url https://example.invalid Go",
        "flood 2 30",
    ),
)


def check(message: dict[str, Any]) -> None:
    assert message["jsonrpc"] == "2.0"
    method = message.get("method")
    if method == "session/update":
        check_update(message["params"])
    elif method is not None:
        TypeAdapter(REQUESTS[method]).validate_python(message["params"])
    else:
        assert ("result" in message) != ("error" in message)


def check_update(params: dict[str, Any]) -> None:
    update = params["update"]
    if needed := NEWER.get(update["sessionUpdate"]):
        assert needed <= set(update)
    else:
        schema.SessionNotification.model_validate(params)


@pytest.fixture
def talkative(client: RawClient) -> RawClient:
    client.handlers.update(
        {
            "fs/read_text_file": lambda _: {"content": "x"},
            "fs/write_text_file": lambda _: {},
            "terminal/create": lambda _: {"terminalId": "t"},
            "terminal/wait_for_exit": lambda _: {"exitCode": 0},
            "terminal/output": lambda _: {"output": "", "truncated": False},
            "terminal/release": lambda _: {},
            "elicitation/create": lambda _: {"action": "accept", "content": {"a": "x", "b": True}},
        }
    )
    return client


def test_a_script_of_every_good_step_conforms(talkative: RawClient, work: Path) -> None:
    session = talkative.open(work)
    assert talkative.play(session, *SCRIPT).stop == "end_turn"
    opening = {"sessionId": session, "cwd": str(work), "mcpServers": []}
    assert talkative.call("session/load", opening).updates
    for message in talkative.messages:
        check(message)
    tags = {
        m["params"]["update"]["sessionUpdate"]
        for m in talkative.messages
        if m.get("method") == "session/update"
    }
    assert len(tags) == 14


def test_the_bug_fix_conforms(client: RawClient, work: Path) -> None:
    make_demo_repo(work)
    client.prompt(client.open(work), "Fix it")
    for message in client.messages:
        check(message)


def test_answers_conform(client: RawClient, work: Path) -> None:
    session = client.open(work)
    place = {"sessionId": session, "cwd": str(work), "mcpServers": []}
    for method, params in {
        "initialize": {
            "protocolVersion": 1,
            "clientCapabilities": {"session": {"configOptions": {"boolean": {}}}},
        },
        "session/new": {"cwd": str(work), "mcpServers": []},
        "session/load": place,
        "session/resume": place,
        "session/list": {},
        "session/set_config_option": {"sessionId": session, "configId": "model", "value": "rehearsal-terse"},
        "session/prompt": {"sessionId": session, "prompt": [{"type": "text", "text": "hi"}]},
    }.items():
        ANSWERS[method].model_validate(client.call(method, params).answer["result"])


def test_a_line_is_one_message_and_nothing_else_is_on_stdout(talkative: RawClient, work: Path) -> None:
    session = talkative.open(work)
    talkative.play(session, *SCRIPT)
    talkative.close()
    assert all(line.endswith(b"\n") and isinstance(json.loads(line), dict) for line in talkative.lines)
    assert talkative.stderr == b""
