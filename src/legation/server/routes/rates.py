"""Rates of the dear or dangerous calls: counted before anything else is done, and kept."""

from __future__ import annotations

import hashlib
import ipaddress
import math
from typing import Final

from starlette.requests import Request

from legation.errors import RateLimited
from legation.server.http.routes import Call
from legation.store.counters import Limit, TakeResult

INSTANCE: Final = ""  # the buckets that belong to no workspace
LOOPBACK: Final = "loopback"  # one caller, whichever of its addresses it calls from

WRONG_SIGN_INS_OF_ADDRESS: Final = Limit(10, 60)
LINK_MAILS_OF_CALLER: Final = Limit(5, 600)
LINK_MAILS_TO_ADDRESS: Final = Limit(3, 900)
TOKENS: Final = Limit(60, 3600)
LINKS: Final = Limit(30, 600)
USERS: Final = Limit(120, 3600)
WORKSPACES: Final = Limit(60, 3600)
RUN_CHANGES: Final = Limit(600, 60)
REFUSALS: Final = Limit(
    10, 60
)  # that leave a row: whoever goes on beyond a limit must not fill the audit log


async def limit_caller(call: Call, name: str, limit: Limit, cost: int = 1) -> None:
    """Count a call: one bucket for each person in each workspace, whichever credential they use; an agent has its own."""
    # An agent is somebody else than its maker, and must not use up what is theirs.
    who = call.principal.id if call.principal.agent else call.principal.user or call.principal.id
    if cost > limit.capacity:
        raise RateLimited(f"cannot do {cost} at once; send at most {limit.capacity}", {"retryAfter": 1})
    _check(await call.services.buckets.take(call.principal.workspace, f"{name}:{who}", limit, cost))


async def count_wrong_sign_in(call: Call) -> None:
    """Count a wrong sign-in of an address."""
    # Only wrong ones: else anybody on the machine could keep its owner out. A code is too long to be guessed.
    name = f"sign-in:{address_of(call.request)}"
    _check(await call.services.buckets.take(INSTANCE, name, WRONG_SIGN_INS_OF_ADDRESS))


async def count_link_mail(call: Call, email: str) -> bool:
    """Count who asks for links by mail; whether that address may get one more. Who asks is told of their own limit alone: what an
    address has had would tell that it is known."""
    name = f"link-mail:{address_of(call.request)}"
    _check(await call.services.buckets.take(INSTANCE, name, LINK_MAILS_OF_CALLER))
    digest = hashlib.sha256(email.lower().encode()).hexdigest()[:24]  # no address is kept in a counter's name
    taken = await call.services.buckets.take(INSTANCE, f"link-mail-to:{digest}", LINK_MAILS_TO_ADDRESS)
    return taken.allowed


def address_of(request: Request) -> str:
    """Name the caller by its address."""
    # An IPv6 caller has a whole /64 to choose from, and whoever is on this machine all of 127/8: that is what counts.
    host = request.client.host if request.client else ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "unknown"  # a socket file
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return LOOPBACK
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False).network_address)
    return str(address)


def _check(taken: TakeResult) -> None:
    if not taken.allowed:
        seconds = math.ceil(taken.retry_after)
        raise RateLimited(f"cannot do this so often; try again in {seconds} s", {"retryAfter": seconds})
