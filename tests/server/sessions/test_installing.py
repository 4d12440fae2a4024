"""Creating a session installs a locked agent that is missing; the agent is the rehearsal one in disguise."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.agents.catalogue.machine import disguised
from tests.agents.install.local_registry import LocalRegistry, local_registry
from tests.server.sessions.session_client import SessionClient, open_session_client

from legation.agents.catalogue.catalogue import Catalogue

pytestmark = pytest.mark.heavy


@pytest.fixture
def registry() -> Iterator[LocalRegistry]:
    with local_registry() as served:
        yield served


@pytest.fixture
async def talk(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    registry: LocalRegistry,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[SessionClient]:
    environ = {**registry.environ, "PATH": os.defpath, "OPENAI_API_KEY": "canary-key"}
    made = partial(Catalogue, environ=environ, lock=disguised(registry))
    monkeypatch.setattr("legation.host.launch.Catalogue", made)
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as opened:
        yield opened


async def test_a_missing_agent_is_installed_with_the_session(
    talk: SessionClient, registry: LocalRegistry
) -> None:
    before = (await talk.call("GET", "/v1/agents/codex-acp")).json()
    assert (before["installed"], before["wantedVersion"]) == (False, "7.0.0")
    await talk.created("s", agent="codex-acp", agentVersion="7.0.0")
    await talk.played("s", "env! OPENAI_API_KEY")
    # The machine's owner is the first workspace's; nobody else learns the key from what its agent says.
    assert "OPENAI_API_KEY=[redacted:OPENAI_API_KEY]" in await talk.heard("s")
    asked = len(registry.asked)
    await talk.created("t", agent="codex-acp")
    assert len(registry.asked) == asked
    answer = (await talk.call("POST", "/v1/agents/codex-acp/install", {})).json()
    assert answer["already_installed"] is True
    assert answer["artifacts"][0]["version"] == "7.0.0"


async def test_the_keys_of_the_server_are_for_its_first_workspace_alone(talk: SessionClient) -> None:
    theirs = await talk.rig.bearer(talk.rig.people["stranger"], workspace=talk.rig.other)
    body = {"agent": "codex-acp"}
    assert (await talk.call("POST", "/v1/sessions/s", body, theirs)).status_code == 200
    message = {"message": "#!rehearse\nenv! OPENAI_API_KEY\nsay done"}
    assert (await talk.call("POST", "/v1/sessions/s/messages", message, theirs)).status_code == 204
    stream = await talk.rig.services.log.stream("s", talk.rig.other)
    said = b""
    async for event in stream.subscribe():
        said += event.raw
        if event.type == "prompt-finished":
            break
    assert b"done" in said
    assert b"canary-key" not in said


async def test_an_agent_that_does_not_arrive_is_told_and_leaves_no_session(
    talk: SessionClient, registry: LocalRegistry
) -> None:
    registry.files.clear()
    answer = await talk.create("s", agent="codex-acp")
    assert answer.status_code >= 400
    assert answer.json()["detail"].startswith("cannot")
    assert (await talk.call("GET", "/v1/sessions")).json()["sessions"] == []
    assert not (talk.rig.services.settings.data_dir / "work/local/s").exists()


async def test_installing_again_fetches_again(talk: SessionClient, registry: LocalRegistry) -> None:
    assert (await talk.call("POST", "/v1/agents/codex-acp/install", {})).json()["already_installed"] is False
    asked = len(registry.asked)
    answer = await talk.call("POST", "/v1/agents/codex-acp/install", {"reinstall": True})
    assert answer.json()["already_installed"] is False
    assert len(registry.asked) > asked
    assert (await talk.call("POST", "/v1/agents/codex-acp/install", {"agentVersion": "1"})).status_code == 404


async def test_an_installation_is_followed_byte_by_byte_and_says_how_it_ended(
    talk: SessionClient, registry: LocalRegistry
) -> None:
    async def followed() -> list[tuple[str, dict[str, object]]]:
        answer = await talk.call("POST", "/v1/agents/codex-acp/install/stream", {})
        assert answer.headers["content-type"] == "text/event-stream"
        frames = [each.split("\n") for each in answer.text.split("\n\n") if "event: " in each]
        return [
            (event.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for event, data in frames
        ]

    *_, (last, told) = await followed()
    assert (last, told["already_installed"]) == ("installed", False)
    assert [event for event, _ in await followed()] == ["installed"]  # it is there
    assert (await talk.call("POST", "/v1/agents/nobody/install/stream", {})).status_code == 404


async def test_an_installation_that_fails_says_why_at_its_end(
    talk: SessionClient, registry: LocalRegistry
) -> None:
    registry.files.clear()
    answer = await talk.call("POST", "/v1/agents/codex-acp/install/stream", {})
    assert "event: failed" in answer.text
    assert json.loads(answer.text.rpartition("data: ")[2])["detail"].startswith("cannot fetch")
