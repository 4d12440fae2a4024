"""Users, workspaces, members, tokens, sign-in links, the audit log and trusted folders, as the HTTP API shows them.

Times are milliseconds since the epoch, as in events.
"""

from typing import Annotated, Literal

from msgspec import Meta

from legation.wire.api.shape import RequestBody, ResponseBody
from legation.wire.principal import Level, Role, Scope

# `$` alone would let a newline pass at the end.
Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=100,
        pattern=r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$(?!\n)",
        description="a line of 1 to 100 characters that are not all blank",
    ),
]
Email = Annotated[
    str,
    Meta(
        min_length=3,
        max_length=254,
        pattern=r"^[^@\s\x00-\x1f\x7f]+@[^@\s\x00-\x1f\x7f]+$(?!\n)",
        description="an address like ada@example.org",
    ),
]
Id = Annotated[
    str,
    Meta(
        min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.-]+$(?!\n)", description="an id as it is listed"
    ),
]
TokenKind = Literal["user", "supervisor", "agent"]  # decides as: a person (level 2), level 1, nothing
WorkspaceStatus = Literal["active", "deleting"]

TOKEN_LEVELS: dict[TokenKind, Level] = {"user": 2, "supervisor": 1, "agent": 0}


class Me(ResponseBody):
    """Who the credential says you are."""

    kind: str
    id: str
    workspace: str
    scopes: list[Scope]
    level: Level
    user: str | None  # who is signed in; null for a token, which acts for itself


class User(ResponseBody):
    id: str
    name: str
    email: str | None
    instance_admin: bool
    created_at: int
    disabled_at: int | None


class NewUser(RequestBody):
    name: Name
    email: Email | None = None
    instance_admin: bool = False
    role: Role | None = None  # in the caller's workspace; null: no membership yet


class UserChange(RequestBody):
    """Only what is given changes.

    Disabling shuts out every session and token of the user at once. Enabling lets the tokens work again, and the
    sessions not."""

    name: Name | None = None
    disabled: bool | None = None
    instance_admin: bool | None = None
    sign_out: bool = False  # ends every signed-in session of the user


class Workspace(ResponseBody):
    id: str
    name: str
    status: WorkspaceStatus
    role: Role | None  # the caller's own; a token has none
    created_at: int


class NewWorkspace(RequestBody):
    name: Name


class Member(ResponseBody):
    user: str
    name: str
    role: Role
    since: int


class NewRole(RequestBody):
    role: Role


class Token(ResponseBody):
    id: str
    label: str
    kind: TokenKind
    scopes: list[Scope]
    hint: str  # the last characters, to recognise it by
    user: str  # who made it, to whom its work is attributed
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None


class NewToken(RequestBody):
    """`scopes` are at most the caller's; null: all of the caller's but `instance`, which must be asked for.

    A token of kind `agent` is that agent: `label` is its name, of letters, digits, `_`, `.`, `@` and `-`. Without
    `scopes` it can `call` tools and nothing else; `manage` and `instance` it never has.

    At any time a token can do at most what its maker's role allows then."""

    label: Name
    kind: TokenKind = "user"
    scopes: list[Scope] | None = None
    expires_in_days: Annotated[int, Meta(ge=1, le=3650)] | None = None


class TokenCreated(ResponseBody):
    """`secret` is shown this once and kept nowhere."""

    token: Token
    secret: str


class SignInLink(ResponseBody):
    """Opens once, for a short time."""

    url: str
    expires_at: int


class NewSignInLink(RequestBody):
    """For oneself it takes a credential with all scopes of one's role; for another user the scope "instance".

    A token makes one only for who can do no more than the token, in no other workspace, and if it does not expire."""

    user: Id | None = None  # null: for the caller


class SignIn(RequestBody):
    code: Annotated[str, Meta(min_length=1, max_length=200)]


class SignInMail(RequestBody):
    email: Email


class SignInWays(ResponseBody):
    """`mail`: a known address can ask for a link by mail."""

    mail: bool


class AuditEntry(ResponseBody):
    """One change: who did what to what. Never holds a secret, a prompt or an argument."""

    id: str
    at: int
    actor_kind: str
    actor: str
    action: str
    target: str
    details: dict[str, str | int | bool | None]
    actor_name: str | None = None  # of a person


FolderState = Literal["trusted", "replaced", "gone"]


class NewTrust(RequestBody):
    """`folder` is a folder of the server's machine."""

    folder: Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\u0000]*$")]


class TrustView(ResponseBody):
    """`folder` is its real path. `replaced`: another folder is in its place, and counts for nothing; `gone`: none is."""

    id: str
    folder: str
    state: FolderState
    trusted_by: str
    created_at: int
    trusted_by_name: str | None = None  # of a person
