"""What the catalogue says of agents that are here, elsewhere or nowhere; nothing is started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.agents.catalogue.machine import CLAUDE, CODEX, Machine

import legation
from legation.agents import catalogue as module
from legation.agents.catalogue.catalogue import home_of
from legation.agents.install.lock import shipped
from legation.errors import CapabilityUnsupported, ConfigInvalid, InvalidParams, NotFound, Unavailable
from legation.host.agent import AgentHomes
from legation.host.options import AgentDefinition

ACP = "node_modules/@agentclientprotocol/claude-agent-acp"


def test_the_known_agents_are_listed_in_order(machine: Machine) -> None:
    native = ("claude", "codex", "opencode", "amp")
    by_acp = ("gemini", "claude-acp", "codex-acp", "opencode-acp", "pi", "cursor")
    assert machine.catalogue().names() == (*native, *by_acp, "rehearsal", "mock")
    assert module.names() == machine.catalogue().names()


def test_the_built_in_agent_is_always_ready(machine: Machine) -> None:
    agent = machine.catalogue().agent("rehearsal")
    assert (agent.how, agent.version, agent.sign_in) == ("built in", legation.__version__, "not needed")
    assert agent.ready
    start = machine.catalogue().start("rehearsal")
    assert start.argv == (sys.executable, "-P", "-m", "legation.agents.rehearsal")
    assert module.command_of("rehearsal") == start.argv


def test_the_mock_is_an_agent_of_its_own_that_an_own_agent_can_stand_in_for(machine: Machine) -> None:
    assert machine.catalogue().agent("mock").how == "built in"
    assert machine.catalogue().start("mock").argv[-1] == "legation.agents.rehearsal.mock"
    machine.custom(f'[agents.mock]\ncommand = "{sys.executable}"\ntitle = "Mine"\n')
    found = machine.catalogue()
    assert found.names().count("mock") == 1
    assert (found.agent("mock").how, found.agent("mock").title) == ("custom", "Mine")
    assert found.start("mock").argv == (sys.executable,)


def test_an_agent_that_is_nowhere_says_how_to_get_it(machine: Machine) -> None:
    agent = machine.catalogue().agent("codex-acp")
    wanted = shipped().wanted("codex-acp")
    assert wanted
    assert (agent.how, agent.version, agent.path, agent.wanted) == (None, None, None, wanted.version)
    assert agent.problem
    assert "legation agents install codex-acp" in agent.problem
    with pytest.raises(Unavailable, match="legation agents install codex-acp"):
        machine.catalogue().start("codex-acp")


@pytest.mark.parametrize(("name", "program"), [("pi", "pi-acp"), ("cursor", "cursor-agent")])
def test_an_agent_that_is_not_locked_is_found_on_path_alone(
    machine: Machine, name: str, program: str
) -> None:
    agent = machine.catalogue().agent(name)
    assert (agent.how, agent.wanted) == (None, None)
    assert "get it by" in (agent.problem or "")
    with pytest.raises(CapabilityUnsupported, match=f"cannot install {name}: .* get it by"):
        machine.catalogue().install(name)
    machine.on_path(program)
    assert machine.catalogue().agent(name).how == "on PATH"


def test_an_agent_on_path_is_found_with_its_package_s_version(machine: Machine) -> None:
    program = machine.program(machine.root / "lib/node_modules/x/bin/codex-acp")
    (machine.root / "lib/node_modules/x/package.json").write_text('{"name": "x", "version": "3.2.1"}')
    machine.bin.mkdir()
    (machine.bin / "codex-acp").symlink_to(program)
    agent = machine.catalogue().agent("codex-acp")
    assert (agent.how, agent.version, agent.path) == ("on PATH", "3.2.1", str(machine.bin / "codex-acp"))
    assert agent.command == (str(machine.bin / "codex-acp"),)


def test_an_installed_agent_goes_before_one_on_path(machine: Machine) -> None:
    machine.on_path("codex-acp")
    path = machine.installed("codex-acp", CODEX, "bin/codex-acp")
    agent = machine.catalogue().agent("codex-acp")
    assert (agent.how, agent.version, agent.path) == ("installed", "0.0.1", str(path))
    assert agent.outdated


def test_an_installed_script_is_run_by_node_and_told_where_its_helper_is(machine: Machine) -> None:
    machine.on_path("node", "#!/bin/sh\necho v22.1.0\n")
    script = machine.installed("claude", ACP, "dist/index.js")
    helper = machine.installed("claude", CLAUDE, "claude")
    start = machine.catalogue().start("claude-acp")
    assert start.argv == (str(machine.bin / "node"), str(script))
    assert start.env["CLAUDE_CODE_EXECUTABLE"] == str(helper)
    assert start.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"


@pytest.mark.parametrize("said", ["v18.0.0", "nonsense", ""])
def test_without_a_node_that_is_new_enough_it_says_what_to_install(
    machine: Machine, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legation.agents.catalogue.program.find_spec", lambda _: None)
    machine.on_path("node", f"#!/bin/sh\necho {said}\n")
    machine.installed("claude", ACP, "dist/index.js")
    agent = machine.catalogue().agent("claude-acp")
    assert (agent.how, agent.ready) == ("installed", False)
    with pytest.raises(Unavailable, match="Node 22 or later"):
        machine.catalogue().start("claude-acp")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("cloude", "claude"), ("Codex", "codex"), ("open-code", "opencode"), ("Mock", "mock")],
)
def test_a_name_that_is_nearly_right_is_corrected(machine: Machine, given: str, meant: str) -> None:
    with pytest.raises(NotFound, match=rf"did you mean {meant}\?"):
        machine.catalogue().agent(given)


@pytest.mark.parametrize("given", ["zzz", "nope"])
def test_a_name_that_is_like_none_gets_the_list(machine: Machine, given: str) -> None:
    with pytest.raises(NotFound, match="known are claude, codex"):
        machine.catalogue().agent(given)


def test_keys_are_told_by_presence_only(machine: Machine) -> None:
    found = machine.catalogue(CLAUDE_API_KEY="canary")
    agent = found.agent("claude")
    assert agent.credentials == {
        "ANTHROPIC_API_KEY": False,
        "CLAUDE_API_KEY": True,
        "ANTHROPIC_AUTH_TOKEN": False,
        "CLAUDE_CODE_OAUTH_TOKEN": False,
    }
    assert agent.sign_in == "key"
    assert "canary" not in repr(found.agents())
    assert "canary" not in repr(found.keys("claude"))


def test_amp_is_given_the_key_that_sandbox_agent_gives_it_beside_its_own(machine: Machine) -> None:
    found = machine.catalogue(ANTHROPIC_API_KEY="one", AMP_API_KEY="two").keys("amp")
    assert {name: key.reveal() for name, key in found.items()} == {
        "ANTHROPIC_API_KEY": "one",
        "AMP_API_KEY": "two",
    }


def test_a_key_comes_under_the_name_that_the_agent_reads(machine: Machine) -> None:
    found = machine.catalogue(CLAUDE_API_KEY="second").keys("claude")
    assert {name: key.reveal() for name, key in found.items()} == {"ANTHROPIC_API_KEY": "second"}
    both = machine.catalogue(CLAUDE_API_KEY="second", ANTHROPIC_API_KEY="first").keys("claude")
    assert both["ANTHROPIC_API_KEY"].reveal() == "first"


def test_signed_in_is_told_by_the_file_in_the_agent_s_own_home(machine: Machine) -> None:
    (machine.root / ".codex").mkdir()
    (machine.root / ".codex/auth.json").write_text("{}")  # the user's: not the agent's
    assert machine.catalogue().agent("codex-acp").sign_in == "signed out"
    home = home_of(machine.data, "codex-acp")
    (home / ".codex").mkdir(parents=True)
    (home / ".codex/auth.json").write_text("{}")
    assert machine.catalogue().agent("codex-acp").sign_in == "signed in"


def test_the_home_is_the_one_that_the_host_gives(machine: Machine) -> None:
    for name in ("claude", "my agent/1"):
        command, _ = AgentHomes.open(machine.data).command(
            AgentDefinition(id=name, command="x", cwd=machine.root)
        )
        assert command.env["HOME"] == str(home_of(machine.data, name))


def test_an_own_agent_is_one_stanza(machine: Machine) -> None:
    program = machine.on_path("my-agent")
    machine.custom(
        '[agents.mine]\ncommand = "my-agent --acp"\nenv = ["MY_KEY", "UNSET"]\ntitle = "My agent"\n'
    )
    found = machine.catalogue(MY_KEY="canary", OTHER="other")
    agent = found.agent("mine")
    assert (agent.title, agent.how, agent.path) == ("My agent", "custom", str(program))
    assert "canary" not in repr(agent)
    start = found.start("mine")
    assert start.argv == (str(program), "--acp")
    assert start.env == {"MY_KEY": "canary"}
    assert "canary" not in repr(start)


def test_an_own_agent_whose_program_is_missing_says_so(machine: Machine) -> None:
    machine.custom('[agents.mine]\ncommand = "not-there"\n')
    with pytest.raises(Unavailable, match="install 'not-there', or correct its stanza"):
        machine.catalogue().start("mine")
    with pytest.raises(InvalidParams, match="it is your own"):
        machine.catalogue().install("mine")


@pytest.mark.parametrize("name", ["claude", "rehearsal", "local"])
def test_an_own_agent_cannot_take_a_name_of_legation_s(machine: Machine, name: str) -> None:
    machine.custom(f'[agents.{name}]\ncommand = "x"\n')
    with pytest.raises(ConfigInvalid, match="this name is taken"):
        machine.catalogue().names()


def test_the_current_folder_names_no_agents(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "agents.toml").write_text('[agents.evil]\ncommand = "evil"\n')
    monkeypatch.chdir(tmp_path)
    assert "evil" not in machine.catalogue().names()
