import sys
from pathlib import Path

import pytest

from legation.errors import Unavailable
from legation.host.host import AcpHost
from legation.host.launch import Launch, start_agent
from legation.host.options import AgentDefinition

pytestmark = pytest.mark.heavy


def launch(folder: Path, key_method: str | None) -> Launch:
    command = (sys.executable, "-m", "legation.agents.rehearsal", "--require-auth")
    definition = AgentDefinition(id="rehearsal", command=command[0], args=command[1:], cwd=folder)
    return Launch(definition=definition, key_method=key_method)


async def test_an_agent_that_wants_its_key_by_a_method_is_told_so(tmp_path: Path) -> None:
    async with AcpHost() as host:
        started = await start_agent(host, launch(tmp_path, "rehearsal-login"))
        assert (await host.create_session(started.agent_id, cwd=tmp_path)).status == "active"


async def test_one_that_refuses_it_is_not_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_host: AcpHost, _agent: str, _method: str) -> None:
        raise Unavailable("cannot sign in: the test says so; leave it")

    async with AcpHost() as host:
        monkeypatch.setattr(AcpHost, "authenticate", refused)
        with pytest.raises(Unavailable):
            await start_agent(host, launch(tmp_path, "rehearsal-login"))
        assert host.get_agents() == []
