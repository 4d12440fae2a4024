"""What a policy saw of a call besides its arguments, kept so that another policy can be asked about it later.

It is the driver's reading of the call (paths, command, addresses) and where the agent worked. Where a path led on
the disk is not in it: that is gone with the moment.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from legation.approvals.policy.facts import Facts, as_named
from legation.wire.action import Action, Sort


class _Context(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member that a later release adds is ignored by an older one."""

    paths: tuple[str, ...] = ()
    command: str | None = None
    urls: tuple[str, ...] = ()
    other_commands: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    declared: Mapping[str, Sort] = {}
    workspace: str | None = None
    cwd: str | None = None
    home: str | None = None


def context_of(action: Action, facts: Facts) -> dict[str, object] | None:
    """A JSON value for the trace; None where there is nothing to keep."""
    context = _Context(
        paths=action.paths,
        command=action.command,
        urls=action.urls,
        other_commands=action.other_commands,
        unclear=action.unclear,
        declared=facts.declared,
        workspace=facts.workspace,
        cwd=facts.cwd,
        home=facts.home,
    )
    kept: dict[str, object] = msgspec.to_builtins(context)
    return kept or None


def action_of(
    agent: str,
    tool: str,
    kind: str | None,
    params: Mapping[str, object],
    context: Mapping[str, object] | None,
) -> tuple[Action, Facts]:
    """The call as it was. Its paths are taken as they are named: today's links say nothing about that day's."""
    seen = msgspec.convert(context or {}, _Context)
    action = Action(
        agent=agent,
        tool=tool,
        kind=kind or "other",
        params=params,
        paths=seen.paths,
        command=seen.command,
        urls=seen.urls,
        other_commands=seen.other_commands,
        unclear=seen.unclear,
    )
    facts = Facts(seen.workspace, seen.cwd, seen.home, as_named, seen.declared)
    return action, facts
