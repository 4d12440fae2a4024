"""Fields of a configuration and names of the environment, each with what it brings about."""

import asyncio
import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from tests.agents.catalogue.machine import CLAUDE, Machine
from tests.agents.catalogue.test_catalogue import ACP
from tests.cli.command import environment
from tests.runner.caller_server import LIMIT, Caller
from tests.runner.rig import texts
from tests.runner.test_runner import config_of, played, scripted, started

import legation
from legation.runner.config import choose_agent, read_config

pytestmark = pytest.mark.heavy

ROOT = Path(legation.__file__).parents[2]
# Asks, acts on something that it did not ask about, and ends.
ACTS = """
hello(); session(); p = prompted()
permission(7, title="t7", kind="edit", rawInput={"path": "/tmp/7"}, locations=[{"path": "/tmp/7"}])
answer(7)
def tell(**update): send(method="session/update", params={"sessionId": "s1", "update": update})
tell(sessionUpdate="tool_call", toolCallId="u1", title="make", kind="execute", status="in_progress", rawInput={"command": "make all"})
tell(sessionUpdate="tool_call_update", toolCallId="u1", status="completed")
update(os.getcwd()); done(p)
"""


async def test_names_and_folders_of_the_callers_rules_come_with_what_is_asked(tmp_path: Path) -> None:
    """And commands come from where the caller says, which need not be below the reports."""
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    async with Caller(answers={"outcome": "approved"}) as home, Caller() as caller:
        fields = {
            "permissions": "route",
            "agentName": "builder",
            "ruleFolders": [str(tmp_path / "link")],
            "commandsUrl": f"{home.url}/commands",
        }
        async with started(tmp_path, config_of(caller, "go", **fields), agent=scripted(ACTS)) as run:
            await caller.until(lambda each: bool(each.asked))
            assert (caller.asked[0]["action"]["agent"], caller.polls) == ("builder", [])
            assert caller.asked[0]["resolved"]["folders"][str(tmp_path / "link")] == str(real)
            home.put("answer", permission=caller.asked[0]["id"], outcome="approved")
            code, said = await run.ended()
        assert code == 0, said
        assert home.polls


async def test_what_was_not_asked_about_is_told_where_permissions_are_routed(tmp_path: Path) -> None:
    async with Caller(answers={"outcome": "approved"}) as caller:
        code, said = await played(
            tmp_path, caller, "go", agent=scripted(ACTS), fields={"permissions": "route"}
        )
        assert code == 0, said
        [told] = caller.of("unasked_effect")
        assert (told["effect"]["action"]["command"], told["effect"]["title"]) == ("make all", "make")


@pytest.mark.parametrize("fields", [{}, {"permissions": "auto"}], ids=["the seed's", "auto"])
async def test_where_all_is_approved_nothing_is_alarming(tmp_path: Path, fields: dict[str, str]) -> None:
    async with Caller() as caller:
        code, said = await played(tmp_path, caller, "go", agent=scripted(ACTS), fields=fields)
        assert code == 0, said
        assert {each["kind"] for each in caller.taken} == {"session_update", "prompt_complete"}


RESUMES = """
message = read()
send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {
    "loadSession": LOADS, "sessionCapabilities": {"resume": {}}}})
message = read()
if REFUSES:
    send(id=message["id"], error={"code": -32002, "message": "not now"})
    message = read()
    update("history", "older")
send(id=message["id"], result={})
prompt = prompted()
update(message["method"] + " " + message["params"]["sessionId"] + " " + message["params"]["cwd"], "older")
done(prompt)
"""


@pytest.mark.parametrize(
    ("loads", "refuses", "how"),
    [(True, False, "session/resume"), (False, False, "session/resume"), (True, True, "session/load")],
)
async def test_a_session_is_resumed_where_the_agent_can_and_else_loaded(
    tmp_path: Path, loads: bool, refuses: bool, how: str
) -> None:
    source = f"LOADS, REFUSES = {loads}, {refuses}\n{RESUMES}"
    async with Caller() as caller:
        fields = {"sessionId": "older"}
        code, said = await played(tmp_path, caller, "go on", agent=scripted(source), fields=fields)
        assert code == 0, said
        assert texts(caller.notifications) == [f"{how} older {tmp_path / 'work'}"]
        assert {each["sessionId"] for each in caller.taken} == {"older"}


async def test_changes_are_told_where_they_are_wanted(tmp_path: Path) -> None:
    source = "hello(); session(); p = prompted(); open('made.txt', 'w').write('one\\n'); done(p)"
    async with Caller() as caller:
        code, said = await played(tmp_path, caller, "go", agent=scripted(source), fields={"changes": True})
        assert code == 0, said
        assert [each["path"] for each in caller.taken[-1]["changes"]["files"]] == ["made.txt"]
    (tmp_path / "second").mkdir()
    async with Caller() as caller:
        await played(tmp_path / "second", caller, "go", agent=scripted(source))
        assert "changes" not in caller.taken[-1]


@pytest.mark.parametrize(
    ("how", "told"), [("os._exit(3)", (3, None)), ("os.kill(os.getpid(), 9)", (None, 9))]
)
async def test_how_the_agent_ended_is_told(
    tmp_path: Path, how: str, told: tuple[int | None, int | None]
) -> None:
    source = f"hello(); session(); prompted(); sys.stderr.write('last words'); sys.stderr.flush(); {how}"
    async with Caller() as caller:
        code, _ = await played(tmp_path, caller, "go", agent=scripted(source))
        last = caller.taken[-1]
        assert (code, last["kind"], last["stderrTail"]) == (6, "prompt_failed", "last words")
        assert (last.get("exitCode"), last.get("signal")) == told


TELLS = """
capabilities = {"mcpCapabilities": {"http": True}}
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": capabilities}); message = read()
while message.get("method") != "session/new": message = read()
send(id=message["id"], result={"sessionId": "s1"})
prompt = prompted(); update(json.dumps(message["params"]["mcpServers"])); done(prompt)
"""


async def test_what_mcp_servers_are_given_as_a_secret_is_hidden_in_what_the_agent_says(
    tmp_path: Path,
) -> None:
    variables = [{"name": "API_KEY", "value": "of-the-files"}, {"name": "MODE", "value": "verbose"}]
    headers = [
        {"name": "Authorization", "value": "Bearer of-the-web"},
        {"name": "X-Team", "value": "builders"},
    ]
    servers = [
        {"name": "files", "command": "/bin/files", "args": [], "env": variables},
        {"name": "web", "type": "http", "url": "http://127.0.0.1:1/", "headers": headers},
    ]
    async with Caller() as caller:
        fields = {"mcpServers": servers}
        code, said = await played(tmp_path, caller, "go", agent=scripted(TELLS), fields=fields)
        assert code == 0, said
        files, web = json.loads(texts(caller.notifications)[0])
        assert [each["value"] for each in files["env"]] == ["[redacted:API_KEY]", "verbose"]
        assert [each["value"] for each in web["headers"]] == ["Bearer [redacted:Authorization]", "builders"]
        kept = [each for each in tmp_path.rglob("*.jsonl") if b"of-the-" in each.read_bytes()]
        assert kept == []


# Which agent.


def test_the_locked_install_goes_before_npx(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    config = read_config(json.dumps(config_of("http://127.0.0.1:9/", "go")).encode())
    choice = choose_agent(config, machine.environ, machine.data)
    assert (choice.definition.command, *choice.definition.args) == (
        *("npx", "-y", "@agentclientprotocol/claude-agent-acp"),
    )
    assert choice.word is not None
    assert "legation agents install claude-acp" in choice.word
    machine.on_path("node", "#!/bin/sh\necho v22.1.0\n")
    path = machine.installed("claude", ACP, "dist/index.js")
    machine.installed("claude", CLAUDE, "claude")
    choice = choose_agent(config, machine.environ, machine.data)
    assert str(path) in (choice.definition.command, *choice.definition.args)
    assert choice.word is None
    named = {**machine.environ, "CLAUDE_ACP_COMMAND": "second", "CODING_AGENT_ACP_COMMAND": "first one"}
    choice = choose_agent(config, named, machine.data)
    assert (choice.definition.command, *choice.definition.args) == ("first", "one")


async def test_it_is_installed_under_the_name_of_the_seed(tmp_path: Path) -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["factory-agent-supervisor"].partition(":")
    source = "hello(); session(); p = prompted(); update('here'); done(p)"
    async with Caller() as caller:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(config_of(caller, "go")))
        env = environment(
            tmp_path, FACTORY_SUPERVISOR_CONFIG_PATH=str(config), CODING_AGENT_ACP_COMMAND=scripted(source)
        )
        # As the script that an installer makes: its own name, and no argument.
        argv = (
            "-c",
            f"import sys; sys.argv = ['factory-agent-supervisor']; from {module} import {function} as f; f()",
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, *argv, env=env, cwd=tmp_path, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(LIMIT):
            _, said = await process.communicate()
        assert (process.returncode, texts(caller.notifications)) == (0, ["here"]), said.decode()


async def test_a_descriptor_is_read_once_and_no_agent_inherits_it(tmp_path: Path) -> None:
    source = "hello(); session(); p = prompted(); update(' '.join(os.listdir('/proc/self/fd'))); done(p)"
    async with Caller() as caller:
        reading, writing = os.pipe()
        os.write(writing, json.dumps(config_of(caller, "go")).encode())
        os.close(writing)
        given = ("--config-fd", str(reading))
        async with started(tmp_path, "{}", *given, agent=scripted(source), fds=(reading,)) as run:
            os.close(reading)
            code, said = await run.ended()
        assert code == 0, said
        # Its three, and the one by which it lists them.
        assert len(texts(caller.notifications)[0].split()) == 4
