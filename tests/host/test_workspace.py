"""A host of one workspace among several on the same log: its own streams, its own homes; sessions kept by name."""

import json
from pathlib import Path

import pytest
from tests.host.rig import play, rig

from legation.agents.modes import OpenedSession
from legation.errors import ConfigInvalid, InvalidParams, NotFound
from legation.host.host import AcpHost
from legation.host.options import MAX_DIRECTORIES, HostOptions, read_meta, resolve_agent_definition

pytestmark = pytest.mark.heavy


async def test_two_workspaces_have_sessions_of_the_same_name(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        options = HostOptions(data_dir=tmp_path / "data", workspace="other", kill_timeout_ms=500)
        async with AcpHost(options, log=made.log) as other:
            for host in (made.host, other):
                agent = await host.spawn_agent(made.rehearsal())
                await host.create_session(agent.agent_id, cwd=made.work, session_id="same")
            await play(made.host.session("same"), "say hello")
            mine, theirs = made.host.session("same").stream, other.session("same").stream
            assert mine is not theirs
            assert mine.head > theirs.head
            assert "agents/other/rehearsal/home" in str(other.session("same").home)
            assert [info.name for info in await made.log.streams("other")] == ["host", "same"]


async def test_a_workspace_that_is_no_name_of_a_folder_is_refused() -> None:
    for name in ("", "../x", "a/b", "x" * 65):
        with pytest.raises(ConfigInvalid):
            AcpHost({"workspace": name})


async def test_one_session_is_restored_and_forgotten_by_name(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        made.host.forget_session(session.id)
        assert made.host.session(session.id) is session  # its agent runs
        await session.keep_details({"a": 1}, "A title")
        await made.host.dispose_agent(str(session.agent_id))
        made.host.forget_session(session.id)
        assert made.host.get_session(session.id) is None
        again = await made.host.restore_session(session.id)
        assert (again.status, again.meta.details, again.meta.title) == ("disconnected", {"a": 1}, "A title")
        assert await made.host.restore_session(session.id) is again
        agent = await made.host.spawn_agent(made.rehearsal())
        await made.host.resume_session(agent.agent_id, session.id)
        assert (again.status, again.meta.details) == ("active", {"a": 1})
        with pytest.raises(NotFound):
            await made.host.restore_session("none")
        await made.host.close_session(session.id)
        made.host.forget_session(session.id)
        with pytest.raises(NotFound):
            await made.host.restore_session(session.id)


async def test_a_session_that_was_closed_to_be_opened_again_is_restored_closed(tmp_path: Path) -> None:
    """Until it is closed once more, for good."""
    async with rig(tmp_path) as made:
        session = await made.rehearse()
        agent, name = str(session.agent_id), session.meta.agent_session_id
        await play(session, "say kept")
        await made.host.close_session(session.id, reopens=True)
        made.host.forget_session(session.id)
        again = await made.host.restore_session(session.id)
        assert (again.status, again.meta.agent_session_id) == ("closed", name)
        await made.host.load_session(agent, session.id)
        assert (again.status, again.meta.reopens) == ("active", False)
        await made.host.close_session(session.id, reopens=True)
        await made.host.close_session(session.id)
        made.host.forget_session(session.id)
        with pytest.raises(NotFound):
            await made.host.restore_session(session.id)


async def test_what_cannot_be_prepared_is_no_session(tmp_path: Path) -> None:
    async def prepare(_opening: OpenedSession) -> None:
        raise InvalidParams("cannot do that")

    async with rig(tmp_path) as made:
        agent = await made.host.spawn_agent(made.rehearsal())
        with pytest.raises(InvalidParams):
            await made.host.create_session(agent.agent_id, cwd=made.work, session_id="s", prepare=prepare)
        assert made.host.get_session("s") is None
        await made.host.create_session(agent.agent_id, cwd=made.work, session_id="s")


ECHO = """
able = {"sessionCapabilities": {"additionalDirectories": {}}}
send(id=serve("initialize"), result={"protocolVersion": 1, "agentCapabilities": able})
while (message := read()).get("method") != "session/new":
    pass
given = message["params"]
send(id=message["id"], result={"sessionId": json.dumps([given["cwd"], given.get("additionalDirectories")])})
stay()
"""


async def test_b2_agent_policy_and_log_see_the_folder_that_the_path_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    real, other = str(tmp_path / "real"), str(tmp_path / "other")
    async with rig(tmp_path) as made:
        agent = await made.host.spawn_agent(made.scripted(ECHO))
        opened = await made.host.create_session(
            agent.agent_id,
            cwd=f"{tmp_path}//link/../.",
            additional_directories=[f"{tmp_path}/work/../other"],
            session_id="s",
        )
        session = made.host.session("s")
        assert json.loads(session.meta.agent_session_id) == [real, [other]]  # what the agent was told
        assert session.meta.cwd == real  # what policies see
        kept = read_meta(session.stream.info().meta)
        assert kept is not None
        assert (kept.cwd, kept.additional_directories) == (real, (other,))  # what the log keeps
        assert opened.cwd == real


async def test_a5_more_folders_than_can_be_looked_up_are_refused(tmp_path: Path) -> None:
    async with rig(tmp_path) as made:
        agent = await made.host.spawn_agent(made.rehearsal())
        many = [tmp_path / str(at) for at in range(MAX_DIRECTORIES + 1)]
        with pytest.raises(InvalidParams, match="cannot work in more than"):
            await made.host.create_session(agent.agent_id, cwd=made.work, additional_directories=many)


async def test_b2_an_agent_is_started_in_the_folder_that_its_path_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "deep")
    definition = resolve_agent_definition({"command": "x", "cwd": f"{tmp_path}/link/.."})
    assert definition.cwd == tmp_path / "real"
