"""Who may call a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from legation.errors import Forbidden
from legation.wire.principal import SCOPES, Principal, Scope

PEOPLE: Final = frozenset({"user", "process"})  # kinds of principals that act as the person behind them


@dataclass(frozen=True, slots=True)
class Access:
    """`open`: no credential is looked at. `scope` None: any valid credential will do.

    `person`: a session or the process, for what is about the caller's own sessions. A token acts for itself alone."""

    open: bool
    scope: Scope | None = None
    person: bool = False

    def check(self, principal: Principal) -> None:
        if self.person and principal.kind not in PEOPLE:
            raise Forbidden("cannot do this with a token, which has no session; sign in, or revoke the token")
        if self.scope is not None and self.scope not in principal.scopes:
            raise Forbidden(
                f'cannot do this without the scope "{self.scope}"; use a credential that has it',
                {"scope": self.scope},
            )


OPEN: Final = Access(open=True)
SIGNED_IN: Final = Access(open=False)
A_PERSON: Final = Access(open=False, person=True)


def needs(scope: Scope) -> Access:
    if scope not in SCOPES:
        raise TypeError(
            f"cannot declare a route that needs {scope!r}: choose from {', '.join(sorted(SCOPES))}"
        )
    return Access(open=False, scope=scope)
