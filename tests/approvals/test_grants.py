"""A grant is bounded, well-formed, a person's, and ends."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.approvals.installation import NOW, PERSON, SUPERVISOR, Installation, principal, write_file

from legation.approvals import grants
from legation.approvals.approval import Glob
from legation.approvals.grants import Grant, GrantService, new_grant_id
from legation.approvals.policy.facts import Facts, carried
from legation.clock import SystemClock
from legation.errors import Conflict, Forbidden, InvalidParams, NotFound
from legation.wire.action import Action
from legation.wire.api.approvals import NewGrant
from legation.wire.principal import Principal
from legation.wire.resolved import ResolvedPaths

HOUR = 3600


async def give(
    installation: Installation,
    agent: str = "claude",
    tools: str = "filesystem.*",
    duration: int = HOUR,
    by: Principal = PERSON,
    **rest: object,
) -> Grant:
    new = NewGrant(agent=agent, tools=tools, duration=duration, **rest)  # type: ignore[arg-type]
    give = GrantService(installation.database, installation.sealer, SystemClock()).give
    return await installation.database.transact(give, by, new, grant=new_grant_id(NOW), now_ms=NOW)


async def found(installation: Installation, now: int = NOW + 1, **action: str) -> str | None:
    grant = await installation.database.read(
        grants.matching, "local", write_file(**action), now, None, Facts()
    )
    return grant.id if grant else None


async def test_a_grant_is_found_for_what_it_covers_while_it_lasts(installation: Installation) -> None:
    grant = await give(installation)
    assert await found(installation) == grant.id
    assert await found(installation, tool="gmail.send") is None
    assert await found(installation, agent="codex") is None
    assert await found(installation, now=NOW + HOUR * 1000 - 1) == grant.id
    assert await found(installation, now=NOW + HOUR * 1000) is None
    assert grant.shown(NOW + 1000).remaining == "59m59s"
    assert grant.shown(NOW).granted_by == "user:usr_1"


async def test_a_grant_may_be_of_kinds(installation: Installation) -> None:
    await give(installation, tools="*", kinds=["read", "search"])
    assert await found(installation) is None
    second = await give(installation, tools="*", kinds=["edit"])
    assert await found(installation) == second.id


@pytest.mark.parametrize("duration", [-HOUR, 0, 24 * HOUR + 1, 9000 * HOUR])
async def test_d22_a_duration_is_positive_and_bounded(installation: Installation, duration: int) -> None:
    with pytest.raises(InvalidParams):
        await give(installation, duration=duration)
    assert await installation.database.read(grants.live, "local", NOW) == []


async def test_d22_the_maximum_can_be_set(installation: Installation) -> None:
    short = GrantService(installation.database, installation.sealer, SystemClock(), most_ms=60_000)
    for duration, fits in ((60, True), (61, False)):
        new = NewGrant(agent="*", tools="*", duration=duration)
        work = installation.database.transact(short.give, PERSON, new, grant=new_grant_id(NOW), now_ms=NOW)
        if fits:
            assert (await work).expires_at == NOW + 60_000
        else:
            with pytest.raises(InvalidParams):
                await work


@pytest.mark.parametrize("bad", ["[", "filesystem.[", "a\\", "", "x" * 300, "a\x00b"])
async def test_d22_malformed_patterns_are_refused(installation: Installation, bad: str) -> None:
    for given in ({"agent": bad}, {"tools": bad}):
        with pytest.raises(InvalidParams):
            await give(installation, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("kinds", [[], ["writing"], ["edit", "x"]])
async def test_kinds_that_do_not_exist_are_refused(installation: Installation, kinds: list[str]) -> None:
    with pytest.raises(InvalidParams):
        await give(installation, kinds=kinds)


async def test_only_a_person_gives_and_revokes(installation: Installation) -> None:
    grant = await give(installation)
    viewer = Principal(kind="user", id="u", workspace="local", scopes=frozenset({"read"}), level=2)
    revoke = GrantService(installation.database, installation.sealer, SystemClock()).revoke
    for other in (SUPERVISOR, viewer):
        with pytest.raises(Forbidden):
            await give(installation, by=other)
        with pytest.raises(Forbidden):
            await installation.database.transact(revoke, other, grant.id, NOW)


async def test_a_revoked_grant_lifts_nothing(installation: Installation) -> None:
    grant = await give(installation)
    revoke = GrantService(installation.database, installation.sealer, SystemClock()).revoke
    stranger = principal("user", "usr_9", 2, "other")
    for who, which in ((stranger, grant.id), (PERSON, grant.id[:-1]), (PERSON, "")):
        with pytest.raises(NotFound):
            await installation.database.transact(revoke, who, which, NOW)
    revoked = await installation.database.transact(revoke, PERSON, grant.id, NOW + 1)
    assert (revoked.revoked_at, revoked.revoked_by) == (NOW + 1, "user:usr_1")
    assert await found(installation) is None
    with pytest.raises(Conflict):
        await installation.database.transact(revoke, PERSON, grant.id, NOW + 2)
    assert (await installation.database.read(grants.page, "local")).items == [revoked]


async def test_grants_of_another_workspace_lift_nothing_here(installation: Installation) -> None:
    await give(installation, by=principal("user", "usr_9", 2, "other"))
    assert await found(installation) is None
    assert (await installation.database.read(grants.page, "local")).items == []


async def test_the_context_of_an_approval_is_what_is_granted_to_its_agent(installation: Installation) -> None:
    first, _other, third = (
        await give(installation),
        await give(installation, agent="codex"),
        await give(installation, agent="*"),
    )
    active = await installation.database.read(grants.active_for, "local", "claude", None, NOW)
    assert [grant.id for grant in active] == [first.id, third.id]


async def test_why_it_was_given_can_be_read(installation: Installation) -> None:
    grant = await give(installation, reason="the migration tonight")
    given = GrantService(installation.database, installation.sealer, SystemClock())
    assert await given.reason("local", grant.id) == "the migration tonight"
    assert await given.reason("other", grant.id) is None
    assert await given.reason("local", (await give(installation)).id) is None


async def test_pages_of_grants_miss_nothing(installation: Installation) -> None:
    made = [(await give(installation)).id for _ in range(5)]
    first = await installation.database.read(grants.page, "local", 3)
    second = await installation.database.read(grants.page, "local", 3, first.next)
    assert [grant.id for grant in (*first.items, *second.items)] == made[::-1]
    assert second.next is None


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("30m", 1_800_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        ("90s", 90_000),
        ("1m1s1ms", 61_001),
        (".5s", 500),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, ms: int) -> None:
    assert grants.go_duration_ms(text) == ms
    assert grants.go_duration_ms(f"-{text}") == -ms


@pytest.mark.parametrize("text", ["", "30", "h", "1h 30m", "--1h", "1d", "1,5h", "1h30", "1e3s", "0x1s"])
def test_what_go_would_not_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidParams):
        grants.go_duration_ms(text)


async def test_a_grant_and_its_row_in_the_audit_log_are_one(installation: Installation) -> None:
    grant = await give(installation)
    await installation.database.transact(
        GrantService(installation.database, installation.sealer, SystemClock()).revoke,
        PERSON,
        grant.id,
        NOW + 1,
    )
    with pytest.raises(InvalidParams):
        await give(installation, duration=0)
    rows = await installation.sql("select action, target, details from audit order by id")
    assert [(row["action"], row["target"]) for row in rows if row["action"].startswith("grant.")] == [
        ("grant.created", grant.id),
        ("grant.revoked", grant.id),
    ]


async def test_a_grant_of_a_session_covers_no_other(installation: Installation) -> None:
    """INV-G4; and it ends with its session."""
    made = GrantService(installation.database, installation.sealer, SystemClock())
    new, action = NewGrant(agent="claude", tools="*", duration=60), write_file(tool="a/b")
    await installation.database.transact(made.give, PERSON, new, grant="grt_1", now_ms=NOW, session="mine")

    async def covered(session: str | None) -> bool:
        return (
            await installation.database.read(grants.matching, "local", action, NOW, session, Facts())
            is not None
        )

    assert [await covered(session) for session in ("mine", "other", None)] == [True, False, False]
    for session, told in (("mine", ["grt_1"]), ("other", []), (None, [])):
        active = await installation.database.read(grants.active_for, "local", action.agent, session, NOW)
        assert [each.id for each in active] == told
        read = await installation.database.read(
            grants.live_for, "local", session, NOW
        )  # no more than that: they are many
        assert [grant.id for grant in read] == told
    assert (await installation.database.read(grants.get, "local", "grt_1")).view(
        None, NOW
    ).session_id == "mine"
    ended = await installation.database.transact(made.end_session, PERSON, "mine", NOW)
    assert [grant.id for grant in ended] == ["grt_1"]
    assert not await covered("mine")


@pytest.mark.parametrize("name", ["plain", "a*b", "x[1]", "y?", "back\\slash"])
def test_a_name_is_matched_exactly(name: str) -> None:
    pattern = Glob(grants.exactly(name))
    assert pattern.matches(name)
    assert not any(pattern.matches(other) for other in (name + "x", "acb", "x1", "yz"))


def test_a_sessions_grant_for_edits_is_for_its_folder(tmp_path: Path) -> None:
    """Not for an agent's own settings in its home, and not through a link that leads out."""
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    home.mkdir()
    (work / "linked").symlink_to(home)
    facts = Facts(str(work), str(work), str(home))
    grant = Grant(
        id="grt_1",
        workspace_id="local",
        agent="claude",
        tools="*",
        kinds=("edit",),
        created_at=0,
        expires_at=1,
        granted_kind="user",
        granted_by="usr_1",
        granted_user="usr_1",
        revoked_at=None,
        revoked_by=None,
        session_id="s",
    )

    def covers(*paths: str, session: str = "s") -> bool:
        return grant.covers(Action(agent="claude", tool="Write", kind="edit", paths=paths), session, facts)

    assert covers(f"{work}/a.txt")
    assert covers(f"{work}/new/a.txt", f"{work}/b.txt")
    assert not covers(f"{work}/a.txt", session="other")
    for outside in (
        f"{home}/.claude/settings.json",
        f"{work}/linked/a.txt",
        f"{work}/../x",
        "~/x",
        "/etc/hosts",
    ):
        assert not covers(outside), outside
        assert not covers(f"{work}/a.txt", outside), outside
    assert not covers()  # who does not say what it touches is asked
    told = Action(agent="claude", tool="Write", kind="edit", paths=(f"{work}/a.txt",))
    assert grant.covers(told, "s", facts)
    assert not grant.covers(msgspec.structs.replace(told, command="rm -rf /"), "s", facts)
    assert not grant.covers(msgspec.structs.replace(told, unclear=("whither",)), "s", facts)


def of_folder(folder: str, **given: Any) -> Grant:
    values: dict[str, Any] = {
        "id": "grt_1",
        "workspace_id": "local",
        "agent": "claude",
        "tools": "*",
        "kinds": None,
        "created_at": 0,
        "expires_at": 1,
        "granted_kind": "user",
        "granted_by": "usr_1",
        "granted_user": "usr_1",
        "revoked_at": None,
        "revoked_by": None,
        "folder": folder,
    }
    return Grant(**(values | given))


def test_a_grant_of_a_folder_covers_what_surely_lies_there(tmp_path: Path) -> None:
    """INV-G6; whatever links there are, and wherever the agent works."""
    work, other = tmp_path / "work", tmp_path / "other"
    (work / "sub").mkdir(parents=True)
    other.mkdir()
    (work / "sub/out").symlink_to(other)
    (tmp_path / "alias").symlink_to(work)  # another name of the same folder
    (work / "moved").symlink_to(other)
    facts = Facts(str(work), str(work), str(tmp_path))

    def covers(folder: Path, *paths: Path | str, **given: Any) -> bool:
        action = Action(agent="claude", tool="Write", kind="edit", paths=tuple(map(str, paths)), **given)
        return of_folder(str(folder)).covers(action, None, facts)

    assert covers(work / "sub", work / "sub/a", work / "sub/new/b")
    assert covers(tmp_path / "alias", work / "a")
    assert covers(tmp_path / "alias/sub", work / "sub/a")
    assert covers(other, other / "a"), "it need not be where the agent works"
    for outside in (work / "a", work / "sub/out/a", work / "sub/../a", work / "subs/a", "~/x", "~ada/x"):
        assert not covers(work / "sub", work / "sub/a", outside), outside
    assert not covers(work / "moved", other / "a"), "a link in the workspace may be the agent's"
    assert not covers(work / "sub"), "what touches nothing that is known lies nowhere"
    assert not covers(work / "sub", work / "sub/a", unclear=("env",))
    always = Action(agent="claude", tool="Write", kind="edit", paths=(str(work / "sub/a"),))
    assert not of_folder(str(work)).covers_always(always, None)


def test_a_command_is_covered_by_the_folder_that_it_runs_in(tmp_path: Path) -> None:
    def covers(folder: str, cwd: str | None, *paths: str, kinds: tuple[str, ...] | None = None) -> bool:
        facts = Facts(str(tmp_path), cwd, str(tmp_path))
        action = Action(agent="claude", tool="Bash", kind="execute", command="make", paths=paths)
        return of_folder(folder, kinds=kinds).covers(action, None, facts)

    here = str(tmp_path)
    assert covers(here, here)
    assert covers(here, f"{here}/sub", f"{here}/a", kinds=("execute",))
    assert not covers(here, None)
    assert not covers(f"{here}/sub", here)
    assert not covers(here, here, "/etc/passwd")
    edits = of_folder(here, kinds=("edit",))
    disguised = Action(agent="claude", tool="Bash", kind="edit", command="make", paths=(f"{here}/a",))
    assert not edits.covers(disguised, None, Facts(here, here, here))


def test_of_an_agent_elsewhere_the_folder_is_the_one_that_it_resolved(tmp_path: Path) -> None:
    """The same names on this machine say nothing."""
    (tmp_path / "a").symlink_to("/etc/passwd")
    work, path = str(tmp_path), str(tmp_path / "a")
    action = Action(agent="claude", tool="Write", kind="edit", paths=(path,))

    def covers(folder: str, real: str | None) -> bool:
        told = ResolvedPaths(workspace=work, cwd=work, paths=(real,), folders={work: work})
        return of_folder(folder).covers(action, None, carried(action, told))

    assert covers(work, path)
    assert not covers(work, "/etc/passwd")
    assert not covers(work, None)
    assert not covers("/elsewhere", path), "it was not carried, so it is not known"


@pytest.mark.parametrize("folder", ["work", "../x", "~/x", "/", "//", "/a/..", "/nul\0", "/half\ud800"])
async def test_a_folder_that_is_none_is_refused(installation: Installation, folder: str) -> None:
    made = GrantService(installation.database, installation.sealer, SystemClock())
    new = NewGrant(agent="claude", tools="*", duration=60, folder=folder)
    with pytest.raises(InvalidParams, match="folder"):
        await installation.database.transact(made.give, PERSON, new, grant="grt_1", now_ms=NOW)
    assert await installation.database.read(grants.live, "local", NOW) == []
