"""The policies in force: what they are, why they decide as they do, and what others would have decided."""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import structs

from legation.approvals.policy.rules import PolicySet, off_loop
from legation.approvals.policy.shell.lines import prepare
from legation.approvals.trace.entries import TraceFilter
from legation.errors import ConfigInvalid, Forbidden, InvalidParams, RateLimited, TimedOut
from legation.gateway.tools import agent_of
from legation.server.http.request import invalid
from legation.server.http.routes import Call, Routes, needs
from legation.server.routes.rates import limit_caller
from legation.server.routes.tools import question_of
from legation.server.routes.traces import Since, moment, sees_content
from legation.store.counters import Limit
from legation.wire.api.approvals import (
    DecideBody,
    Explained,
    ExplainStep,
    PolicyInfo,
    PolicyRules,
    Replay,
    ReplayBody,
    RuleHits,
)
from legation.wire.principal import AGENT_NAME_RULE, is_agent_name

EXPLANATIONS: Final = Limit(300, 60)  # each tells of every rule, for every part of a command
REPLAYS: Final = Limit(30, 60)  # each may decide a hundred thousand calls
# Everybody's time: a replay takes a processor, and another one waits for its end.
REPLAY_SECONDS: Final = 60.0

routes = Routes(tag="policy")


@routes.get("/v1/policy", access=needs("read"))
async def read_policy(call: Call) -> PolicyInfo:
    """The policies in force, in the order they are asked, and why the newest edit is not among them."""
    policies = call.services.policies
    return PolicyInfo(
        version=policies.current.version,
        source=policies.source,
        policies=[
            PolicyRules(
                name=policy.name,
                agent=policy.agent,
                place=policy.place,
                rules=[rule.id for rule in policy.rules],
            )
            for policy in policies.current.policies
        ],
        problem=policies.problem,
        folders=[*policies.current.folders],
    )


@routes.post("/v1/policy/explain", access=needs("read"), errors=(Forbidden, RateLimited))
async def explain_policy(call: Call, body: DecideBody) -> Explained:
    """What would happen to a call now, and why, rule by rule. Nothing is run, counted or recorded."""
    agent = _agent(call, body.agent)
    await limit_caller(call, "explain", EXPLANATIONS)
    question = await question_of(call, body, agent)
    considered = await call.services.door.preview(question)
    policies, facts = call.services.policies.current, await prepare(question.action, question.facts)
    steps = await off_loop(policies.explain, question.action, facts)
    return Explained(
        **structs.asdict(considered),
        steps=[ExplainStep(**structs.asdict(step)) for step in steps],
    )


@routes.post("/v1/policy/replay", access=needs("read"), errors=(Forbidden, RateLimited, TimedOut))
async def replay_policy(call: Call, body: ReplayBody) -> Replay:
    """What a changed policy would have decided on the recorded calls.

    Paths are taken as they are named: where links led on that day is not on record. Calls that a limit stopped,
    and those whose arguments were purged, are counted and not decided again."""
    if not sees_content(call):
        # The rules of the caller's text could ask about the hidden contents, one bit at a time.
        raise Forbidden("cannot replay with a credential that may not see contents; use a person's")
    await limit_caller(call, "replay", REPLAYS)
    services = call.services
    wanted = TraceFilter(agent=body.agent, tool=body.tool, since=moment(body.since, services.clock.now_ms()))
    if services.replaying.locked():  # those of several would take all threads: those that read policies, too
        raise RateLimited("cannot replay now: another replay is under way; try again when it is done")
    async with services.replaying:
        policies = await asyncio.to_thread(_given, body.policy)
        from legation.approvals.trace.replay import replay

        work = replay(
            services.database, services.sealer, call.principal.workspace, policies, wanted, body.limit
        )
        try:
            return await asyncio.wait_for(work, REPLAY_SECONDS)
        except TimeoutError:
            raise TimedOut(
                f"cannot replay that many calls in {REPLAY_SECONDS:g} s; give a lower `limit` or a later `since`"
            ) from None


@routes.get("/v1/policy/hits", access=needs("read"))
async def list_hits(call: Call, since: Since | None = None) -> list[RuleHits]:
    """How often each rule decided: every one in force, also those that never did, then those that are gone.

    `since` is a time (RFC 3339) or how long ago: `24h`."""
    from legation.approvals.trace.replay import hits

    services = call.services
    return await services.database.read(
        hits,
        call.principal.workspace,
        services.policies.current,
        moment(since, services.clock.now_ms()),
    )


def _agent(call: Call, named: str | None) -> str:
    # An agent asks for itself. Anybody else who may read may ask about any: policies are no secret to them.
    if call.principal.agent is not None:
        return agent_of(call.principal, named)
    if named is None or not is_agent_name(named):
        raise invalid("$.agent", f"the name of an agent ({AGENT_NAME_RULE})")
    return named


def _given(text: str) -> PolicySet:
    """Read a policy of the caller's. What is wrong with it is theirs to correct: all of it, each with its line."""
    from legation.approvals.policy.load import load_text

    try:
        return load_text(text)
    except ConfigInvalid as error:
        raise InvalidParams(error.message, error.data) from None
