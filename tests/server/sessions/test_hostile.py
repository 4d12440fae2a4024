"""Sessions in the hands of somebody who means harm: an operator of any workspace, and an agent's own credential."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from tests.server.sessions.session_client import SessionClient, open_session_client, script

from legation.approvals.grants import new_grant_id
from legation.errors import Unavailable
from legation.server.sessions import agents
from legation.server.sessions.record import Owner, SealedServers
from legation.server.sessions.service import UNSETTLED, SessionService
from legation.wire.action import MAX_PATH
from legation.wire.api.approvals import NewGrant
from legation.wire.principal import Principal

SECRET = "sk-test-5e1f0c77a9d24b"
MCP = {"files": {"type": "local", "command": "files-mcp", "env": {"KEY": SECRET}}}


@pytest.fixture
async def open_house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    """The data folder lies in a served folder, as it does in a home."""
    async with (
        asyncio.timeout(110),
        open_session_client(tmp_path, request, folders=[str(tmp_path)]) as talk,
    ):
        yield talk


def local(source: Path, **more: object) -> dict[str, object]:
    return {"sources": [{"type": "local", "source": str(source), **more}]}


async def test_skills_bring_nothing_of_the_data_folder(open_house: SessionClient, tmp_path: Path) -> None:
    """Not by a folder above it that somebody made a skill, not by a subpath, and not by a link."""
    (tmp_path / "SKILL.md").write_text("# all")
    theirs = tmp_path / "data/work/other/s/.agents/skills/one"
    theirs.mkdir(parents=True)
    (theirs / "SKILL.md").write_text("# theirs")
    (tmp_path / "library").mkdir()
    (tmp_path / "library/skills").symlink_to(theirs.parent)
    repo = tmp_path / "repo"
    repo.mkdir()
    for given in (
        local(tmp_path),
        local(tmp_path, subpath="data/work/other/s/.agents/skills/one"),
        local(tmp_path / "library"),
    ):
        answer = await open_house.create("s", directory=str(repo), skills=given)
        assert answer.status_code in (400, 403), answer.text
        assert list(repo.iterdir()) == []


async def test_a_skill_that_holds_the_sessions_own_folder_is_refused(talk: SessionClient) -> None:
    """It would be copied into itself until the disk is full."""
    (talk.work / "one/repo").mkdir(parents=True)
    (talk.work / "one/SKILL.md").write_text("# one")
    answer = await talk.create("s", directory=str(talk.work / "one/repo"), skills=local(talk.work / "one"))
    assert answer.status_code == 400, answer.text
    assert list((talk.work / "one/repo").iterdir()) == []


# A shell by the rehearsal agent.


@pytest.fixture
async def as_shipped(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionClient]:
    """With the settings that nobody has changed."""
    flags = {"rehearsal_executes": "false"}
    async with asyncio.timeout(110), open_session_client(tmp_path, request, **flags) as talk:
        talk.headers = await talk.rig.bearer(talk.rig.people["operator"])
        yield talk


@pytest.mark.parametrize(
    "step", ["run touch made", "ask run touch made", "write! ../made x", "read! ../policy.yaml", "spawn-tree"]
)
@pytest.mark.parametrize("agent", ["rehearsal", "mock"])
async def test_operate_is_no_shell_by_the_rehearsal_agent(
    as_shipped: SessionClient, agent: str, step: str
) -> None:
    await as_shipped.created("s", agent=agent, directory=str(as_shipped.work))
    ended = await as_shipped.played("s", step)
    assert ended["stopReason"] == "refusal"
    assert "the owner turns it on, by the server's setting `rehearsal_executes`" in await as_shipped.heard(
        "s"
    )
    assert await as_shipped.events("s", "permission-asked", "tool-call") == []
    assert list(as_shipped.work.parent.rglob("made")) == []


async def test_operate_runs_no_tests_of_a_folder_by_the_rehearsal_agent(as_shipped: SessionClient) -> None:
    (as_shipped.work / "test_it.py").write_text("import pathlib\npathlib.Path('made').write_text('x')\n")
    await as_shipped.created("s", directory=str(as_shipped.work))
    message = {"message": "fix the failing test"}
    assert (await as_shipped.call("POST", "/v1/sessions/s/messages", message)).status_code == 204
    _, asked = await as_shipped.until("s", "permission-asked")
    assert (await as_shipped.reply("s", asked["id"], "once")).status_code == 403  # whose prompt it is
    assert not (as_shipped.work / "made").exists()
    approver = await as_shipped.rig.bearer(as_shipped.rig.people["approver"])
    assert (await as_shipped.reply("s", asked["id"], "reject", approver)).status_code == 204
    await as_shipped.until("s", "prompt-finished")
    assert not (as_shipped.work / "made").exists()


async def test_operate_runs_no_module_of_a_folder_by_the_rehearsal_agent(as_shipped: SessionClient) -> None:
    """Python looks for modules where a program starts, unless it is told not to."""
    mark = as_shipped.work / "ran"
    (as_shipped.work / "legation").mkdir()
    (as_shipped.work / "legation/__init__.py").write_text(f"open({str(mark)!r}, 'w')")
    answer = await as_shipped.create("s", directory=str(as_shipped.work))
    assert not mark.exists()
    assert answer.status_code == 200, answer.text


async def test_files_of_the_folder_are_the_servers_to_open_for_the_rehearsal_agent(
    as_shipped: SessionClient,
) -> None:
    (as_shipped.work / "a.txt").write_text("hello")
    await as_shipped.created("s", directory=str(as_shipped.work))
    asked = await as_shipped.asked("s", "read a.txt")  # what is read for it is decided like anything else
    approver = await as_shipped.rig.bearer(as_shipped.rig.people["approver"])
    assert (await as_shipped.reply("s", asked, "once", approver)).status_code == 204
    await as_shipped.until("s", "prompt-finished")
    updates = await as_shipped.events("s", "tool-call-update")
    assert updates[-1]["status"] == "completed"
    assert "hello" in str(updates[-1])


async def test_a5_a_path_that_is_too_long_to_be_opened_is_not_looked_up(
    as_shipped: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the square of its length, and 600 KiB of it held everybody up for most of a minute."""
    looked, real = [0], os.path.realpath

    def looking(path: str, *, strict: bool = False) -> str:
        looked.append(len(os.fspath(path)))
        return real(path, strict=strict)

    monkeypatch.setattr(os.path, "realpath", looking)
    await as_shipped.created("s", directory=str(as_shipped.work))
    path = f"{as_shipped.work}/{'a/' * 10_000}x"
    await as_shipped.played("s", f"fs-read! {path}")
    assert "the path is too long" in str((await as_shipped.events("s", "tool-call-update"))[-1])
    message = {"message": "x", "attachments": [{"path": path}]}
    assert (await as_shipped.call("POST", "/v1/sessions/s/messages", message)).status_code == 400
    given = local(as_shipped.work, subpath=path)
    assert (await as_shipped.create("t", directory=str(as_shipped.work), skills=given)).status_code == 400
    assert max(looked) <= MAX_PATH


# Keys of the owner's.


@pytest.fixture
async def with_keys(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SessionClient]:
    """An agent of the owner's own that is given a key of the server's environment."""
    monkeypatch.setenv("TEST_AGENT_KEY", SECRET)
    monkeypatch.setenv("TEST_AGENT_COLOUR", "ultramarine")
    async with asyncio.timeout(110), open_session_client(tmp_path, request) as talk:
        words = f"{sys.executable} -m legation.agents.rehearsal"
        names = ["TEST_AGENT_KEY", "TEST_AGENT_COLOUR"]
        with (tmp_path / "agents.toml").open("a") as file:
            file.write(f"[agents.mine]\ncommand = {words!r}\nenv = {names}\n")
        yield talk


async def test_variables_of_the_owner_are_for_the_first_workspace_alone(with_keys: SessionClient) -> None:
    rig = with_keys.rig
    theirs = await rig.bearer(rig.people["stranger"], workspace=rig.other)
    made = await with_keys.call("POST", "/v1/sessions/s", {"agent": "mine"}, theirs)
    assert made.status_code == 200, made.text
    message = {"message": script("env! TEST_AGENT_KEY", "env! TEST_AGENT_COLOUR", "say done")}
    sent = await with_keys.call("POST", "/v1/sessions/s/messages", message, theirs)
    assert sent.status_code == 204, sent.text
    said = b""
    async for event in (await rig.services.log.stream("s", rig.other)).subscribe():
        said += event.raw
        if event.type == "prompt-finished":
            break
    assert b"done" in said
    assert b"ultramarine" not in said
    assert SECRET.encode() not in said
    assert b"redacted" not in said


async def test_what_an_agent_says_of_the_owners_key_is_hidden(with_keys: SessionClient) -> None:
    await with_keys.created("s", agent="mine")
    await with_keys.played("s", "env! TEST_AGENT_KEY", "env! TEST_AGENT_COLOUR")
    heard = await with_keys.heard("s")
    assert "TEST_AGENT_KEY=[redacted:TEST_AGENT_KEY]" in heard
    assert "TEST_AGENT_COLOUR=ultramarine" in heard  # no secret by its name
    raw = await with_keys.call("GET", "/v1/sessions/s/events?includeRaw=true")
    assert SECRET not in raw.text


# Limits.


async def test_sessions_that_are_made_at_once_are_no_more_than_those_one_after_the_other(
    talk: SessionClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents, "MOST_RUNNING", 2)
    made = await asyncio.gather(*[talk.create(f"s{number}") for number in range(6)])
    assert sorted(answer.status_code for answer in made) == [200, 200, 429, 429, 429, 429]
    await talk.call("POST", f"/v1/sessions/{_first(made)}/terminate")
    await talk.created("again")


def _first(made: list[httpx2.Response]) -> str:
    return next(f"s{number}" for number, answer in enumerate(made) if answer.status_code == 200)


# A server that is killed.


async def test_secrets_of_a_session_that_was_never_made_are_destroyed_at_the_next_start(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Killed after they were sealed: a file says so. One whose session is on record keeps them."""
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            await talk.created("kept", agent="mirror", mcp=MCP)
            await talk.rig.services.vault.put("local", "ssn_cut_off", b"[]")
            await talk.rig.services.vault.put("local", "run_of_another", b"[]")
            (kept,) = [each for each in await owners(talk) if each.startswith("ssn_01")]
            services = talk.rig.services
            folder = services.settings.data_dir / UNSETTLED
            unsettled = SealedServers(services.vault, folder, services.clock)
            assert unsettled.left() == []
            for name in (kept, "ssn_cut_off"):
                unsettled._note(Owner("local", name))
        async with open_session_client(tmp_path, request) as talk:
            assert await owners(talk) == sorted([kept, "run_of_another"])
            assert unsettled.left() == []
            assert (await talk.reflected("kept"))["mcpServers"][0]["name"] == "files"


async def test_what_was_cut_off_while_it_ended_is_ended_at_the_next_start(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(110):
        async with open_session_client(tmp_path, request) as talk:
            await talk.created("s", agent="mirror", mcp=MCP, permissionMode="bypass")
            await talk.created("t", agent="mirror")
            await grant_to(talk, "t")  # as by an "always"

            async def killed(_desk: SessionService, _principal: object, _record: object, _now: int) -> None:
                raise Unavailable("cannot go on: the test ends it here")

            with monkeypatch.context() as patched:
                patched.setattr(SessionService, "_settle", killed)
                for each in ("s", "t"):
                    assert (await talk.call("POST", f"/v1/sessions/{each}/terminate")).status_code == 503
            assert len(await owners(talk)) == 1
        async with open_session_client(tmp_path, request) as talk:
            assert await owners(talk) == []
            grants = (await talk.call("GET", "/grants")).json()
            assert [each["active"] for each in grants] == [False, False]


async def test_a_session_that_is_not_made_leaves_no_skills_for_the_next_of_its_name(
    talk: SessionClient,
) -> None:
    (talk.work / "one").mkdir()
    (talk.work / "one/SKILL.md").write_text("# one")
    refused = await talk.create("s", skills=local(talk.work / "one"), model="no such model")
    assert refused.status_code == 400, refused.text
    assert not (talk.rig.services.settings.data_dir / "work/local/s").exists()


async def grant_to(talk: SessionClient, session: str) -> None:
    services, now = talk.rig.services, talk.rig.clock.now_ms()
    person = Principal(kind="user", id="usr_1", workspace="local", scopes=frozenset({"approve"}), level=2)
    new = NewGrant(agent="mirror", tools="*", duration=3600)
    await services.database.transact(
        services.grants.give, person, new, grant=new_grant_id(now), now_ms=now, session=session
    )


async def owners(talk: SessionClient) -> list[str]:
    return sorted(row["owner"] for row in await talk.rig.rows("select owner from vault_bundle"))


# The folder that Legation makes for a session.


async def test_a_sessions_own_folder_is_served_to_it_and_nothing_beside_it(open_house: SessionClient) -> None:
    data = open_house.rig.services.settings.data_dir
    await open_house.created("s")
    await open_house.created("t")
    own = data / "work/local/s"
    (own / "out").symlink_to(data)
    (own / "over").symlink_to(data / "work/local/t")
    (own / "key").hardlink_to(data / "keys.json")
    with_it = "sessionId=s"
    sent = await open_house.rig.client.put(
        f"/v1/fs/file?path=a.txt&{with_it}", content=b"a", headers=open_house.headers
    )
    assert sent.status_code == 200, sent.text
    assert (own / "a.txt").read_bytes() == b"a"
    listed = await open_house.call("GET", f"/v1/fs/entries?{with_it}")
    assert [each["name"] for each in listed.json()] == ["a.txt", "key", "out", "over"]
    for path, query in (
        ("out/keys.json", with_it),
        ("over", with_it),
        ("key", with_it),
        (str(data / "keys.json"), with_it),
        (str(data / "work/local/t"), with_it),
        (str(own), "sessionId=t"),
        (str(own / "a.txt"), ""),
        ("a.txt", f"{with_it}&path=b"),
    ):
        answer = await open_house.call("GET", f"/v1/fs/file?path={path}&{query}")
        assert answer.status_code in (400, 403), (path, answer.text)
    gone = await open_house.call("DELETE", f"/v1/fs/entry?path={own}&recursive=true&{with_it}")
    assert gone.status_code == 403
    theirs = await open_house.rig.bearer(open_house.rig.people["stranger"], workspace=open_house.rig.other)
    answer = await open_house.call("GET", f"/v1/fs/file?path=a.txt&{with_it}", None, theirs)
    assert answer.status_code == 404


async def test_who_may_use_files_changes_no_rules(open_house: SessionClient, tmp_path: Path) -> None:
    """Of no workspace: neither written, moved, deleted, nor put there with a folder around it."""
    rig = open_house.rig
    settings = rig.services.settings
    assert settings.policy == tmp_path / "policy.yaml"
    rules = settings.policy.read_text()
    theirs = await rig.bearer(rig.people["stranger"], workspace=rig.other)
    (tmp_path / "mine.yaml").write_text("name: mine")
    (tmp_path / "link").symlink_to(settings.policy)
    for path in (settings.policy, settings.agents, tmp_path / "link"):
        put = await rig.client.put(f"/v1/fs/file?path={path}", content=b"", headers=theirs)
        moved = {"from": str(tmp_path / "mine.yaml"), "to": str(settings.policy), "overwrite": True}
        move = await open_house.call("POST", "/v1/fs/move", moved, theirs)
        assert (put.status_code, move.status_code) == (403, 403)
    assert (
        await open_house.call("DELETE", f"/v1/fs/entry?path={settings.policy}", None, theirs)
    ).status_code == 403
    assert settings.policy.read_text() == rules


ALLOW = 'name: p\nagent: "*"\nloop: off\nrules:\n  - {id: all, action: allow}\n'


async def test_an_agent_gets_nothing_of_ours_from_the_server(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Neither the keys into its stream nor a word into the policy, by whatever name, and whatever the rules allow."""
    rules, keys = tmp_path / "rules.yaml", tmp_path / "data/keys.json"
    rules.write_text(ALLOW)
    opened = open_session_client(tmp_path, request, folders=[str(tmp_path)], policy=rules)
    async with asyncio.timeout(110), opened as talk:
        await talk.created("s", directory=str(tmp_path))
        (tmp_path / "soft").symlink_to(keys)
        (tmp_path / "hard").hardlink_to(keys)
        (tmp_path / "softly").symlink_to(rules)
        (tmp_path / "hardly").hardlink_to(rules)
        for path in (keys, tmp_path / "soft", tmp_path / "hard", tmp_path / "data/server.json", rules):
            await talk.played("s", f"fs-read! {path}")
        for path in (rules, tmp_path / "softly", tmp_path / "hardly", tmp_path / "data/keys.json"):
            await talk.played("s", f"fs-write! {path} mine")
        stream = await talk.rig.services.log.stream("s")
        told = b"".join([event.raw async for event in stream.subscribe(follow=False)])
        kept = json.loads(keys.read_text())
        assert not [word for word in (*kept["vault"], kept["cookie"], "id: all") if word.encode() in told]
        assert rules.read_text() == ALLOW
        await talk.played("s", f"fs-write! {tmp_path}/mine.txt mine", f"fs-read! {tmp_path}/mine.txt")
        assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("folder", ["data", "data/work", "data/blobs", "data.before-restore-1", "link"])
async def test_no_session_begins_in_a_folder_of_ours(
    open_house: SessionClient, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    answer = await open_house.create("s", directory=str(tmp_path / folder))
    assert answer.status_code == 403, answer.text


async def test_a_file_of_ours_is_not_attached(open_house: SessionClient, tmp_path: Path) -> None:
    await open_house.created("s", directory=str(tmp_path))
    (tmp_path / "hard").hardlink_to(tmp_path / "data/keys.json")
    for path in ("data/keys.json", "hard", "policy.yaml"):
        body = {"message": "look", "attachments": [{"path": path}]}
        answer = await open_house.call("POST", "/v1/sessions/s/messages", body)
        assert answer.status_code == 400, answer.text
        assert "Legation's own" in answer.json()["detail"]
