"""Questions of agents, answered and rejected over HTTP."""

from typing import Any

import pytest
from tests.server.sessions.session_client import SessionClient

pytestmark = pytest.mark.heavy


async def asked(talk: SessionClient, *steps: str) -> str:
    await talk.created("s")
    await talk.send("s", *steps)
    return str((await talk.until("s", "question-asked"))[1]["id"])


async def reply(talk: SessionClient, question: str, answers: Any, session: str = "s") -> int:
    path = f"/v1/sessions/{session}/questions/{question}/reply"
    return int((await talk.call("POST", path, {"answers": answers})).status_code)


async def test_an_answer_reaches_the_agent_in_the_types_of_its_form(talk: SessionClient) -> None:
    question = await asked(talk, "elicit who? name:string age:integer size:number fine:boolean")
    assert await reply(talk, question, [["Ada"], ["36"], ["1.7"], ["Yes"]]) == 204
    await talk.until("s", "prompt-finished")
    assert await talk.heard("s") == 'answer: accept {"age": 36, "fine": true, "name": "Ada", "size": 1.7}'
    [answered] = await talk.events("s", "question-answered")
    assert answered["by"].startswith("token:")


async def test_a_question_is_rejected(talk: SessionClient) -> None:
    question = await asked(talk, "elicit who? name:string")
    answer = await talk.call("POST", f"/v1/sessions/s/questions/{question}/reject")
    assert answer.status_code == 204
    await talk.until("s", "prompt-finished")
    assert await talk.heard("s") == "answer: decline"


async def test_a_page_to_visit_is_accepted(talk: SessionClient) -> None:
    question = await asked(talk, "elicit-url https://example.com/ sign in")
    assert await reply(talk, question, []) == 204
    await talk.until("s", "prompt-finished")
    assert await talk.heard("s") == "answer: accept"


async def test_an_answer_that_does_not_fit_is_refused_and_the_question_waits(talk: SessionClient) -> None:
    question = await asked(talk, "elicit who? name:string age:integer fine:boolean")
    for answers in (
        [["Ada"], ["old"], ["Yes"]],
        [["Ada"], ["36"], ["perhaps"]],
        [["Ada", "Eve"], ["36"], ["Yes"]],
        [["Ada"], ["36"]],
        [["Ada"], ["36"], ["Yes"], ["more"]],
        "Ada",
        None,
    ):
        assert await reply(talk, question, answers) == 400, answers
    assert await reply(talk, question, [["Ada"], ["36"], ["false"]]) == 204
    await talk.until("s", "prompt-finished")
    assert await talk.heard("s") == 'answer: accept {"age": 36, "fine": false, "name": "Ada"}'


async def test_the_first_answer_stands_and_another_session_has_no_say(talk: SessionClient) -> None:
    question = await asked(talk, "elicit who? name:string")
    await talk.created("other")
    assert await reply(talk, question, [["Eve"]], "other") == 404
    assert await reply(talk, "qst_none", [["Eve"]]) == 404
    assert await reply(talk, question, [["Ada"]]) == 204
    assert await reply(talk, question, [["Eve"]]) == 404
    await talk.until("s", "prompt-finished")
    assert await talk.heard("s") == 'answer: accept {"name": "Ada"}'


async def test_a_cancelled_turn_takes_its_question_back(talk: SessionClient) -> None:
    question = await asked(talk, "elicit who? name:string")
    await talk.call("POST", "/v1/sessions/s/cancel")
    _, ended = await talk.until("s", "prompt-finished")
    assert ended["stopReason"] == "cancelled"
    assert await reply(talk, question, [["Ada"]]) == 404
