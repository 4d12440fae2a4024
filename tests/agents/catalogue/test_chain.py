"""From a registry to a greeting: installed, verified, started, asked; the agent is the rehearsal one in disguise."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents.catalogue.machine import CODEX, Machine, disguised
from tests.agents.install.local_registry import LocalRegistry

from legation.agents.catalogue.catalogue import home_of
from legation.agents.catalogue.options import options_of
from legation.agents.catalogue.probe import examine, login
from legation.agents.install.lock import shipped
from legation.errors import CapabilityUnsupported
from legation.proc.tree import children

pytestmark = pytest.mark.heavy  # a process for each


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = set(children(os.getpid()))  # other tests in this process may have had daemons
    yield
    assert set(children(os.getpid())) <= before


SPY = f"""#!{sys.executable}
import json, os, sys
json.dump(dict(os.environ), open({{where!r}}, "w"))
os.execv(sys.executable, [sys.executable, "-m", "legation.agents.rehearsal", *sys.argv[1:]])
"""


async def test_an_agent_is_installed_verified_started_and_asked(
    machine: Machine, registry: LocalRegistry
) -> None:
    found = machine.catalogue(disguised(registry), **registry.environ)
    assert (await examine(found, "codex-acp")).verdict == "absent"
    installed = found.install("codex-acp")
    assert installed
    (verified,) = found.verify("codex-acp")
    assert (installed.version, verified.version, verified.problems) == ("7.0.0", "7.0.0", ())
    health = await examine(found, "codex-acp")
    assert health.verdict == "ok", health
    asked = await options_of(found, "codex-acp")
    assert (asked.source, asked.default_mode, asked.problem) == ("asked", "default", None)
    assert {mode.id for mode in asked.modes} == {"default", "plan", "bypass"}
    assert asked.models
    kept = await options_of(found, "codex-acp")
    assert (kept.source, kept.modes, kept.models) == ("kept", asked.modes, asked.models)
    assert (await options_of(found, "codex-acp", again=True)).source == "asked"
    assert found.uninstall("codex-acp") == ("7.0.0",)
    assert found.agent("codex-acp").how is None


async def test_the_doctor_gives_an_agent_nothing_of_ours(machine: Machine, tmp_path: Path) -> None:
    where = tmp_path / "seen.json"
    machine.on_path("codex-acp", SPY.format(where=str(where)))
    assert (await examine(machine.catalogue(OPENAI_API_KEY="canary"), "codex-acp")).verdict == "ok"
    seen = json.loads(where.read_text())
    assert seen["OPENAI_API_KEY"] == "not-a-key"
    assert seen["OPENAI_BASE_URL"].startswith("http://127.0.0.1:9")
    assert seen["HTTPS_PROXY"] == "http://127.0.0.1:9"
    assert seen["HOME"] not in (os.environ.get("HOME"), str(machine.root))
    assert not Path(seen["HOME"]).exists()
    assert "canary" not in where.read_text()


async def test_the_doctor_gives_an_own_agent_no_key_either(machine: Machine, tmp_path: Path) -> None:
    where = tmp_path / "seen.json"
    machine.on_path("my-agent", SPY.format(where=str(where)))
    machine.custom('[agents.mine]\ncommand = "my-agent"\nenv = ["MY_API_KEY", "MY_MODE"]\n')
    found = machine.catalogue(MY_API_KEY="canary", MY_MODE="fast")
    assert (await examine(found, "mine")).verdict == "ok"
    seen = json.loads(where.read_text())
    assert (seen["MY_API_KEY"], seen["MY_MODE"]) == ("not-a-key", "fast")


SILENT = "#!/bin/sh\nexec sleep 600\n"
DYING = "#!/bin/sh\necho I cannot >&2\nexit 3\n"
CHATTY = "#!/bin/sh\necho this is no protocol\nexec sleep 600\n"


@pytest.mark.parametrize(
    ("program", "said", "bound"),
    [(SILENT, "initialize", 1.0), (DYING, "I cannot", 60.0), (CHATTY, "initialize", 1.0)],
)
async def test_an_agent_that_does_not_work_is_broken_within_bounds(
    machine: Machine, program: str, said: str, bound: float
) -> None:
    machine.installed("codex-acp", CODEX, "bin/codex-acp", program)
    async with asyncio.timeout(30):
        health = await examine(machine.catalogue(), "codex-acp", timeout=bound)
    assert (health.verdict, health.next) == ("broken", "legation agents verify codex-acp")
    assert said in health.says


async def test_what_cannot_be_asked_is_taken_from_the_lock_and_says_so(machine: Machine) -> None:
    found = await options_of(machine.catalogue(), "codex-acp")
    wanted = shipped().wanted("codex-acp")
    assert wanted
    assert (found.source, found.modes, found.models) == ("lock", wanted.modes, wanted.models)
    assert found.problem
    assert "legation agents install codex-acp" in found.problem


async def test_an_agent_that_was_built_anew_is_asked_again(machine: Machine) -> None:
    program = machine.on_path("codex-acp")
    assert (await options_of(machine.catalogue(), "codex-acp")).source == "asked"
    os.utime(program, (1, 1))
    assert (await options_of(machine.catalogue(), "codex-acp")).source == "asked"
    assert (await options_of(machine.catalogue(), "codex-acp")).source == "kept"


async def test_a_refusal_of_a_session_is_no_list_of_models(machine: Machine) -> None:
    machine.custom(
        f'[agents.mine]\ncommand = "{sys.executable} -m legation.agents.rehearsal --require-auth"\n'
    )
    found = await options_of(machine.catalogue(), "mine")
    assert (found.source, found.models) == ("lock", ())
    assert found.problem
    assert "authenticate" in found.problem


def test_signing_in_by_acp_happens_in_the_agent_s_own_home(machine: Machine, tmp_path: Path) -> None:
    where = tmp_path / "seen.json"
    machine.on_path("codex-acp", SPY.format(where=str(where)))
    assert login(machine.catalogue(OPENAI_API_KEY="canary", DISPLAY=":7"), "codex-acp") == 0
    seen = json.loads(where.read_text())
    assert seen["HOME"] == str(home_of(machine.data, "codex-acp"))
    assert (seen["DISPLAY"], seen.get("OPENAI_API_KEY")) == (":7", None)
    assert not Path(seen["TMPDIR"]).exists()


def test_an_agent_of_another_workspace_has_another_home(machine: Machine, tmp_path: Path) -> None:
    where = tmp_path / "seen.json"
    machine.on_path("codex-acp", SPY.format(where=str(where)))
    login(machine.catalogue(), "codex-acp", workspace="wsp_other")
    assert json.loads(where.read_text())["HOME"] == str(machine.data / "agents/wsp_other/codex-acp/home")


@pytest.mark.parametrize("act", ["install", "login", "options"])
def test_a_data_folder_that_is_made_is_its_owner_s_alone(
    machine: Machine, registry: LocalRegistry, act: str
) -> None:
    machine.on_path("codex-acp")
    found = machine.catalogue(disguised(registry), NPM_CONFIG_REGISTRY=registry.url)
    if act == "install":
        found.install("codex-acp")
    elif act == "login":
        login(found, "codex-acp")
    else:
        asyncio.run(options_of(found, "codex-acp"))
    assert machine.data.stat().st_mode & 0o777 == 0o700


def test_what_needs_no_sign_in_says_so(machine: Machine) -> None:
    with pytest.raises(CapabilityUnsupported, match="it needs none"):
        login(machine.catalogue(), "rehearsal")
