"""What an agent asks of its client, through a real connection."""

import json
from pathlib import Path

import pytest
from tests.host.rig import Hand, go, of_type, play, rig, until

from legation.agents import rpc
from legation.agents.acp import AcpAgent
from legation.agents.rpc import REQUESTS_AT_ONCE
from legation.errors import AgentError
from legation.redact import Redactor
from legation.secret import Secret

KEY = "sk-very-secret-0123456789"


async def test_an_agent_reads_and_writes_through_its_client(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "fs-write new/file.txt hello", "fs-read new/file.txt")
        assert (made.work / "new" / "file.txt").read_text() == "hello"
        updates = [json.loads(event.raw) for event in await of_type(session, "tool-call-update")]
        assert [each["status"] for each in updates].count("completed") == 2
        assert "hello" in json.dumps(updates[-1])


async def test_a_hostile_agent_gets_nothing_from_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("top secret")
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        (made.work / "link").symlink_to(tmp_path / "secret")
        await play(
            session, "fs-read! ../secret", "fs-read! link", "fs-write! ../secret x", "fs-write! link x"
        )
        said = [event.raw for event in await of_type(session, "tool-call-update")]
        assert sum(b"outside the session's folders" in raw for raw in said) == 4
        assert not any(b"top secret" in raw for raw in said)
        assert (tmp_path / "secret").read_text() == "top secret"


async def test_requests_of_no_known_method_are_answered(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        await play(session, "unknown-request", "terminal! ls", "elicit! who")
        said = b"".join(event.raw for event in await of_type(session, "agent-message-chunk"))
        assert b"error -32601" in said


async def test_files_of_a_strange_session_are_refused(tmp_path: Path) -> None:
    source = """
hello(); session(); prompt = prompted()
send(id=1, method="fs/read_text_file", params={"sessionId": "stranger", "path": "/etc/passwd"})
update(json.dumps(answer(1))); done(prompt); stay()
"""
    async with rig(tmp_path) as made:
        session = await made.script(source)
        await go(session)
        (said,) = await of_type(session, "agent-message-chunk")
        assert "-32602" in json.loads(said.raw)["content"]["text"]


async def test_a_runaway_is_refused_beyond_the_bound_and_every_request_is_answered(tmp_path: Path) -> None:
    count = REQUESTS_AT_ONCE + 50
    source = f"""
hello(); session(); prompt = prompted()
for number in range({count}):
    send(id=f"p{{number}}", method="session/request_permission", params={{"sessionId": "s1",
         "toolCall": {{"toolCallId": str(number), "title": "t"}}, "options": OPTIONS}})
refused = sum("error" in answer(f"p{{number}}") for number in range({REQUESTS_AT_ONCE}, {count}))
update(str(refused)); done(prompt)
for number in range({REQUESTS_AT_ONCE}): answer(f"p{{number}}")
update("all"); stay()
"""
    async with rig(tmp_path, approver=Hand()) as made:
        session = await made.script(source)
        await go(session)
        said = (await of_type(session, "agent-message-chunk"))[0]
        assert json.loads(said.raw)["content"]["text"] == "50"
        await until(session, lambda event: b'"all"' in event.raw)
        assert len(await of_type(session, "permission-answered")) == REQUESTS_AT_ONCE


async def test_a_secret_in_what_the_agent_says_reaches_nobody(tmp_path: Path) -> None:
    redactor = Redactor([Secret(KEY, "api-key")])
    source = f"""
hello(); session(); prompt = prompted(); update("my key is {KEY}"); raw(b"garbage {KEY}\\n")
permission(1, title="use {KEY}"); answer(1)
os.write(2, b"leaking {KEY}"); os._exit(1)
"""
    async with rig(tmp_path, redact=redactor.bytes) as made:
        session = await made.script(source)
        try:
            await go(session)
        except Exception as error:  # noqa: BLE001 - all of it is searched
            told = f"{error!r} {error.__cause__!r} {error.__context__!r}"
        await made.host.dispose()
        seen = [event.raw + event.native async for event in session.stream.subscribe(follow=False)]
        seen += [told.encode(), repr(made.reported).encode()]
        assert not any(KEY.encode() in each for each in seen)
        assert sum(b"[redacted:api-key]" in each for each in seen) >= 6


async def test_an_error_that_quotes_a_secret_is_redacted(tmp_path: Path) -> None:
    redactor = Redactor([Secret(KEY, "api-key")])
    async with rig(tmp_path, redact=redactor.bytes) as made:
        session = await made.rehearse(env={"MODEL_KEY": KEY})
        result = await play(session, f"error -32603 bad key {KEY}")
        assert result.error is not None
        assert result.error.message == "bad key [redacted:api-key]"
        await play(session, "env! MODEL_KEY")
        (said,) = await of_type(session, "agent-message-chunk")
        assert b"MODEL_KEY=[redacted:api-key]" in said.raw


@pytest.mark.heavy
async def test_an_agent_that_asks_and_never_reads_is_held_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for it stays near the bound, however much it asks for."""
    monkeypatch.setattr(rpc, "OUTBOX_LIMIT", 1_000_000)
    monkeypatch.setattr(rpc, "WRITE_TIMEOUT", 1.0)
    asks = """
import time
hello(); session(); prompted()
path = PATH
for number in range(500):
    send(id=f"r{number}", method="fs/read_text_file", params={"sessionId": "s1", "path": path})
    time.sleep(0.01)  # so that the answers are made, one by one
stay()
"""
    async with rig(tmp_path) as made:
        big = made.work / "big.txt"
        big.write_text("x" * 100_000)
        session = await made.script(asks.replace("PATH", repr(str(big))))
        assert isinstance(session.agent, AcpAgent)
        child = session.agent.child
        with pytest.raises(AgentError):
            await go(session)
        assert any(each.code == "agent/process-error" for each in made.reported)
        assert child.unsent < 1_000_000 + rpc.REQUESTS_AT_ONCE * 110_000
