"""The names users call, each declared once for the sync and the async client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from legation.client import agent_operations as agents
from legation.client import approval_operations as approvals
from legation.client import door_operations as door
from legation.client import operations
from legation.client import trust_operations as trust
from legation.client.approval_changes import follow_approvals
from legation.client.follow import Follow
from legation.client.group import ByLine, C, Call, Followed, Group, Listed
from legation.client.repeat import PATIENCE, Reconnects
from legation.client.session import Sessions
from legation.client.source import ManyStreams, OneStream
from legation.wire.events import Event


def follow(
    stream: str,
    after: int = 0,
    *,
    generation: int | Literal["all"] | None = None,
    patience: float = PATIENCE,
) -> Follow[Event]:
    """Every event above `after`: all that happened, then all that happens, until the stream is closed.

    Connections come and go without a gap or a double. `patience`: seconds without a sign of the server. `generation`:
    as of `events`; an earlier one ends.
    """
    return Follow(OneStream(stream, after, generation), Reconnects(patience))


def follow_many(after: Mapping[str, int], *, patience: float = PATIENCE) -> Follow[tuple[str, Event]]:
    """Several streams over one connection: pairs of a stream's name and an event of it."""
    return Follow(ManyStreams(after), Reconnects(patience))


class Streams(Group[C]):
    list = Listed(operations.list_streams)
    events = Listed(operations.list_events)
    follow = Followed(follow)
    follow_many = Followed(follow_many)


class Agents(Group[C]):
    list = Call(agents.list_agents)
    install = Call(agents.install_agent)
    modes = Call(agents.agent_modes)
    models = Call(agents.agent_models)


class Approvals(Group[C]):
    list = Listed(approvals.list_approvals)
    get = Call(approvals.read_approval)
    approve = Call(approvals.approve)
    deny = Call(approvals.deny)
    escalate = Call(approvals.escalate)
    claim = Call(approvals.claim)
    answer_group = Call(approvals.answer_group)
    follow = Followed(follow_approvals)


class Grants(Group[C]):
    list = Listed(approvals.list_grants)
    give = Call(approvals.give_grant)
    get = Call(approvals.read_grant)
    revoke = Call(approvals.revoke_grant)


class Traces(Group[C]):
    list = Listed(door.list_traces)
    get = Call(door.read_trace)
    verify = Call(door.verify_traces)
    export = ByLine(door.export_traces)


class Policy(Group[C]):
    info = Call(door.policy_info)
    explain = Call(door.explain)
    replay = Call(door.replay)
    hits = Call(door.rule_hits)


class Trust(Group[C]):
    list = Listed(trust.list_trusted)
    give = Call(trust.trust_folder)
    withdraw = Call(trust.untrust_folder)


class Tokens(Group[C]):
    list = Listed(operations.list_tokens)
    create = Call(operations.create_token)
    revoke = Call(operations.revoke_token)


class Users(Group[C]):
    list = Listed(operations.list_users)
    get = Call(operations.read_user)
    create = Call(operations.create_user)
    change = Call(operations.change_user)


class Workspaces(Group[C]):
    list = Listed(operations.list_workspaces)
    get = Call(operations.read_workspace)
    create = Call(operations.create_workspace)
    members = Listed(operations.list_members)
    set_role = Call(operations.set_role)
    remove = Call(operations.remove_member)


class Surface(Group[C]):
    health = Call(operations.health)
    ready = Call(operations.ready)
    info = Call(operations.info)
    stop = Call(operations.stop)
    rotate_keys = Call(operations.rotate_keys)
    me = Call(operations.me)
    sign_in_link = Call(operations.sign_in_link)
    audit = Listed(operations.list_audit)
    call_tool = Call(door.call_tool)
    decide = Call(door.decide)

    def __init__(self, caller: C) -> None:
        super().__init__(caller)
        self.sessions: Sessions[C] = Sessions(caller)
        self.agents: Agents[C] = Agents(caller)
        self.streams: Streams[C] = Streams(caller)
        self.approvals: Approvals[C] = Approvals(caller)
        self.grants: Grants[C] = Grants(caller)
        self.traces: Traces[C] = Traces(caller)
        self.policy: Policy[C] = Policy(caller)
        self.trust: Trust[C] = Trust(caller)
        self.tokens: Tokens[C] = Tokens(caller)
        self.users: Users[C] = Users(caller)
        self.workspaces: Workspaces[C] = Workspaces(caller)
