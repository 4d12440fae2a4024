"""Durable runs of the real Claude Code, by its own protocol: submitted, asked at home, approved, ended; a scripted model behind it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests import real_agents
from tests.agents.claude.real_claude import ALL_TOOLS
from tests.agents.real_claude_acp import QUIET
from tests.cli.command import AtTerminal, json_lines, legation
from tests.cli.server_process import running

from legation.client import Legation
from legation.testing.model import ScriptedModel
from legation.wire.api.runs import RunEnvironment, SkillSecret
from legation.wire.api.sessions import Skills, SkillSource

pytestmark = [pytest.mark.network, pytest.mark.heavy, pytest.mark.timeout(600)]  # the first one may install

KEY = "sk-ant-canary-of-a-run-0123456789"


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of whoever started it, with the agent installed there."""
    try:
        real_agents.agent("claude")
    except real_agents.NotAvailable as error:
        pytest.skip(str(error))
    home = tmp_path_factory.mktemp("home")
    agents = home / ".local/share/legation/agents"
    agents.mkdir(parents=True)
    (agents / "claude").symlink_to(real_agents.INSTALLED / "agents" / "claude")
    with running(home, LEGATION_FOLDERS=str(tmp_path_factory.getbasetemp())) as server:
        server.line()
        yield home
        assert server.stop() == 0


def variables(model: ScriptedModel, **more: str) -> list[str]:
    quiet = {name: value for name, value in QUIET.items() if name != "ANTHROPIC_API_KEY"}
    given = {**quiet, **ALL_TOOLS, "ANTHROPIC_BASE_URL": model.url, **model.proxy_variables(), **more}
    return [f"--env={name}={value}" for name, value in given.items() if name.isupper()]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "note.txt").write_text("old\n")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=folder, check=True, timeout=60)
    return folder


async def test_a_run_is_asked_at_home_approved_at_the_terminal_and_its_patch_is_shown(
    up: Path, work: Path
) -> None:
    async with ScriptedModel() as model:
        model.call_tool("Read", {"file_path": str(work / "note.txt")})
        model.call_tool(
            "Edit", {"file_path": str(work / "note.txt"), "old_string": "old", "new_string": "new"}
        )
        model.say("Changed it.")
        argv = ["run", "Change the note", "--agent", "claude", "--repo", str(work), *variables(model)]
        terminal = AtTerminal(up, *argv, ANTHROPIC_API_KEY=KEY)
        asked = 0
        while True:
            shown = await asyncio.to_thread(_until_asked_or_ended, terminal, asked + 1)
            if not shown:
                break
            asked += 1
            if "Edit" in terminal.text:
                assert (work / "note.txt").read_text() == "old\n"
            terminal.type("y\n")
        code = await asyncio.to_thread(terminal.end)
        assert code == 0, terminal.text
        assert asked >= 1
        assert (work / "note.txt").read_text() == "new\n"
        run = terminal.text.splitlines()[0]
        assert "Changed it." in terminal.text
        assert f"{run} succeeded" in terminal.text
        assert "\n-old\n+new" in terminal.text[terminal.text.rindex("succeeded") :]
        assert KEY not in terminal.text
        assert {request.headers.get("x-api-key") for request in model.requests} == {KEY}
        (changes,) = json_lines(
            (await asyncio.to_thread(legation, up, "runs", "show", run, "--diff", "--json")).stdout
        )
        assert [(each["path"], each["status"]) for each in changes["files"]] == [("note.txt", "modified")]


def _until_asked_or_ended(terminal: AtTerminal, count: int) -> bool:
    import time

    deadline = time.monotonic() + 120
    while terminal.text.count("Allow it, once?") < count:
        if " succeeded" in terminal.text or " failed" in terminal.text:
            return False
        terminal._read(deadline)
    return True


async def test_a_usage_limit_of_the_model_suspends_it_and_it_goes_on_in_the_same_session(
    up: Path, work: Path
) -> None:
    target = work / "made.txt"
    async with ScriptedModel() as model:
        model.call_tool("Write", {"file_path": str(target), "content": "made\n"})
        model.fail(429, "slow down")
        model.say("Done after all.")
        argv = ["run", "Make it", "--agent", "claude", "--repo", str(work), "--detach", *variables(model)]
        made = await asyncio.to_thread(lambda: legation(up, *argv, ANTHROPIC_API_KEY=KEY))
        run = made.stdout.strip()
        assert made.returncode == 0, made.stderr
        with Legation.find(up / ".local/share/legation") as client:
            found = client.runs.get(run)
            await _until(lambda: found.info().waits_for)
            client.approvals.approve(str(found.info().waits_for), reasoning="yes")
            await _until(lambda: found.info().state == "suspended")
            shown = found.info()
            assert shown.liveness == "waiting-on-provider"
            assert shown.resume_at is not None
            found.resume()
            ended = await asyncio.to_thread(found.wait, 120)
        assert (ended.state, ended.attempt) == ("succeeded", 1)
        assert target.read_text() == "made\n"
        assert model.requests[-1].mentions("Continue with the task")
        assert sum(request.mentions("Make it") for request in model.requests) == len(model.requests)


async def test_a_key_that_is_refused_in_mid_run_fails_it_as_the_submitters_and_its_secrets_are_gone(
    up: Path, work: Path
) -> None:
    async with ScriptedModel() as model:
        model.call_tool("Read", {"file_path": str(work / "note.txt")})
        model.fail(401, "the key was revoked")
        argv = ["run", "Read it", "--agent", "claude", "--repo", str(work), "--json", *variables(model)]
        ended = await asyncio.to_thread(lambda: legation(up, *argv, ANTHROPIC_API_KEY=KEY))
        assert ended.returncode == 1, ended.stderr
        last = json_lines(ended.stdout)[-1]
        assert (last["state"], last["errorClass"], last["cleanup"]) == (
            "failed",
            "tenant_permanent",
            "succeeded",
        )
        assert KEY not in ended.stdout + ended.stderr


async def test_the_model_hears_of_the_skills_that_the_run_was_given_and_of_its_tools(
    up: Path, work: Path, tmp_path: Path
) -> None:
    """Also in a folder that nobody trusts: they are of whoever submitted it, and not of a repository."""
    skill = tmp_path / "skills" / "tidy-up"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        "---\nname: tidy-up\ndescription: Tidies the canary-5b1c room.\n---\nTidy.\n"
    )
    async with ScriptedModel() as model:
        model.say("I know what I have.")
        settings = dict(each.removeprefix("--env=").split("=", 1) for each in variables(model))
        with Legation.find(up / ".local/share/legation") as client:
            run = client.run(
                "claude",
                "What can you do?",
                keys={"anthropic": KEY},
                environment=RunEnvironment(env_vars=settings),
                skills=Skills(sources=[SkillSource(type="local", source=str(skill.parent))]),
                skill_secrets=[
                    SkillSecret(
                        name="own-things",
                        text="---\nname: own-things\ndescription: Knows canary-77aa.\n---\nx\n",
                    )
                ],
            )
            ended = await asyncio.to_thread(run.wait, 120)
        assert ended.state == "succeeded", ended
        told = json.dumps(model.requests[-1].body)
        assert "tidy-up: Tidies the canary-5b1c room." in told
        assert "own-things: Knows canary-77aa." in told


async def _until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not await asyncio.to_thread(reached):
            await asyncio.sleep(0.1)
