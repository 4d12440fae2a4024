"""Who may call a route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from legation.errors import Forbidden
from legation.wire.principal import SCOPES, Principal, Scope


@dataclass(frozen=True, slots=True)
class Access:
    """`open`: no credential is looked at. `scope` None: any valid credential will do."""

    open: bool
    scope: Scope | None = None

    def check(self, principal: Principal) -> None:
        if self.scope is not None and self.scope not in principal.scopes:
            raise Forbidden(
                f'cannot do this without the scope "{self.scope}"; use a credential that has it',
                {"scope": self.scope},
            )


OPEN: Final = Access(open=True)
SIGNED_IN: Final = Access(open=False)


def needs(scope: Scope) -> Access:
    if scope not in SCOPES:
        raise TypeError(
            f"cannot declare a route that needs {scope!r}: choose from {', '.join(sorted(SCOPES))}"
        )
    return Access(open=False, scope=scope)
