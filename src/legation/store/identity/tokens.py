"""API tokens of a workspace; tokens and sign-in codes as text, and the keyed hashes that stand for them in the database.

INV-I1  The text itself is nowhere but in the answer that hands it out. Without the pepper, which is not in the
        database, a hash cannot even be tested against a guess.
INV-I4  A token never has more than its maker had when it was made, nor more than its maker has now.
        One made with a token lasts no longer than that.
INV-I5  A token of kind `agent` is that agent: its label is the agent's name. It calls tools and manages nothing.

What a user may do (`Standing`) is read anew for every request, so that a change bites at once.
"""

import base64
import hmac
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from legation.errors import Forbidden, InvalidParams, NotFound
from legation.secret import Secret
from legation.store.audit import record
from legation.store.database.transaction import Queries, Row, Transaction, only, page_of
from legation.store.secrets.sealer import derive, key_bytes
from legation.wire.api.identity import TOKEN_LEVELS, NewToken, Token
from legation.wire.api.shape import Page
from legation.wire.principal import (
    ADMIN_SCOPES,
    AGENT_NAME_RULE,
    AGENT_SCOPES,
    NEVER_AN_AGENTS,
    ROLE_SCOPES,
    SCOPES,
    Level,
    Principal,
    Role,
    Scope,
    is_agent_name,
)

# Rights.

_USERS = Queries("users")


class Standing(msgspec.Struct, frozen=True):
    """The rights of one user in one workspace; `role` is None for who is not a member, or does not exist there."""

    user: str
    role: Role | None
    admin: bool
    disabled: bool
    token_version: int

    @property
    def welcome(self) -> bool:
        return self.role is not None and not self.disabled

    @property
    def scopes(self) -> frozenset[Scope]:
        """None at all for who is disabled or no member: an admin of the installation is a member somewhere."""
        if self.role is None or self.disabled:
            return frozenset()
        return ROLE_SCOPES[self.role] | (ADMIN_SCOPES if self.admin else frozenset())


def standing(user: str, workspace: str) -> Transaction[Standing | None]:
    row = only((yield _USERS.standing(user=user, workspace=workspace)))
    return read_standing(row) if row else None


def read_standing(row: Row) -> Standing:
    return Standing(
        user=row["user_id"],
        role=row["role"],
        admin=row["admin_since"] is not None,
        disabled=row["disabled_at"] is not None,
        token_version=row["token_version"],
    )


def level_with(scopes: frozenset[Scope], level: Level) -> Level:
    """The level that counts with these scopes: who may not approve decides nothing, as whatever it presents itself."""
    return level if "approve" in scopes else 0


def person_behind(principal: Principal) -> str:
    """To whom what a principal makes is attributed."""
    if principal.user is None:
        raise Forbidden("cannot do this with a credential that no person stands behind; use a person's own")
    return principal.user


DAY_MS: Final = 86_400_000
SQL = Queries("tokens")


class Hashed(msgspec.Struct, frozen=True):
    """A token as it is kept."""

    hash: bytes
    hint: str


def create(
    principal: Principal, user: str, new: NewToken, kept: Hashed, *, token: str, now_ms: int
) -> Transaction[Token]:
    if new.kind == "agent":
        _must_fit_an_agent(new)
    scopes = _granted(principal, new)
    expires_at = _earlier((yield from expiry_of(principal)), new, now_ms)
    yield SQL.add_token(
        id=token,
        workspace=principal.workspace,
        user=user,
        label=new.label,
        kind=new.kind,
        scopes=_written(scopes),
        hash=kept.hash,
        hint=kept.hint,
        created_at=now_ms,
        expires_at=expires_at,
    )
    details = {"kind": new.kind, "scopes": ",".join(sorted(scopes)), "expiresAt": expires_at}
    yield from record(principal, "token.created", token, details, now_ms)
    return _read((yield from _row(principal.workspace, token)))


def expiry_of(principal: Principal) -> Transaction[int | None]:
    """The time when the caller's credential ends by itself; None for what does not, or is no token."""
    if principal.kind != "token":
        return None
    row = only((yield SQL.token_by_id(workspace=principal.workspace, id=principal.id)))
    return row["expires_at"] if row else None


def page(workspace: str, limit: int, after: str = "") -> Transaction[Page[Token]]:
    rows = yield SQL.tokens_after(workspace=workspace, after=after, most=limit + 1)
    return page_of(rows, limit, _read, lambda token: token.id)


def revoke(principal: Principal, token: str, *, now_ms: int) -> Transaction[None]:
    """Once and for all; a second time changes nothing."""
    yield from _row(principal.workspace, token)
    if (yield SQL.revoke_token(workspace=principal.workspace, id=token, now=now_ms)):
        yield from record(principal, "token.revoked", token, {}, now_ms)


def revoke_of(workspace: str, user: str, now_ms: int) -> Transaction[int]:
    return len((yield SQL.revoke_tokens_of(workspace=workspace, user=user, now=now_ms)))


def principal_of(hash: bytes, now_ms: int) -> Transaction[Principal | None]:  # noqa: A002
    """The principal that a token stands for now; None if it is unknown, revoked or expired, or its maker is gone."""
    row = only((yield SQL.token_by_hash(hash=hash)))
    return None if row is None else _principal(row, now_ms)


def principal_by_id(workspace: str, token: str, now_ms: int) -> Transaction[Principal | None]:
    """As `principal_of`, of a token that was shown before: what it asked then counts only if it could ask it now."""
    row = only((yield SQL.token_standing(workspace=workspace, id=token)))
    return None if row is None else _principal(row, now_ms)


def _principal(row: Row, now_ms: int) -> Principal | None:
    maker = read_standing(row)
    expired = row["expires_at"] is not None and row["expires_at"] <= now_ms
    if row["revoked_at"] is not None or expired or not maker.welcome:
        return None
    scopes = maker.scopes & frozenset(_scopes(row["scopes"]))
    agent = None
    if row["kind"] == "agent":
        scopes -= NEVER_AN_AGENTS
        # An older one may have any label. It is an agent all the same: else it could name whom it likes.
        agent = row["label"] if is_agent_name(row["label"]) else row["id"]
    return Principal(
        kind="token",
        id=row["id"],
        workspace=row["workspace_id"],
        scopes=scopes,
        level=level_with(scopes, TOKEN_LEVELS[row["kind"]]),
        user=maker.user,
        agent=agent,
    )


def note_uses(uses: Mapping[str, int]) -> Transaction[None]:
    """Note when each token was last used, by its id."""
    for token, at in uses.items():
        yield SQL.note_use(id=token, at=at)


def _must_fit_an_agent(new: NewToken) -> None:
    if not is_agent_name(new.label):
        raise InvalidParams(
            f"cannot create an agent's token with this label: it is the agent's name; write {AGENT_NAME_RULE}",
            {"path": "$.label", "expected": AGENT_NAME_RULE},
        )
    if beyond := NEVER_AN_AGENTS & frozenset(new.scopes or ()):
        raise InvalidParams(
            f"cannot create an agent's token that manages; leave out {_written(beyond)}, or make one of another kind",
            {"scopes": sorted(beyond)},
        )


def _granted(principal: Principal, new: NewToken) -> frozenset[Scope]:
    unless_said = AGENT_SCOPES if new.kind == "agent" else principal.scopes - ADMIN_SCOPES
    scopes = frozenset(new.scopes) if new.scopes is not None else unless_said
    if not scopes:
        raise InvalidParams("cannot create a token without any scope; name at least one")
    if beyond := scopes - principal.scopes:
        raise Forbidden(
            f"cannot create a token with more than your credential has; leave out {_written(beyond)}",
            {"scopes": sorted(beyond)},
        )
    if level_with(scopes, TOKEN_LEVELS[new.kind]) > principal.level:
        raise Forbidden(
            f"cannot create a token of kind {new.kind} that approves with a credential that decides less; leave "
            'out the scope "approve", or use your own session'
        )
    return scopes


def _earlier(of_caller: int | None, new: NewToken, now_ms: int) -> int | None:
    asked = now_ms + new.expires_in_days * DAY_MS if new.expires_in_days else None
    if of_caller is None or asked is None:
        return of_caller if asked is None else asked
    if asked > of_caller:
        raise Forbidden(
            "cannot create a token that outlasts the one it is made with; leave out expiresInDays, or use your own session"
        )
    return asked


def _row(workspace: str, token: str) -> Transaction[Row]:
    row = only((yield SQL.token_by_id(workspace=workspace, id=token)))
    if row is None:
        raise NotFound("cannot find the token; check the id among those of the workspace")
    return row


def _written(scopes: Iterable[Scope]) -> str:
    return " ".join(sorted(scopes))


def _scopes(text: str) -> list[Scope]:
    """A scope that this release does not know opens nothing."""
    known: dict[str, Scope] = {scope: scope for scope in SCOPES}
    return [known[word] for word in text.split() if word in known]


def _read(row: Row) -> Token:
    return Token(
        id=row["id"],
        label=row["label"],
        kind=row["kind"],
        scopes=_scopes(row["scopes"]),
        hint=row["hint"],
        user=row["user_id"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        last_used_at=row["last_used_at"],
        revoked_at=row["revoked_at"],
    )


TOKEN_PREFIX: Final = "lgn_"  # noqa: S105 - so that scanners and people recognise one
HINT_LENGTH: Final = 4
_CHANCE_BYTES: Final = 24

Random = Callable[[int], bytes]


class CredentialHash:
    """A hash for each purpose, so that a code is no token and a token no code."""

    def __init__(self, pepper: Secret) -> None:
        self._pepper = key_bytes(pepper)
        self._link_key = derive(self._pepper, "sign-in-links")

    def token(self, text: str) -> bytes:
        return hmac.digest(self._pepper, text.encode(), "sha256")

    def link(self, code: str) -> bytes:
        return hmac.digest(self._link_key, code.encode(), "sha256")


def new_token(random: Random = os.urandom) -> Secret:
    return Secret(TOKEN_PREFIX + _text(random), "api-token")


def new_code(random: Random = os.urandom) -> Secret:
    return Secret(_text(random), "sign-in-code")


def hint_of(token: Secret) -> str:
    return token.reveal()[-HINT_LENGTH:]


def _text(random: Random) -> str:
    return base64.urlsafe_b64encode(random(_CHANCE_BYTES)).decode()  # 24 bytes need no padding
