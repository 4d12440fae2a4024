"""The client and `legation server`, as a user has them: every operation, and streams over restarts."""

import os
import signal
import threading
from pathlib import Path

import pytest

from legation.client import AsyncLegation, Legation, Spawn
from legation.errors import AlreadyAnswered, Conflict, Forbidden, NotFound, Unauthenticated

pytestmark = pytest.mark.heavy  # a server each

TOKEN = "canary-" + "t" * 40


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("LEGATION_", "XDG_"))]:
        if name != "LEGATION_BIN":
            monkeypatch.delenv(name)


def spawn(folder: Path, port: int | None = None) -> Spawn:
    return Spawn(data_dir=folder / "data", port=port, token=TOKEN, log=folder / "server.log")


def test_every_operation_works(tmp_path: Path) -> None:
    with Legation.start(spawn(tmp_path)) as owner:
        assert owner.health().status == "ok"
        assert owner.ready().ready
        assert owner.info().url == owner.url
        workspace = owner.me().workspace
        assert [one.id for one in owner.workspaces.list()] == [workspace]

        made = owner.tokens.create("ci", kind="agent", scopes=["read"], expires_in_days=7)
        assert made.token in owner.tokens.list().all()
        with Legation.connect(owner.url, made.secret) as reader:
            assert reader.me().scopes == ["read"]
            assert [stream.name for stream in reader.streams.list("ser")] == ["server"]
            with pytest.raises(Forbidden) as refusal:
                reader.users.list().all()
            assert refusal.value.data is not None
            assert "requestId" in refusal.value.data
            owner.tokens.revoke(made.token.id)
            with pytest.raises(Unauthenticated):
                reader.me()

        ann = owner.users.create("Ann", email="ann@example.com", role="viewer")
        with pytest.raises(Conflict):
            owner.users.create("Ann", email="ann@example.com")
        assert owner.users.change(ann.id, name="Anna").name == "Anna"
        assert owner.users.get(ann.id).name == "Anna"
        assert owner.workspaces.get(workspace).id == workspace
        assert owner.workspaces.set_role(workspace, ann.id, "operator").role == "operator"
        assert ann.id in [member.user for member in owner.workspaces.members(workspace)]
        assert owner.sign_in_link(ann.id).url.partition("#")[0].endswith("/sign-in")
        owner.workspaces.remove(workspace, ann.id)
        assert len(owner.users.list(limit=1).all()) == 2  # page by page
        assert owner.workspaces.create("Other").role == "owner"
        assert {"token.created", "token.revoked"} <= {entry.action for entry in owner.audit(limit=2)}

        assert owner.rotate_keys().rewrapped == 0
        owner.backup(tmp_path / "backup.tar")
        assert (tmp_path / "backup.tar").stat().st_mode & 0o777 == 0o600
        with pytest.raises(NotFound):
            owner.streams.events("nowhere").all()
        with pytest.raises(NotFound):
            list(owner.streams.follow("nowhere"))
        with pytest.raises(Conflict):
            list(owner.streams.follow("server", after=1000))
    assert TOKEN not in (tmp_path / "server.log").read_text()


ASKS = """
name: p
rules:
  - {id: asks, tools: "*", action: human_approval}
"""


async def test_a_program_asks_waits_uses_and_takes_back(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(ASKS)
    settings = Spawn(
        data_dir=tmp_path / "data",
        token=TOKEN,
        log=tmp_path / "server.log",
        env={"LEGATION_POLICY": str(tmp_path / "policy.yaml")},
        wait=60.0,
    )
    with Legation.start(settings) as owner:
        secret = owner.tokens.create("ci", kind="agent").secret
        with Legation.connect(owner.url, secret) as program:
            asked = program.asks.ask("run:1", "deploy", {"to": "production"}, key="k")
            assert program.asks.ask("run:1", "deploy", {"to": "production"}, key="k") == asked
            assert asked.id is not None
            assert program.asks.get(asked.id).status == "pending"
            owner.approvals.approve(asked.id)
            assert program.asks.get(asked.id, wait=60).status == "approved"
            assert program.asks.use(asked.id).status == "used"
            with pytest.raises(AlreadyAnswered):
                program.asks.use(asked.id)
        async with AsyncLegation.connect(owner.url, secret) as other:
            again = await other.asks.ask("run:1", "deploy", {"to": "staging"})
            assert again.id is not None
            await other.asks.withdraw(again.id)
            assert (await other.asks.get(again.id)).status == "cancelled"


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_stream_is_followed_over_restarts_without_a_gap_or_a_double(tmp_path: Path, end: str) -> None:
    server = Legation.start(spawn(tmp_path))
    port = int(server.url.rpartition(":")[2])
    with Legation.connect(server.url, TOKEN) as legation, legation.streams.follow("server") as events:
        seen = [next(events)]
        for _ in range(3):
            if end == "kill":
                os.kill(server.info().pid, signal.SIGKILL)
            server.close()
            server = Legation.start(spawn(tmp_path, port))
            seen.append(next(events))
            while seen[-1].type != "server-started":
                seen.append(next(events))
        recorded = server.streams.events("server", limit=2).all()
    server.close()
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen == recorded
    assert [event.type for event in seen].count("server-started") == 4


def test_many_streams_and_one_are_the_same_events(tmp_path: Path) -> None:
    with Legation.start(spawn(tmp_path)) as legation:
        alone = next(legation.streams.follow("server"))
        with legation.streams.follow_many({"server": 0}) as both:
            assert next(both) == ("server", alone)


async def test_the_async_client_does_the_same(tmp_path: Path) -> None:
    async with AsyncLegation.start(spawn(tmp_path)) as legation:
        assert (await legation.me()).workspace == "local"
        assert [stream.name async for stream in legation.streams.list()] == ["approvals", "server"]
        async with legation.streams.follow("server") as events:
            first = await anext(events)
        assert [first] == await legation.streams.events("server").all()
        assert (await legation.stop()).status == "ok"


def test_a_server_says_why_it_cannot_start(tmp_path: Path) -> None:
    with Legation.start(spawn(tmp_path)), pytest.raises(Exception, match="ended with code") as caught:
        Legation.start(spawn(tmp_path))  # the same folder
    assert "cannot" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_what_was_started_can_be_found(tmp_path: Path) -> None:
    with Legation.start(spawn(tmp_path)) as started, Legation.find(tmp_path / "data") as found:
        assert found.info() == started.info()
    assert "legation-server-log" not in [thread.name for thread in threading.enumerate()]


async def test_the_inbox_is_read_followed_and_put_away(tmp_path: Path) -> None:
    with Legation.start(spawn(tmp_path)) as owner:
        before = owner.inbox()
        assert (before.items, before.stream) == ([], "inbox")
        session = owner.sessions.create("rehearsal", title="Done")
        with owner.follow_inbox(before.seq) as changes:
            session.send("#!rehearse\nsay hello")
            happened = next(each for each in changes if each.change.happened == "ready")
        assert happened.change.id == session.id
        (item,) = owner.inbox().items
        assert (item.id, item.section, item.session_title) == (session.id, "ready", "Done")
        async with AsyncLegation.connect(owner.url, TOKEN) as other:
            assert [each.id for each in (await other.inbox()).items] == [session.id]
            await other.look_at(session.id, since=item.since)
            async with other.follow_inbox(happened.seq) as changes:
                put_away = await anext(changes)
            assert put_away.change.happened == "looked-at"
            assert (await other.inbox()).items == []
            with pytest.raises(NotFound):
                await other.look_at("none")
        assert owner.inbox().items == []
