"""The names users call, each declared once for the sync and the async client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from legation.client import operations
from legation.client.decode import Frame
from legation.client.follow import Follow, ManyStreams, OneStream
from legation.client.group import ByLine, C, Call, Followed, Group, Listed
from legation.client.request import PATIENCE, Query, Reconnects
from legation.client.sessions import Sessions
from legation.wire.event_types import ApprovalChanged
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


# The changes of a workspace's approvals, followed: the stream `approvals`, read as what it holds.

STREAM: Final = "approvals"

_decode: Final = msgspec.json.Decoder(ApprovalChanged).decode


class Change(NamedTuple):
    """What an approval is after something happened to it. Keep `seq` to go on from there."""

    seq: int
    at: int  # epoch milliseconds, by the server's clock
    approval: ApprovalChanged


class Changes:
    """A source of changes. What this version cannot read is passed over: a newer server may say more."""

    body: bytes | None = None
    over = False

    def __init__(self, after: int) -> None:
        self._stream = OneStream(STREAM, after)
        self.path = self._stream.path

    def connect(self) -> tuple[Query, dict[str, str]]:
        return self._stream.connect()

    def read(self, frame: Frame) -> tuple[Change, ...]:
        return tuple(change for event in self._stream.read(frame) if (change := _change(event)) is not None)

    def ends(self, frame: Frame) -> bool:
        return self._stream.ends(frame)


def follow_approvals(after: int = 0, *, patience: float = PATIENCE) -> Follow[Change]:
    """Every change above the number `after`, then all to come, over as many connections as it takes.

    For what is pending and what then changes, without a gap: take the head of the stream `approvals`, list what is
    pending, and follow from that head."""
    return Follow(Changes(after), Reconnects(patience))


def _change(event: Event) -> Change | None:
    if event.type != ApprovalChanged.event_type():
        return None
    try:
        return Change(event.seq, event.at, _decode(event.raw))
    except ValueError:
        return None


class Streams(Group[C]):
    list = Listed(operations.list_streams)
    events = Listed(operations.list_events)
    follow = Followed(follow)
    follow_many = Followed(follow_many)


class Agents(Group[C]):
    list = Call(operations.list_agents)
    install = Call(operations.install_agent)
    modes = Call(operations.agent_modes)
    models = Call(operations.agent_models)


class Approvals(Group[C]):
    list = Listed(operations.list_approvals)
    get = Call(operations.read_approval)
    approve = Call(operations.approve)
    deny = Call(operations.deny)
    escalate = Call(operations.escalate)
    claim = Call(operations.claim)
    answer_group = Call(operations.answer_group)
    follow = Followed(follow_approvals)


class Grants(Group[C]):
    list = Listed(operations.list_grants)
    give = Call(operations.give_grant)
    get = Call(operations.read_grant)
    revoke = Call(operations.revoke_grant)


class Traces(Group[C]):
    list = Listed(operations.list_traces)
    get = Call(operations.read_trace)
    verify = Call(operations.verify_traces)
    export = ByLine(operations.export_traces)


class Policy(Group[C]):
    info = Call(operations.policy_info)
    explain = Call(operations.explain)
    replay = Call(operations.replay)
    hits = Call(operations.rule_hits)


class Trust(Group[C]):
    list = Listed(operations.list_trusted)
    give = Call(operations.trust_folder)
    withdraw = Call(operations.untrust_folder)


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
    call_tool = Call(operations.call_tool)
    decide = Call(operations.decide)

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
