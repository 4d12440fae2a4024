"""Who may do what, written out: a change here is a change of what people were promised."""

from legation.wire.api.identity import TOKEN_LEVELS
from legation.wire.principal import ADMIN_SCOPES, ROLE_SCOPES, SCOPE_MEANINGS, SCOPES


def test_what_each_role_may_do() -> None:
    assert {
        "owner": {"read", "call", "operate", "approve", "manage"},
        "operator": {"read", "call", "operate"},
        "approver": {"read", "approve"},
        "viewer": {"read"},
    } == ROLE_SCOPES


def test_no_role_reaches_beyond_its_workspace() -> None:
    assert not any(ADMIN_SCOPES & scopes for scopes in ROLE_SCOPES.values())
    known = {"read", "call", "operate", "approve", "manage", "instance", "backup"}
    assert known == SCOPES == SCOPE_MEANINGS.keys()


def test_what_each_kind_of_token_decides_as() -> None:
    assert TOKEN_LEVELS == {"user": 2, "supervisor": 1, "agent": 0}
