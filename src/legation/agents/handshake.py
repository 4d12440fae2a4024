"""The first exchange with an agent: which version of ACP both speak, and what each side can do."""

from __future__ import annotations

from collections.abc import Mapping

import legation
from legation.agents.answers import READ_ERRORS, fit
from legation.errors import AgentError
from legation.wire.acp.capabilities import (
    ClientCapabilities,
    Implementation,
    InitializeRequest,
    InitializeResponse,
)
from legation.wire.acp.rpc import AgentMethod
from legation.wire.acp.shape import PROTOCOL_VERSION

CLIENT = Implementation(name="legation", version=legation.__version__, title="Legation")

# The newest first: it is offered, and the agent may answer with any other of them.
SUPPORTED_VERSIONS: tuple[int, ...] = (PROTOCOL_VERSION,)


def offer(capabilities: ClientCapabilities) -> InitializeRequest:
    return InitializeRequest(
        protocol_version=SUPPORTED_VERSIONS[0], client_capabilities=capabilities, client_info=CLIENT
    )


def read_hello(agent: str, announced: Mapping[str, object]) -> InitializeResponse:
    try:
        hello = fit(announced, InitializeResponse)
    except READ_ERRORS as error:
        raise AgentError(
            f"cannot understand the answer of {agent!r} to {AgentMethod.INITIALIZE}: {error}"
        ) from None
    if hello.protocol_version not in SUPPORTED_VERSIONS:
        spoken = ", ".join(map(str, SUPPORTED_VERSIONS))
        raise AgentError(
            f"cannot talk to {agent!r}: it speaks version {hello.protocol_version} of the protocol, not"
            f" {spoken}; use another version of the agent"
        )
    return hello
