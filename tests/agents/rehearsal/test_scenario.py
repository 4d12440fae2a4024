import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agents.rehearsal.conftest import StartAgent
from tests.agents.rehearsal.raw_client import WAIT

from legation.agents.rehearsal.agent import ScenarioError, load

TURNS = """
pace = 0.001
early = true
turns = [["say one", "repeat 2 {", "say again", "}"], ["say two"]]
"""


def test_each_prompt_plays_its_turn_and_the_last_one_ever_after(
    start_agent: StartAgent, work: Path, tmp_path: Path
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(TURNS)
    client = start_agent("--scenario", str(path))
    session = client.open(work)
    said = [client.prompt(session, "go").text for _ in range(3)]
    assert said == ["oneagainagain", "two", "two"]
    assert client.play(session, "say a script is still a script").text == "a script is still a script"


def test_json_has_the_same_fields(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"steps": ["say hi"], "require_auth": True}))
    scenario = load(path)
    assert scenario.require_auth
    assert scenario.script(1) == scenario.script(9) is not None


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("s.json", "[]", "cannot read scenario"),
        ("s.toml", "steps = [", "cannot read scenario"),
        ("s.toml", "step = []", "step unknown"),
        ("s.toml", "steps = 'say hi'", "a turn is a list of lines"),
        ("s.toml", "turns = 3", "steps and turns are lists"),
        ("s.toml", "steps = ['say hi', 'sya ho']", "cannot play line 2"),
    ],
)
def test_a_bad_scenario_is_refused_with_the_reason(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ScenarioError, match=problem):
        load(path)


@pytest.mark.parametrize("options", [["--scenario", "/no/such/file"], []])
def test_an_agent_that_cannot_start_says_why_and_exits_2(options: list[str]) -> None:
    argv = [sys.executable, "-m", "legation.agents.rehearsal", *options]
    done = subprocess.run(
        argv,
        env={"PATH": os.defpath},
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"cannot ")
    assert done.stdout == b""
