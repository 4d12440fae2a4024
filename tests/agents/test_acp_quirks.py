"""Quirks of ACP agents that were recorded with real ones, handled for any: with an agent that shows just the quirk."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.host.rig import go, of_type, rig, until

from legation.errors import LegationError

# Says what it was answered, as a message.
TELL = "update(json.dumps(answer(1))); done(prompt)\nstay()"


async def told(source: str, place: Path) -> dict[str, object]:
    async with rig(place) as made:
        session = await made.script(source)
        await go(session)
        (said,) = await of_type(session, "agent-message-chunk")
        return json.loads(json.loads(said.payload)["content"]["text"])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "ask",
    [
        "permission(1, session='nobody', title='t')",
        "send(id=1, method='session/request_permission', params={'sessionId': 's1'})",
        "send(id=1, method='session/request_permission', params={'sessionId': 's1', 'toolCall': 3, 'options': {}})",
    ],
)
async def test_a_permission_that_nobody_can_be_asked_about_is_answered_with_a_result(
    ask: str, tmp_path: Path
) -> None:
    """After an error Codex's adapter hangs."""
    answer = await told(f"hello(); session(); prompt = prompted(); {ask}\n{TELL}", tmp_path)
    assert answer["result"] == {"outcome": {"outcome": "cancelled"}}


async def test_options_of_no_known_kind_are_never_chosen(tmp_path: Path) -> None:
    """Not even by whoever approves of everything."""
    options = "[{'optionId': 'go', 'name': 'Go', 'kind': 'allow_wisely'}]"
    ask = f"permission(1, title='t', options={options})"
    answer = await told(f"hello(); session(); prompt = prompted(); {ask}\n{TELL}", tmp_path)
    assert answer["result"] == {"outcome": {"outcome": "cancelled"}}


async def test_a_file_request_that_was_not_offered_is_answered(tmp_path: Path) -> None:
    """That it is not there: what the agent wrote by itself stays, and nothing is written for it."""
    target = tmp_path / "work" / "a.txt"
    ask = (
        "send(id=1, method='fs/write_text_file', "
        f"params={{'sessionId': 's1', 'path': {str(target)!r}, 'content': 'x'}})"
    )
    source = f"hello(); session(); prompt = prompted(); {ask}\n{TELL}"
    async with rig(tmp_path, fs=None) as made:
        session = await made.script(source)
        await go(session)
        (said,) = await of_type(session, "agent-message-chunk")
    answer = json.loads(json.loads(said.payload)["content"]["text"])
    assert answer["error"]["code"] == -32601
    assert not target.exists()


async def test_an_update_after_the_answer_is_kept(tmp_path: Path) -> None:
    source = "hello(); session(); prompt = prompted(); done(prompt); update('late')\nstay()"
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        late = await until(session, lambda event: event.type == "agent-message-chunk")
        assert json.loads(late.payload)["content"]["text"] == "late"


async def test_a_second_prompt_is_not_sent_while_the_first_is_at_work(tmp_path: Path) -> None:
    """Codex's adapter would never answer it, and Gemini would give up the first."""
    source = """
hello(); session()
first = prompted()
update("at work")
message = read()
update(str(message.get("method")))
done(first, "cancelled")
stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        turn = asyncio.create_task(go(session))
        await until(session, lambda event: event.type == "agent-message-chunk")
        with pytest.raises(LegationError):
            await go(session)
        await session.cancel()
        await turn
        said = [
            json.loads(each.payload)["content"]["text"]
            for each in await of_type(session, "agent-message-chunk")
        ]
        assert said == ["at work", "session/cancel"]
