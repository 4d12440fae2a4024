"""Rights of a user at this moment: read anew for every request, so that a change bites at once."""

from dataclasses import dataclass

from legation.errors import Forbidden
from legation.store.database.transaction import Queries, Row, Transaction, only
from legation.wire.principal import ADMIN_SCOPES, ROLE_SCOPES, Level, Principal, Role, Scope

SQL = Queries("users")


@dataclass(frozen=True, slots=True)
class Standing:
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
    row = only((yield SQL.standing(user=user, workspace=workspace)))
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
