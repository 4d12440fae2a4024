import pytest

from legation.errors import Forbidden, InvalidParams
from legation.gateway.tools import agent_of
from legation.wire.principal import Principal, Scope


def principal(*scopes: Scope, agent: str | None = None) -> Principal:
    return Principal(
        kind="token", id="tok_1", workspace="local", scopes=frozenset(scopes), level=0, agent=agent
    )


def test_an_agents_own_credential_says_which_agent() -> None:
    assert agent_of(principal("call", agent="claude"), None) == "claude"
    assert agent_of(principal("call", agent="claude"), "claude") == "claude"


@pytest.mark.parametrize("named", ["codex", "Claude", "claude ", ""])
def test_d18_an_agents_credential_asks_for_no_other(named: str) -> None:
    with pytest.raises(Forbidden, match="token of claude"):
        agent_of(principal("call", "operate", agent="claude"), named)


def test_any_other_credential_must_say_for_whom() -> None:
    assert agent_of(principal("call", "operate"), "claude") == "claude"
    with pytest.raises(InvalidParams, match="name it with `agent`"):
        agent_of(principal("call", "operate"), None)


def test_whoever_does_not_operate_asks_for_nobody() -> None:
    with pytest.raises(Forbidden, match="operate"):
        agent_of(principal("call"), "claude")


@pytest.mark.parametrize("named", ["", "*", "a b", "-a", "a\n", "claude*", "ä", "a" * 129])
def test_a_name_that_could_be_a_pattern_is_refused(named: str) -> None:
    with pytest.raises(InvalidParams, match="write letters"):
        agent_of(principal("call", "operate"), named)
