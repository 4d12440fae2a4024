"""Asks of programs that act by themselves and wait for the answer: `/v1/asks`.

INV-1  To any other credential than the one that asked there is no ask.
INV-2  Whoever sends a request again changes nothing by it.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from msgspec import Meta

from legation.errors import AlreadyAnswered, Conflict, Forbidden, NotFound, RateLimited, Unavailable
from legation.gateway.tools import Unanswered, agent_of, refused
from legation.server.http.routes import Call, Header, RouteOptions, Routes, needs
from legation.server.routes.tools import IdempotencyKey, question_of, remote_question, while_connected
from legation.wire.api.approvals import AskBody, AskUse, AskView

routes = Routes(tag="asks")

LONGEST_LOOK: Final = 60  # seconds: below what proxies cut off
LookSeconds = Annotated[int, Meta(ge=0, le=LONGEST_LOOK)]
_NO_USE: Final = AskUse()
ASKS: Final[RouteOptions] = {"access": needs("call"), "errors": (NotFound, Conflict, Unavailable)}


@routes.post("/v1/asks", access=needs("call"), errors=(Conflict, RateLimited, Unavailable))
async def ask(
    call: Call,
    body: AskBody,
    idempotency_key: Annotated[IdempotencyKey | None, Header("Idempotency-Key")] = None,
) -> AskView:
    """Ask whether the caller may do something by itself: decided at once, or `pending`.

    `waiter` names whoever waits, such as `run:42`; it is alive for as long as it looks. Sent again with the same
    `Idempotency-Key` it is the same ask. One that is denied at once has no id."""
    agent = agent_of(call.principal, body.agent)
    # With a token it may be on another machine, whose paths this disk says nothing about.
    is_remote = call.principal.kind == "token"
    request = remote_question(call, body, agent) if is_remote else await question_of(call, body, agent)
    return await call.services.asks.ask(request, body.waiter, idempotency_key)


@routes.get("/v1/asks/{ask}", **ASKS)
async def read_ask(call: Call, ask: str, wait: LookSeconds = 0) -> AskView:
    """One ask; a pending one is waited for, up to `wait` seconds, on any server. It keeps its waiter alive."""
    return await while_connected(call, call.services.asks.look(call.principal, ask, wait))


@routes.post(
    "/v1/asks/{ask}/use",
    access=needs("call"),
    errors=(NotFound, Conflict, AlreadyAnswered, Forbidden, Unanswered, RateLimited, Unavailable),
)
async def use_ask(
    call: Call,
    ask: str,
    body: AskUse = _NO_USE,
    idempotency_key: Annotated[IdempotencyKey | None, Header("Idempotency-Key")] = None,
) -> AskView:
    """Use an approved ask, right before acting: once. Sent again with the same `Idempotency-Key` it is the same use.

    Who asked with `resolved` resolves again and says so here. 403, 408, 409, 429: it may not be done, as for a tool's
    call."""
    refusal = partial(refused, why=None)
    return await call.services.asks.use(call.principal, ask, idempotency_key, body.resolved, refusal)


@routes.delete("/v1/asks/{ask}", **ASKS)
async def withdraw_ask(call: Call, ask: str) -> None:
    """Take an ask back: a later answer is refused, and it cannot be used."""
    await call.services.asks.withdraw(call.principal, ask)
