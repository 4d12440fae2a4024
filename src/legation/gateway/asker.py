"""For which agent a call is asked: the credential says so.

INV-G1  An agent's own credential asks for that agent and for no other. Any other credential says for whom it asks.
"""

from __future__ import annotations

from legation.errors import Forbidden, InvalidParams
from legation.wire.principal import AGENT_NAME_RULE, Principal, is_agent_name


def agent_of(principal: Principal, named: str | None) -> str:
    """`named`: what the body says."""
    if principal.agent is not None:
        if named not in (None, principal.agent):
            raise Forbidden(
                f"cannot ask for another agent with the token of {principal.agent}; leave `agent` out, or use a token "
                "of that agent"
            )
        return principal.agent
    if "operate" not in principal.scopes:
        raise Forbidden(
            'cannot ask for an agent without the scope "operate"; use a token of the agent itself',
            {"scope": "operate"},
        )
    if named is None:
        raise InvalidParams(
            "cannot tell for which agent this is asked: the credential is no agent's; name it with `agent`, or use a "
            "token of kind `agent`",
            {"path": "$.agent", "expected": "the name of an agent"},
        )
    if not is_agent_name(named):
        raise InvalidParams(
            f"cannot ask for an agent of this name; write {AGENT_NAME_RULE}",
            {"path": "$.agent", "expected": AGENT_NAME_RULE},
        )
    return named
