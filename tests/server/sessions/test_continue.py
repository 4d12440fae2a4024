"""A session that its agent cannot take up again: what is said of it, and the ways out."""

from typing import Any

import pytest
from tests.server.sessions.session_client import SessionClient

from legation.host import resume
from legation.server.sessions.messages import MOST_CONTEXT
from legation.store.stream import Stream

pytestmark = pytest.mark.heavy  # a process or more for each test

SAID = "session/load: no conversation found"


async def lost(talk: SessionClient, session: str = "old", **body: object) -> None:
    """A session with something said in it, whose agent has ended and forgotten it."""
    await talk.created(session, agent="lossy", directory=str(talk.work), **body)
    await talk.reflected(session, message="remember the parser")
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session(session).agent_id))


async def sent(talk: SessionClient, session: str, text: str) -> dict[str, Any]:
    stream = await talk.rig.services.log.stream(session)
    after = stream.head
    answer = await talk.call("POST", f"/v1/sessions/{session}/messages", {"message": text})
    assert answer.status_code == 204
    return (await talk.until(session, "prompt-finished", after=after))[1]  # type: ignore[no-any-return]


async def test_a_message_to_a_lost_session_says_all_that_the_agent_said_and_what_can_be_done(
    talk: SessionClient,
) -> None:
    await lost(talk)
    ended = await sent(talk, "old", "go on")
    assert f"Internal error ({SAID})" in ended["error"]["message"]
    assert ended["error"]["message"].endswith("try again, or go on in a new session that continues this one")
    assert ended["error"]["data"] == {"details": SAID, "where": "the agent's own words"}


async def test_a_lost_session_is_read_and_taken_up_when_the_agent_has_it_again(talk: SessionClient) -> None:
    await lost(talk)
    assert "error" in await sent(talk, "old", "go on")
    info = await talk.info("old")
    assert (info["status"], info["busy"], info["ended"], info["queued"]) == ("disconnected", False, False, 0)
    assert "remember the parser" in await talk.heard("old")
    (talk.work / "found").touch()
    again = await talk.reflected("old", message="are you there")
    assert again["opened"] == "session/resume"
    prompts = [each["prompt"][0]["text"] for each in await talk.events("old", "prompt-started")]
    assert prompts == ["remember the parser", "go on", "are you there"]


async def test_messages_that_wait_for_a_lost_session_are_all_shown(talk: SessionClient) -> None:
    await lost(talk)
    stream = await talk.rig.services.log.stream("old")
    after = stream.head
    for number in range(3):
        answer = await talk.call("POST", "/v1/sessions/old/messages", {"message": f"number {number}"})
        assert answer.status_code == 204
    for _ in range(3):
        after, ended = await talk.until("old", "prompt-finished", after=after)
        assert SAID in ended["error"]["message"]
    prompts = [each["prompt"][0]["text"] for each in await talk.events("old", "prompt-started")]
    assert prompts[1:] == ["number 0", "number 1", "number 2"]


async def test_a_lost_session_is_terminated_and_continued_still(talk: SessionClient) -> None:
    await lost(talk)
    await sent(talk, "old", "go on")
    assert (await talk.call("POST", "/v1/sessions/old/terminate")).status_code == 204
    assert (await talk.info("old"))["ended"] is True
    await talk.created("new", agent="lossy", continues="old")
    heard = await talk.reflected("new", message="what next")
    assert "remember the parser" in heard["prompt"][0]["text"]
    assert (await talk.info("old"))["continuedBy"] == "new"


async def test_a_session_goes_on_in_another_with_its_transcript(talk: SessionClient) -> None:
    servers = {"a": {"type": "local", "command": "a", "env": {"K": "v"}}}
    await lost(talk, model="large", mcp=servers)
    await sent(talk, "old", "go on")
    await talk.created("new", agent="lossy", continues="old")
    heard = await talk.reflected("new", message="what next")
    context, message = heard["prompt"]
    assert message["text"] == "what next"
    assert "<transcript>\n[user]\nremember the parser\n\n[agent]\n" in context["text"]
    assert "\n\n[user]\ngo on\n</transcript>" in context["text"]
    # It is set as the other was.
    assert (heard["opened"], heard["cwd"], heard["chosen"]["model"]) == (
        "session/new",
        str(talk.work),
        "large",
    )
    assert heard["mcpServers"][0]["env"] == [{"name": "K", "value": "v"}]
    # Once: from then on the agent knows it.
    assert [each["text"] for each in (await talk.reflected("new", message="and then"))["prompt"]] == [
        "and then"
    ]
    old, new = await talk.info("old"), await talk.info("new")
    assert (new["continues"], new["continuedBy"]) == ("old", None)
    assert (old["continues"], old["continuedBy"]) == (None, "new")
    # The other is as it was.
    assert old["status"] == "disconnected"
    assert len(await talk.events("old", "prompt-started")) == 2


async def test_another_agent_goes_on_with_what_it_is_told(talk: SessionClient) -> None:
    await lost(talk, model="large")
    await talk.created("new", agent="mirror", continues="old")
    heard = await talk.reflected("new", message="what next")
    assert "remember the parser" in heard["prompt"][0]["text"]
    assert (heard["cwd"], heard["chosen"]["model"], heard["mcpServers"]) == (str(talk.work), "small", [])


async def test_a_long_transcript_is_cut_at_its_beginning(talk: SessionClient) -> None:
    await talk.created("old")
    await talk.played("old", "flood 6000", "say the last word")
    await talk.created("new", agent="mirror", continues="old")
    (context, _) = (await talk.reflected("new", message="what next"))["prompt"]
    assert MOST_CONTEXT // 2 < len(context["text"]) < MOST_CONTEXT + 1000
    assert "what came before is left out" in context["text"]
    assert "the last word" in context["text"]


async def test_what_was_not_told_is_told_with_the_next_message_that_the_agent_gets(
    talk: SessionClient,
) -> None:
    """The first one found no agent."""
    await lost(talk)
    await talk.created("new", agent="lossy", continues="old")
    host = await talk.rig.services.hosts.host()
    await host.dispose_agent(str(host.session("new").agent_id))
    assert SAID in (await sent(talk, "new", "first"))["error"]["message"]
    (talk.work / "found").touch()
    heard = await talk.reflected("new", message="second")
    assert "remember the parser" in heard["prompt"][0]["text"]


async def test_only_a_session_that_there_is_can_be_continued(talk: SessionClient) -> None:
    answer = await talk.create("new", agent="mirror", continues="never")
    assert (answer.status_code, answer.json()["code"]) == (404, "legation/not-found")
    await talk.created("old", agent="mirror")
    both = await talk.create("new", agent="mirror", continues="old", fork="old")
    assert (both.status_code, "`fork` or `continues`" in both.json()["detail"]) == (400, True)
    assert (await talk.call("GET", "/v1/sessions/new")).status_code == 404


async def test_a_message_whose_agent_goes_while_the_transcript_is_read_is_not_lost(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lost(talk)
    await talk.created("new", agent="mirror", continues="old")
    host = await talk.rig.services.hosts.host()
    read = resume.transcript_of

    async def read_without_an_agent(stream: Stream, limit: int) -> str:
        await host.dispose_agent(str(host.session("new").agent_id))
        return await read(stream, limit)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(resume, "transcript_of", read_without_an_agent)
        ended = await sent(talk, "new", "first")
    assert "cannot reach the agent" in ended["error"]["message"]
    heard = await talk.reflected("new", message="second")
    assert "remember the parser" in heard["prompt"][0]["text"]
    prompts = [each["prompt"][0]["text"] for each in await talk.events("new", "prompt-started")]
    assert prompts == ["first", heard["prompt"][0]["text"]]
