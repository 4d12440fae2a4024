"""The folders of agents, after a host that was killed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from legation.host.agent import LEFT_AFTER, AgentHomes
from legation.host.options import AgentDefinition
from legation.proc import FileStdio, ProcessLauncher, Registry


def aged(folder: Path) -> Path:
    then = folder.stat().st_mtime - LEFT_AFTER - 1
    os.utime(folder, (then, then))
    return folder


def test_what_a_killed_host_left_in_temporary_folders_goes_and_homes_stay(tmp_path: Path) -> None:
    places = AgentHomes.open(tmp_path)
    command, tmp = places.command(AgentDefinition(id="a", command="true"))
    (tmp / "settings.json").write_text("a secret")
    _, young = places.command(AgentDefinition(id="a", command="true"))
    aged(tmp)
    AgentHomes.open(tmp_path)
    assert not tmp.exists()
    assert young.exists()  # somebody may be signing in
    assert Path(command.env["HOME"]).exists()


async def test_while_another_host_has_agents_nothing_goes(tmp_path: Path) -> None:
    places = AgentHomes.open(tmp_path)
    command, tmp = places.command(AgentDefinition(id="a", command="cat"))
    async with await ProcessLauncher(registry=Registry(places.children)).spawn(command):
        aged(tmp)
        AgentHomes.open(tmp_path)
        assert tmp.exists()


async def test_while_a_detached_child_lives_without_an_owner_nothing_goes(tmp_path: Path) -> None:
    places = AgentHomes.open(tmp_path)
    command, tmp = places.command(AgentDefinition(id="a", command="sleep", args=("600",)))
    files = FileStdio(tmp_path, "out", "err")
    launcher = ProcessLauncher(registry=Registry(places.children))
    child = await launcher.spawn(replace(command, detached=True, files=files))
    await child.release()
    aged(tmp)
    AgentHomes.open(tmp_path)
    assert tmp.exists()
    async with await launcher.adopt(child.pid, child.started) as child:
        await child.stop()
    AgentHomes.open(tmp_path)
    assert not tmp.exists()
