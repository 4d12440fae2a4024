from pathlib import Path

import pytest
from tests.agents.rehearsal.raw_client import RawClient

from legation.agents.rehearsal.steps import CONTENTS, STOP_REASONS

pytestmark = pytest.mark.heavy  # a process or more for each test


def test_long_text_is_streamed_in_pieces_of_one_message(client: RawClient, work: Path) -> None:
    session = client.open(work)
    text = "A sentence that is a good deal longer than one piece of it."
    played = client.play(session, f"say {text}", "think and so on")
    chunks = played.of("agent_message_chunk")
    assert played.text == text
    assert len(chunks) > 1
    assert len({chunk["messageId"] for chunk in chunks}) == 1
    assert played.of("agent_thought_chunk")[0]["content"] == {"type": "text", "text": "and so on"}


def test_plan_entries_are_marked_as_done(client: RawClient, work: Path) -> None:
    session = client.open(work)
    plans = client.play(session, "plan look; fix", "plan-done 1").of("plan")
    assert [[entry["status"] for entry in plan["entries"]] for plan in plans] == [
        ["pending", "pending"],
        ["completed", "pending"],
    ]
    assert plans[0]["entries"][1] == {"content": "fix", "status": "pending", "priority": "medium"}


def test_plans_that_have_names_come_and_go(client: RawClient, work: Path) -> None:
    played = client.play(client.open(work), "named-plan tidy look; fix", "plan-removed tidy")
    told, removed = played.updates
    assert told["plan"]["planId"] == removed["planId"] == "tidy"
    assert [entry["content"] for entry in told["plan"]["entries"]] == ["look", "fix"]
    assert [update["sessionUpdate"] for update in played.updates] == ["plan_update", "plan_removed"]


def test_small_updates_carry_what_the_step_says(client: RawClient, work: Path) -> None:
    session = client.open(work)
    played = client.play(
        session,
        "user what I meant",
        "usage 10 100 0.25",
        "mode plan",
        "model rehearsal-terse",
        "commands a, b",
        "title A name",
    )
    user, usage, mode, config, commands, info = played.updates
    assert user["content"]["text"] == "what I meant"
    assert (usage["used"], usage["size"], usage["cost"]["amount"]) == (10, 100, 0.25)
    assert mode == {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
    assert config["configOptions"][0]["currentValue"] == "rehearsal-terse"
    assert [command["name"] for command in commands["availableCommands"]] == ["a", "b"]
    assert info["title"] == "A name"


def test_notices_and_compaction_go_only_to_clients_that_take_them(client: RawClient, work: Path) -> None:
    session = client.open(work)
    played = client.play(session, "notice warning Take care", "compact all of it")
    tags = ["notice", "compaction_update", "compaction_summary_chunk", "compaction_update"]
    assert [update["sessionUpdate"] for update in played.updates] == tags
    assert played.of("notice")[0]["severity"] == "warning"

    client.call("initialize", {"protocolVersion": 1})
    assert client.play(session, "notice info Take care", "compact all of it").text == "Take careall of it"
    forced = client.play(session, "notice! dire Look out", "compact! x")
    assert forced.of("notice")[0]["severity"] == "dire"
    assert len(forced.of("compaction_update")) == 2


@pytest.mark.parametrize("kind", list(CONTENTS))
def test_content_comes_in_every_kind(client: RawClient, work: Path, kind: str) -> None:
    session = client.open(work)
    assert client.play(session, f"content {kind}").updates[0]["content"]["type"] == kind


def test_echo_says_the_prompt(client: RawClient, work: Path) -> None:
    session = client.open(work)
    assert client.play(session, "echo", "# \ud800 alone").text == "#!rehearse\necho\n# \ud800 alone"


@pytest.mark.parametrize("reason", STOP_REASONS)
def test_stop_ends_the_turn_with_its_reason(client: RawClient, work: Path, reason: str) -> None:
    session = client.open(work)
    played = client.play(session, f"stop {reason}", "say never")
    assert (played.stop, played.text) == (reason, "")


def test_a_limit_is_reached_for_as_many_prompts_as_wanted(client: RawClient, work: Path) -> None:
    session = client.open(work)
    for _ in range(2):
        assert client.play(session, "limit 2.5 2", "say on").answer["error"] == {
            "code": -32603,
            "message": "the usage limit of the account is reached",
            "data": {"errorKind": "rate_limit", "status": 429, "retryAfter": 2.5},
        }
    assert client.play(session, "limit 2.5 2", "say on").text == "on"


def test_refuse_error_and_a_made_up_reason_end_the_turn(client: RawClient, work: Path) -> None:
    session = client.open(work)
    refused = client.play(session, "refuse I would rather not", "say never")
    assert (refused.stop, refused.text) == ("refusal", "I would rather not")
    assert client.play(session, "error -32050 out of luck").answer["error"] == {
        "code": -32050,
        "message": "out of luck",
    }
    assert client.play(session, "stop! boredom").stop == "boredom"


def test_a_bad_line_is_named_and_nothing_is_played(client: RawClient, work: Path) -> None:
    session = client.open(work)
    played = client.play(session, "write a.txt x", "sya hello")
    assert played.stop == "refusal"
    assert played.text == "cannot play line 3: there is no step `sya`; the nearest is `say`."
    assert not (work / "a.txt").exists()
