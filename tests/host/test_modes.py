"""INV-C1: whatever mode an agent begins in, comes back in or goes to, it works in one in which it asks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agents.modes_agent import QWEN, VIBE, moody
from tests.host.at_a_door import at_a_door
from tests.host.rig import Hand, Rig, go, of_type, rig, until_status, until_type

from legation.agents.driver import AskingModes
from legation.agents.modes import current_mode
from legation.errors import AgentExited, Forbidden
from legation.host.options import Backoff
from legation.host.requests.handlers import DenyAll
from legation.host.session import Session

pytestmark = pytest.mark.heavy  # an agent's process for most

WRITES = """
name: p
rules:
  - {id: edits, kind: edit, action: allow}
  - {id: rest, action: deny}
"""


async def told(session: Session, type_: str) -> list[dict[str, Any]]:
    return [json.loads(event.payload) for event in await of_type(session, type_)]


def written(made: Rig) -> bool:
    return (made.work / "out.txt").exists()


@pytest.mark.parametrize("agent", [QWEN, VIBE], ids=["qwen-code", "mistral-vibe"])
async def test_an_agent_that_opens_in_a_mode_that_does_not_ask_is_put_into_one_that_does(
    agent: str, tmp_path: Path
) -> None:
    async with rig(tmp_path, approver=DenyAll()) as made:
        session = await made.script(agent)
        assert current_mode(session.offers) == "default"
        await go(session)
        assert not written(made)
        [asked] = await told(session, "permission-asked")
        assert asked["action"]["kind"] == "edit"
        [found] = await told(session, "unasking-mode")
        assert (found["found"], found["putInto"]) == ("opened", "default")
        assert await told(session, "unasked-effect") == []


@pytest.mark.parametrize("forgets", [False, True], ids=["says its mode", "says nothing"])
@pytest.mark.parametrize("way", ["resume", "load"])
async def test_an_agent_that_comes_back_in_such_a_mode_is_put_right_again(
    way: str, forgets: bool, tmp_path: Path
) -> None:
    can = {"loadSession": True, "sessionCapabilities": {"resume": {}}}
    async with rig(tmp_path, approver=DenyAll()) as made:
        session = await made.script(moody(can=can, forgets=forgets))
        assert session.agent_id
        take_up = made.host.resume_session if way == "resume" else made.host.load_session
        await take_up(session.agent_id, session.id)
        await go(session)
        assert not written(made)
        assert len(await told(session, "permission-asked")) == 1


async def test_an_agent_that_crashed_is_put_right_when_its_session_is_taken_up(tmp_path: Path) -> None:
    can: dict[str, Any] = {"sessionCapabilities": {"resume": {}}}
    first = 'if not os.path.exists("crashed"): CRASHES = True\nelse: CRASHES = False\n'
    agent = moody(can=can).replace(
        'elif method == "session/prompt":',
        'elif method == "session/prompt" and CRASHES:\n        open("crashed", "w").close(); os._exit(1)\n'
        '    elif method == "session/prompt":',
    )
    backoff = Backoff(initial_ms=1)
    async with rig(tmp_path, approver=DenyAll(), restart="on-crash", restart_backoff=backoff) as made:
        session = await made.script(first + agent)
        before = session.stream.head
        with pytest.raises(AgentExited):
            await go(session)
        await until_status(session, "active", after=before)
        await go(session)
        assert not written(made)
        found = await told(session, "unasking-mode")
        assert [each["putInto"] for each in found] == ["default", "default"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"offers": ["auto", "yolo"]}, "no mode in which it asks"),
        ({"obeys": False}, "no"),
    ],
    ids=["has none", "refuses"],
)
async def test_an_agent_that_cannot_be_put_right_is_told_of_on_transcript_and_trace(
    settings: dict[str, Any], why: str, tmp_path: Path
) -> None:
    async with at_a_door(tmp_path) as at:
        session = await at.made.script(moody(**settings))
        [found] = await told(session, "unasking-mode")
        assert (found["mode"], found["found"], found.get("putInto")) == ("auto", "opened", None)
        assert why in found["reason"]
        await go(session)
        entries = await at.door.installation.entries(session=session.id)
        assert ("switch_mode", "unasked") in [(each.tool, each.reason) for each in entries]


async def test_an_agent_that_leaves_its_asking_mode_is_told_of_and_put_back(tmp_path: Path) -> None:
    async with at_a_door(tmp_path, WRITES) as at:
        session = await at.made.script(moody(opens="default", leaves="yolo"))
        await go(session)
        found = json.loads((await until_type(session, "unasking-mode")).payload)
        assert (found["mode"], found["found"], found["putInto"]) == ("yolo", "left", "default")
        assert current_mode(session.offers) == "default"
        entries = await at.door.until(lambda: at.door.installation.entries(session=session.id), bool)
        assert [(each.tool, each.policy, each.reason) for each in entries] == [
            ("switch_mode", "deny", "unasked")
        ]


async def test_an_agent_that_names_its_options_late_is_put_back_likewise(tmp_path: Path) -> None:
    agent = moody(opens="default", leaves="yolo", as_option=True)
    agent = agent.replace(
        'opened(sessionId="s1"))', '{"sessionId": "s1"} if method == "session/new" else opened())'
    )
    agent = agent.replace(
        'say("current_mode_update", currentModeId=current)', 'say("config_option_update", **opened())'
    )
    async with rig(tmp_path, approver=DenyAll()) as made:
        session = await made.script(agent)
        await go(session)
        found = json.loads((await until_type(session, "unasking-mode")).payload)
        assert (found["mode"], found["found"], found.get("putInto")) == ("yolo", "left", "default")
        assert current_mode(session.offers) == "default"
        await made.host.set_config_option(session.id, "mode", "plan")
        assert current_mode(session.offers) == "plan"


async def test_no_way_into_a_host_sets_a_mode_that_does_not_ask(tmp_path: Path) -> None:
    async with rig(tmp_path, approver=Hand()) as made:
        session = await made.script(QWEN)
        with pytest.raises(Forbidden, match="cannot choose mode 'yolo'"):
            await made.host.set_mode(session.id, "yolo")
        option = await made.script(VIBE)
        with pytest.raises(Forbidden, match="cannot choose mode 'auto-approve'"):
            await made.host.set_config_option(option.id, "mode", "auto-approve")
        assert current_mode(session.offers) == current_mode(option.offers) == "default"


async def test_what_the_catalogue_says_of_a_mode_counts_more_than_its_name(tmp_path: Path) -> None:
    agent = moody(opens="turbo", offers=["turbo", "default", "auto"], asking={"auto"})
    async with rig(tmp_path, approver=DenyAll()) as made:
        modes = AskingModes(asking=("Auto",), unasking=("turbo", "default"))
        definition = replace(made.scripted(agent), modes=modes)
        session = await made.open((await made.host.spawn_agent(definition)).agent_id)
        assert current_mode(session.offers) == "auto"
        await go(session)
        assert not written(made)
        with pytest.raises(Forbidden):
            await made.host.set_mode(session.id, "default")
