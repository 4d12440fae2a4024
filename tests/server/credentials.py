"""Every kind of credential that the access table is about: what a request carries, and whom it stands for."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from tests.server.rig import Rig, bearer, cookie

from legation.server.auth import CookieSession
from legation.wire.api.identity import TOKEN_LEVELS, TokenKind, UserChange
from legation.wire.principal import AGENT_SCOPES, ROLE_SCOPES, SCOPES, Role, Scope

ROLES: tuple[Role, ...] = ("viewer", "approver", "operator", "owner")


@dataclass(frozen=True)
class Standing:
    """What the test expects of it, written down without asking the code under test."""

    scopes: frozenset[Scope]
    is_person: bool  # a session, the process, or a token of level 2
    is_whole: bool = True  # can do all that its user can
    foreign: bool = False


@dataclass(frozen=True)
class Presented:
    name: str
    headers: dict[str, str]
    standing: Standing | None  # None: refused, whatever it asks for


async def all_presented(rig: Rig) -> list[Presented]:
    return [each async for each in _wrong(rig)] + [each async for each in _right(rig)]


async def _wrong(rig: Rig) -> AsyncIterator[Presented]:
    people = rig.people
    yield Presented("no credential", {}, None)
    yield Presented("wrong token", bearer("lgn_" + "x" * 32), None)
    for header in ("Bearer", "lgn_x", "Digest x", "Basic x", "Bearer a b"):
        yield Presented(f"malformed: {header}", {"authorization": header}, None)

    expired = await rig.bearer(people["owner"], days=1)
    old = await rig.cookie(people["owner"])
    rig.clock.advance(31 * 86_400)
    yield Presented("expired token", expired, None)
    yield Presented("expired cookie", old, None)

    token, secret = await rig.token(people["owner"])
    await rig.rows(f"update api_token set revoked_at = 1 where id = '{token}'")
    yield Presented("revoked token", bearer(secret), None)

    disabled = await rig.add_user("owner")
    credentials = await rig.bearer(disabled), await rig.cookie(disabled)
    await rig.change_user(disabled, UserChange(disabled=True))
    yield Presented("token of a disabled user", credentials[0], None)
    yield Presented("cookie of a disabled user", credentials[1], None)
    renewed = await rig.session(disabled)
    yield Presented("new cookie of a disabled user", cookie(rig.cookies.write(renewed)), None)

    removed = await rig.add_user("owner")
    credentials = await rig.bearer(removed), await rig.cookie(removed)
    await rig.rows(f"delete from membership where user_id = '{removed}'")  # leaving the token as it is
    yield Presented("token of a removed member", credentials[0], None)
    yield Presented("cookie of a removed member", credentials[1], None)

    signed_out = await rig.add_user("owner")
    stale = await rig.cookie(signed_out)
    await rig.change_user(signed_out, UserChange(sign_out=True))
    yield Presented("stale cookie", stale, None)

    session = await rig.session(people["viewer"])
    mine = rig.cookies.write(session).split(".")
    owners = CookieSession(people["owner"], "local", 1, session.issued_ms, session.expires_ms)
    other = rig.cookies.write(owners).split(".")
    yield Presented("tampered cookie", cookie(".".join([mine[0], other[1], mine[2]])), None)
    nobody = CookieSession("usr_none", "local", 1, session.issued_ms, session.expires_ms)
    yield Presented("cookie of nobody", cookie(rig.cookies.write(nobody)), None)
    both = {**await rig.cookie(people["owner"]), **bearer("wrong")}
    yield Presented("wrong token with a good cookie", both, None)


async def _right(rig: Rig) -> AsyncIterator[Presented]:
    people = rig.people
    for role in ROLES:
        scopes = ROLE_SCOPES[role]
        approves = "approve" in scopes
        yield Presented(f"token of a {role}", await rig.bearer(people[role]), Standing(scopes, approves))
        yield Presented(f"cookie of a {role}", await rig.cookie(people[role]), Standing(scopes, True))
    kinds: tuple[TokenKind, ...] = ("supervisor", "agent")
    for kind in kinds:
        scopes = AGENT_SCOPES if kind == "agent" else ROLE_SCOPES["owner"]
        headers = await rig.bearer(people["owner"], kind=kind)
        assert TOKEN_LEVELS[kind] < 2
        yield Presented(f"{kind} token", headers, Standing(scopes, False))
    headers = await rig.bearer(people["owner"], "read", "call", kind="agent")
    yield Presented("agent token that reads", headers, Standing(frozenset({"read", "call"}), False))
    reading = await rig.bearer(people["owner"], "read", "approve")
    yield Presented(
        "narrow token of an owner", reading, Standing(frozenset({"read", "approve"}), True, False)
    )

    admin = people["admin"]
    yield Presented("cookie of an admin", await rig.cookie(admin), Standing(SCOPES, True))
    yield Presented("token of an admin", await rig.bearer(admin, *SCOPES), Standing(SCOPES, True))
    modest = await rig.bearer(admin)
    yield Presented("token of an admin without instance", modest, Standing(ROLE_SCOPES["owner"], True, False))
    managing = frozenset({*ROLE_SCOPES["owner"], "instance"})
    each = await rig.bearer(admin, *managing)
    yield Presented("token of an admin without backup", each, Standing(managing, True, False))
    yield Presented("process token", bearer(rig.services.own_token.reveal()), Standing(SCOPES, True))

    theirs = Standing(ROLE_SCOPES["owner"], True, foreign=True)
    stranger = people["stranger"]
    yield Presented("token of a foreign owner", await rig.bearer(stranger, workspace=rig.other), theirs)
    yield Presented("cookie of a foreign owner", await rig.cookie(stranger, rig.other), theirs)
