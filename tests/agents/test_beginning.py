"""How sessions by ACP begin: what is said besides, the mode, and the folders in which none begins."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.host.rig import Rig, go, of_type, rig

from legation.agents.driver import SessionStart
from legation.errors import Forbidden
from legation.host.session import Session

# Opens a session in the mode that it is given, and tells in its first turn what it was told until then.
AGENT = """
hello()
heard = []
while True:
    message = read()
    method, number = message.get("method"), message.get("id")
    if method == "session/new":
        heard.append(message["params"].get("_meta"))
        modes = [{"id": each, "name": each} for each in ("default", "plan", "careless")]
        send(id=number, result={"sessionId": "s1", "modes": {"currentModeId": MODE, "availableModes": modes}})
    elif method == "session/set_mode":
        heard.append(message["params"]["modeId"])
        send(id=number, result={})
    elif method == "session/prompt":
        update(json.dumps(heard))
        done(number)
"""


async def begun(made: Rig, mode: str, beginning: SessionStart) -> Session:
    definition = replace(made.scripted(f"MODE = {mode!r}\n{AGENT}"), beginning=beginning)
    return await made.open((await made.host.spawn_agent(definition)).agent_id)


async def heard(session: Session) -> list[object]:
    await go(session)
    (said,) = await of_type(session, "agent-message-chunk")
    return json.loads(json.loads(said.payload)["content"]["text"])  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("mode", "told", "current"),
    [
        ("careless", [{"x": {"y": 1}}, "default"], "default"),
        ("default", [{"x": {"y": 1}}], "default"),
        ("plan", [{"x": {"y": 1}}], "plan"),
    ],
)
async def test_a_session_begins_with_what_is_to_be_said_and_in_the_right_mode(
    mode: str, told: list[object], current: str, tmp_path: Path
) -> None:
    async with rig(tmp_path) as made:
        session = await begun(made, mode, SessionStart({"x": {"y": 1}}, "default", ("plan",)))
        assert await heard(session) == told
        assert session.offers.modes is not None
        assert session.offers.modes.current_mode_id == current


async def test_without_a_word_about_it_a_session_begins_as_the_agent_likes(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        assert await heard(await begun(made, "careless", SessionStart())) == [None]


async def test_no_session_begins_in_a_folder_that_the_agent_would_obey(tmp_path: Path) -> None:
    """Wherever its process was started: an editor's connection has one for all folders."""
    async with rig(tmp_path) as made:
        (made.work / "agent.json").write_text("{}")
        with pytest.raises(Forbidden, match=r"it would act on .*agent\.json"):
            await begun(made, "default", SessionStart(obeys=("agent.json",)))
        (made.work / "agent.json").unlink()
        assert await heard(await begun(made, "default", SessionStart(obeys=("agent.json",)))) == [None]
