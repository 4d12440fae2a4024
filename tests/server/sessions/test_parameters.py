"""Each parameter of a session takes effect in the agent, or is refused with what to do."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tests.server.sessions.session_client import SessionClient

from legation.host.requests.services import SessionFiles
from legation.store.forbidden import ForbiddenPlaces
from legation.wire.acp.methods import WriteTextFileRequest

pytestmark = pytest.mark.heavy

SECRET = "hunter2-is-no-password"


def wrong(answer: Any, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["detail"])


# directory


async def test_a_session_works_in_its_directory(talk: SessionClient) -> None:
    (talk.work / "repo").mkdir()
    await talk.created("s", agent="mirror", directory=str(talk.work / "repo"))
    said = await talk.reflected("s")
    assert (said["cwd"], said["where"]) == (str(talk.work / "repo"),) * 2
    assert (await talk.info("s"))["directory"] == str(talk.work / "repo")


async def test_without_a_directory_it_has_a_folder_of_its_own(talk: SessionClient) -> None:
    for name in ("a", "b"):
        await talk.created(name, agent="mirror")
    places = [Path((await talk.reflected(name))["where"]) for name in ("a", "b")]
    data = talk.rig.services.settings.data_dir
    assert places == [data / "work/local/a", data / "work/local/b"]
    assert all(place.stat().st_mode & 0o777 == 0o700 for place in places)


@pytest.mark.parametrize("umask", [0o022, 0o000])
async def test_every_folder_in_the_data_folder_is_its_owners_alone(talk: SessionClient, umask: int) -> None:
    """Also those that are made for an agent or a caller, in a folder that Legation made for the session."""
    services, data = talk.rig.services, talk.rig.services.settings.data_dir
    before = os.umask(umask)
    try:
        one = skill(talk.work / "library/skills", "one")
        (one / "deep/er").mkdir(parents=True)
        (one / "deep/er/notes.md").write_text("notes")
        await talk.created("s", agent="mirror", skills=local(talk.work / "library"))
        await talk.reflected("s")
        work = data / "work/local/s"
        made = await talk.call("POST", "/v1/fs/mkdir?path=made/by/caller&session_id=s")
        assert made.status_code < 300, made.text
        files = SessionFiles([work], ForbiddenPlaces([data]))
        asked = WriteTextFileRequest(session_id="s", path=str(work / "made/by/agent/x.txt"), content="text")
        await asyncio.to_thread(files.write, asked)
        await services.blobs.put("local/a/b/c", b"blob")
    finally:
        os.umask(before)
    found = {Path(place).relative_to(data).as_posix(): Path(place) for place, _, _ in os.walk(data)}
    for wanted in ("made/by/caller", "made/by/agent", ".claude/skills/one/deep/er"):
        assert f"work/local/s/{wanted}" in found
    assert "blobs/local/a/b" in found
    assert {name: oct(place.stat().st_mode & 0o777) for name, place in found.items()} == dict.fromkeys(
        found, "0o700"
    )


async def test_in_a_folder_that_others_may_enter_new_ones_are_as_usual(talk: SessionClient) -> None:
    (talk.work / "repo").mkdir()
    (talk.work / "repo").chmod(0o755)
    before = os.umask(0o022)
    try:
        await talk.created("s", directory=str(talk.work / "repo"))
        assert (await talk.call("POST", "/v1/fs/mkdir?path=new/deep&session_id=s")).status_code < 300
    finally:
        os.umask(before)
    assert {(talk.work / "repo" / name).stat().st_mode & 0o777 for name in ("new", "new/deep")} == {0o755}


async def test_a_directory_outside_or_not_there_is_refused(talk: SessionClient, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (talk.work / "link").symlink_to(tmp_path / "outside")
    (talk.work / "file").write_text("")
    os.mkfifo(talk.work / "pipe")
    for directory, status in (
        (str(tmp_path / "outside"), 403),
        (str(talk.work / "link"), 403),
        (str(talk.rig.services.settings.data_dir), 403),
        (f"{talk.work}/../outside", 400),
        (str(talk.work / "none"), 404),
        (str(talk.work / "file"), 409),
        (str(talk.work / "pipe"), 409),
    ):
        wrong(await talk.create("s", directory=directory), status)
    assert (await talk.call("GET", "/v1/sessions")).json()["sessions"] == []
    await talk.created("s")  # the name is free


# agentMode, permissionMode plan


@pytest.mark.parametrize(
    ("asked", "mode"),
    [
        ({"agentMode": "plan"}, "plan"),
        ({"permissionMode": "plan"}, "plan"),
        ({"agentMode": "build"}, "default"),
        ({}, "default"),
        ({"agentMode": "Default"}, "default"),
    ],
)
async def test_a_mode_is_set_in_the_agent(talk: SessionClient, asked: dict[str, str], mode: str) -> None:
    native = (await talk.created("s", **asked))["nativeSessionId"]
    assert talk.agent_state(native)["mode"] == mode
    [told] = await talk.events("s", "setup-facts")
    assert told["modes"]["currentModeId"] == mode


async def test_modes_that_are_options_and_modes_of_the_agents_own(talk: SessionClient) -> None:
    await talk.created("s", agent="mirror", agentMode="docs")
    assert (await talk.reflected("s"))["chosen"]["mode"] == "docs"
    assert (await talk.info("s"))["agentMode"] == "docs"


async def test_a_mode_that_there_is_not_names_those_that_can_be_chosen(talk: SessionClient) -> None:
    answer = await talk.create("s", agentMode="dance")
    assert "choose from build, plan, default" in wrong(answer, 400)
    listed = (await talk.call("GET", "/v1/agents/rehearsal/modes")).json()["modes"]
    assert answer.json()["data"] == {"type": "mode_not_supported", "offered": [each["id"] for each in listed]}


async def test_a_mode_in_which_the_agent_does_not_ask_is_refused(talk: SessionClient) -> None:
    wrong(await talk.create("s", agentMode="bypass"), 403)
    wrong(await talk.create("s", agent="mirror", agentMode="yolo"), 403)
    assert (await talk.call("GET", "/v1/sessions")).json()["sessions"] == []


# model, variant


async def test_model_and_variant_are_set_in_the_agent(talk: SessionClient) -> None:
    native = (await talk.created("r", model="rehearsal-terse"))["nativeSessionId"]
    assert talk.agent_state(native)["model"] == "rehearsal-terse"
    await talk.created("s", agent="mirror", model="large", variant="high")
    assert (await talk.reflected("s"))["chosen"] == {"model": "large", "effort": "high", "mode": "build"}
    info = await talk.info("s")
    assert (info["model"], info["variant"]) == ("large", "high")


async def test_a_model_that_there_is_not_names_those_there_are(talk: SessionClient) -> None:
    assert "rehearsal-steady, rehearsal-terse" in wrong(await talk.create("s", model="none"), 400)
    wrong(await talk.create("s", variant="high"), 422)  # the rehearsal agent has none


# in mid-session


async def test_all_of_it_changes_in_mid_session(talk: SessionClient) -> None:
    native = (await talk.created("s"))["nativeSessionId"]
    change = {"agentMode": "plan", "model": "rehearsal-terse", "title": "Another"}
    answer = await talk.call("PATCH", "/v1/sessions/s", change)
    assert change.items() <= answer.json().items()
    state = talk.agent_state(native)
    assert (state["mode"], state["model"]) == ("plan", "rehearsal-terse")
    await talk.call("PATCH", "/v1/sessions/s", {"agentMode": "build"})
    assert talk.agent_state(native)["mode"] == "default"
    await talk.created("m", agent="mirror")
    await talk.call("PATCH", "/v1/sessions/m", {"variant": "high", "permissionMode": "plan"})
    assert (await talk.reflected("m"))["chosen"] == {"model": "small", "effort": "high", "mode": "plan"}


async def test_it_changes_while_a_turn_runs(talk: SessionClient) -> None:
    native = (await talk.created("s"))["nativeSessionId"]
    await talk.send("s", "say one", "stall 60", "say two")
    await talk.until("s", "agent-message-chunk")
    answer = await talk.call("PATCH", "/v1/sessions/s", {"model": "rehearsal-terse"})
    assert answer.json()["busy"] is True
    assert talk.agent_state(native)["model"] == "rehearsal-terse"


async def test_a_change_that_is_refused_changes_nothing(talk: SessionClient) -> None:
    await talk.created("s")
    before = await talk.info("s")
    for change, status in (
        ({"model": "none"}, 400),
        ({"agentMode": "none"}, 400),
        ({"agentMode": "bypass"}, 403),
    ):
        wrong(await talk.call("PATCH", "/v1/sessions/s", {"title": "New", **change}), status)
    assert await talk.info("s") == before


# mcp


MCP: dict[str, dict[str, object]] = {
    "files": {"type": "local", "command": ["files-mcp", "--all"], "args": ["x"], "env": {"KEY": SECRET}},
    "web": {"type": "remote", "url": "https://mcp.example.com/", "headers": {"Authorization": SECRET}},
    "off": {"type": "local", "command": "off-mcp", "enabled": False},
}


async def test_the_agent_gets_its_mcp_servers_and_nobody_else_their_secrets(
    talk: SessionClient, caplog: pytest.LogCaptureFixture
) -> None:
    await talk.created("s", agent="mirror", mcp=MCP)
    said = await talk.reflected("s")
    assert said["mcpServers"] == [
        {
            "name": "files",
            "command": "files-mcp",
            "args": ["--all", "x"],
            "env": [{"name": "KEY", "value": SECRET}],
        },
        {
            "name": "web",
            "type": "http",
            "url": "https://mcp.example.com/",
            "headers": [{"name": "Authorization", "value": SECRET}],
        },
    ]
    assert (await talk.info("s"))["mcp"] == ["files", "web"]
    listed = (await talk.call("GET", "/v1/sessions")).text
    stream = await talk.rig.services.log.stream("s")
    written = [
        event.raw async for event in stream.subscribe(follow=False) if event.type != "agent-message-chunk"
    ]
    assert SECRET not in listed + caplog.text + repr(written) + repr(stream.info().meta)
    assert SECRET not in repr(await talk.rig.rows("select * from vault_bundle"))


async def test_secrets_are_destroyed_with_the_session(talk: SessionClient) -> None:
    await talk.created("s", agent="mirror", mcp=MCP)
    assert len(await talk.rig.rows("select * from vault_bundle")) == 1
    await talk.call("POST", "/v1/sessions/s/terminate")
    assert await talk.rig.rows("select * from vault_bundle") == []


async def test_mcp_servers_that_cannot_be_are_refused(talk: SessionClient) -> None:
    for given, status in (
        ({"a": {"type": "local", "command": []}}, 400),
        ({"a": {"type": "remote", "url": "file:///etc/passwd"}}, 400),
        ({"a": {"type": "remote", "url": "https://x.example", "transport": "sse"}}, 422),
        ({"a": {"type": "odd"}}, 400),
        ({"a": {"type": "remote", "url": "https://x.example", "bearerTokenEnvVar": "HOME"}}, 400),
    ):
        wrong(await talk.create("s", mcp=given), status)
    assert await talk.rig.rows("select * from vault_bundle") == []
    assert "expected one of local, remote at $.mcp[...].type" in wrong(
        await talk.create("s", mcp={"a": {"type": "stdio", "command": "x"}}), 400
    )
    assert "no other members than type, command" in wrong(
        await talk.create("s", mcp={"a": {"type": "local", "command": "x", "cmd": "y"}}), 400
    )


@pytest.mark.parametrize(
    "said",
    [
        {"oauth": True},
        {"oauth": {"clientId": "x"}},
        {"envHeaders": {"X": "HOME"}},
        {"bearerTokenEnvVar": "HOME"},
    ],
)
async def test_what_would_send_variables_of_the_server_elsewhere_is_refused_with_its_reason(
    talk: SessionClient, said: dict[str, object]
) -> None:
    remote = {"type": "remote", "url": "https://x.example", **said}
    assert "variables of the server" in wrong(await talk.create("s", mcp={"a": remote}), 400)


async def test_what_says_that_there_is_none_of_it_is_taken(talk: SessionClient) -> None:
    """Clients write what they have no value for as null, as the original's schema allows."""
    nothing: dict[str, object] = {
        "bearerTokenEnvVar": None,
        "envHeaders": {},
        "oauth": False,
        "transport": None,
        "timeoutMs": None,
    }
    await talk.created("s", agent="mirror", mcp={"web": {**MCP["web"], **nothing}})
    assert [each["name"] for each in (await talk.reflected("s"))["mcpServers"]] == ["web"]


# skills


def skill(folder: Path, name: str) -> Path:
    (folder / name).mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(f"# {name}")
    (folder / name / "more").mkdir()
    (folder / name / "more" / "a.txt").write_text("a")
    return folder / name


def local(source: Path, **more: object) -> dict[str, object]:
    return {"sources": [{"type": "local", "source": str(source), **more}]}


async def test_skills_are_where_agents_look_for_them(talk: SessionClient, tmp_path: Path) -> None:
    source, repo = talk.work / "library", talk.work / "repo"
    skill(source / "skills", "one")
    skill(source / "skills", "two")
    (tmp_path / "secret").write_text("secret")
    (source / "skills/one/link").symlink_to(tmp_path / "secret")
    repo.mkdir()
    await talk.created("s", directory=str(repo), skills=local(source, skills=["one"]))
    for place in (".agents/skills", ".claude/skills", ".opencode/skill"):
        assert (repo / place / "one/SKILL.md").read_text() == "# one"
        assert (repo / place / "one/more/a.txt").is_file()
        assert not (repo / place / "one/link").exists()
        assert not (repo / place / "two").exists()
    assert (await talk.info("s"))["skills"] == ["one"]
    await talk.created("t", skills=local(source / "skills", subpath="two"))
    assert (await talk.info("t"))["skills"] == ["two"]


async def test_a_skill_that_stands_there_is_left_as_it_is(talk: SessionClient) -> None:
    source, repo = talk.work / "library", talk.work / "repo"
    skill(source, "one")
    theirs = repo / ".claude/skills/one"
    theirs.mkdir(parents=True)
    (theirs / "SKILL.md").write_text("theirs")
    await talk.created("s", directory=str(repo), skills=local(source))
    assert (theirs / "SKILL.md").read_text() == "theirs"
    assert (repo / ".agents/skills/one/SKILL.md").read_text() == "# one"


async def test_skills_from_elsewhere_are_refused(talk: SessionClient, tmp_path: Path) -> None:
    skill(tmp_path / "outside", "one")
    skill(talk.work / "library", "one")
    (talk.work / "repo").mkdir()
    (talk.work / "repo/.claude").symlink_to(tmp_path / "outside")
    for given, status in (
        (local(tmp_path / "outside"), 403),
        (local(talk.work / "library", subpath="../../outside"), 400),
        (local(talk.work / "library", skills=["none"]), 400),
        (local(talk.work), 400),
        ({"sources": [{"type": "ftp", "source": "x"}]}, 400),
        ({"sources": [{"type": "git", "source": "ext::sh -c date"}]}, 400),
        ({"sources": [{"type": "github", "source": "a/b", "ref": "--upload-pack=x"}]}, 400),
    ):
        wrong(await talk.create("s", skills=given), status)
    wrong(await talk.create("s", skills=local(talk.work / "library"), directory=str(talk.work / "repo")), 400)
    missing = wrong(await talk.create("s", skills=local(talk.work / "none")), 404)
    assert missing.startswith(f"cannot use {talk.work}/none: there is no such")
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["one"]


# attachments, title, version


async def test_attachments_are_links_to_files_of_the_session(talk: SessionClient) -> None:
    (talk.work / "a b.png").write_bytes(b"png")
    (talk.work / "notes").write_text("notes")
    await talk.created("s", agent="mirror", directory=str(talk.work))
    attached = [{"path": str(talk.work / "a b.png")}, {"path": "notes", "mime": "text/x", "filename": "N"}]
    _, *links = (await talk.reflected("s", attachments=attached))["prompt"]
    assert links == [
        {
            "type": "resource_link",
            "name": "a b.png",
            "uri": f"file://{talk.work}/a%20b.png",
            "mimeType": "image/png",
            "size": 3,
        },
        {
            "type": "resource_link",
            "name": "N",
            "uri": f"file://{talk.work}/notes",
            "mimeType": "text/x",
            "size": 5,
        },
    ]


async def test_attachments_from_elsewhere_are_refused(talk: SessionClient, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (talk.work / "repo").mkdir()
    (talk.work / "repo/link").symlink_to(tmp_path / "secret")
    os.mkfifo(talk.work / "repo/pipe")
    await talk.created("s", agent="mirror", directory=str(talk.work / "repo"))
    for path in (str(tmp_path / "secret"), "../../secret", "link", "none", "pipe", "a\0b"):
        message = {"message": "look", "attachments": [{"path": path}]}
        wrong(await talk.call("POST", "/v1/sessions/s/messages", message), 400)
    assert await talk.events("s", "prompt-started") == []


async def test_the_agents_name_and_version(talk: SessionClient) -> None:
    await talk.created("s", agent="mock")
    assert (await talk.info("s"))["agent"] == "mock"
    wrong(await talk.create("t", agentVersion="0.0.0"), 400)
    answer = await talk.create("t", agent="rehersal")
    assert "did you mean rehearsal?" in wrong(answer, 400)
    assert answer.json()["data"]["type"] == "unsupported_agent"
