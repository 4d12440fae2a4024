from pathlib import Path
from typing import Any

import pytest
from tests.agents.rehearsal.raw_client import RawClient

pytestmark = pytest.mark.heavy  # a process or more for each test


def test_files_are_read_and_written_through_the_client(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.handlers["fs/read_text_file"] = lambda _: {"content": "from the editor"}
    client.handlers["fs/write_text_file"] = lambda _: {}
    played = client.play(session, "fs-read a.txt", "fs-write b.txt new text")
    read, write = (request["params"] for request in played.requests)
    assert read == {"sessionId": session, "path": str(work / "a.txt")}
    assert write == {"sessionId": session, "path": str(work / "b.txt"), "content": "new text"}
    assert played.of("tool_call_update")[1]["content"][0]["content"]["text"] == "from the editor"
    assert not (work / "b.txt").exists()


def test_messages_of_its_own_go_to_the_client(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.handlers["_rehearsal/ask"] = lambda params: {"heard": params["text"]}
    played = client.play(session, "vendor-note by the way", "vendor-ask and now?")
    note, ask = played.requests
    assert (note["method"], ask["method"]) == ("_rehearsal/note", "_rehearsal/ask")
    assert note["params"] == {"sessionId": session, "text": "by the way"}
    assert "id" in ask
    assert "id" not in note
    assert "and now?" in played.text


def test_a_terminal_is_created_watched_and_released(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.handlers.update(
        {
            "terminal/create": lambda _: {"terminalId": "t1"},
            "terminal/wait_for_exit": lambda _: {"exitCode": 0, "signal": None},
            "terminal/output": lambda _: {"output": "hi\n", "truncated": False},
            "terminal/release": lambda _: {},
        }
    )
    played = client.play(session, "terminal echo hi")
    methods = [request["method"] for request in played.requests]
    assert methods == ["terminal/create", "terminal/wait_for_exit", "terminal/output", "terminal/release"]
    assert played.requests[0]["params"]["args"] == ["-c", "echo hi"]
    assert played.outcome["rawOutput"] == {"exitCode": 0, "signal": None, "output": "hi\n"}
    assert {"type": "terminal", "terminalId": "t1"} in played.of("tool_call_update")[1]["content"]


def test_a_cancel_kills_and_releases_the_terminal(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.handlers["terminal/create"] = lambda _: {"terminalId": "t1"}
    prompt = client.start(session, "terminal sleep 60")
    waiting = client.until(prompt, stop=lambda m: m.get("method") == "terminal/wait_for_exit")
    client.send(method="session/cancel", params={"sessionId": session})
    client.until(prompt, stop=lambda m: m.get("method") == "$/cancel_request")
    client.send(id=waiting.requests[-1]["id"], error={"code": -32800, "message": "cancelled"})
    ended = client.until(prompt)
    assert [request["method"] for request in ended.requests] == ["terminal/kill", "terminal/release"]
    assert ended.stop == "cancelled"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"action": "accept", "content": {"n": 3, "sure": True}}, 'answer: accept {"n": 3, "sure": true}'),
        ({"action": "decline"}, "answer: decline"),
        ({"action": "cancel"}, "answer: cancel"),
    ],
)
def test_a_form_is_sent_and_its_answer_said(
    client: RawClient, work: Path, answer: dict[str, Any], said: str
) -> None:
    session = client.open(work)
    client.handlers["elicitation/create"] = lambda _: answer
    played = client.play(session, "elicit How many? n:integer sure:boolean")
    params = played.requests[0]["params"]
    assert (params["mode"], params["message"]) == ("form", "How many?")
    assert params["requestedSchema"]["properties"]["n"]["type"] == "integer"
    assert params["requestedSchema"]["required"] == ["n", "sure"]
    assert played.text == said


def test_a_page_is_offered_and_completed(client: RawClient, work: Path) -> None:
    session = client.open(work)
    client.handlers["elicitation/create"] = lambda _: {"action": "accept"}
    played = client.play(session, "elicit-url https://example.invalid/x Sign in")
    asked, done = played.requests
    assert (asked["params"]["mode"], asked["params"]["url"]) == ("url", "https://example.invalid/x")
    assert done["method"] == "elicitation/complete"
    assert done["params"]["elicitationId"] == asked["params"]["elicitationId"]


STEPS = [
    "fs-read a.txt",
    "fs-write a.txt x",
    "terminal ls",
    "elicit What?",
    "elicit-url https://x.invalid Go",
]


@pytest.mark.parametrize("step", STEPS)
def test_what_the_client_does_not_offer_is_not_called_unless_forced(
    client: RawClient, work: Path, step: str
) -> None:
    session = client.open(work, capabilities={})
    assert client.play(session, step).requests == []
    name, rest = step.split(" ", 1)
    forced = client.play(session, f"{name}! {rest}")
    assert len(forced.requests) == 1
    assert forced.stop == "end_turn"


def test_an_unknown_request_says_how_it_was_answered(client: RawClient, work: Path) -> None:
    session = client.open(work)
    assert client.play(session, "unknown-request").text == "unknown request: error -32601"
