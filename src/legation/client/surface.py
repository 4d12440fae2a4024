"""The names users call, each declared once for the sync and the async client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from legation.client import operations
from legation.client.decode import Frame
from legation.client.follow import Follow, FollowSource, ManyStreams, OneStream
from legation.client.group import C, Group, calls, follows, lists, reads_lines, saves
from legation.client.request import PATIENCE, Query, Reconnects
from legation.client.sessions import SessionsApi
from legation.wire.api.approvals import ApprovalChanged
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


class NumberedChange(NamedTuple):
    """An approval as it is after something happened to it. Keep `seq` to go on from there."""

    seq: int
    at: int  # epoch milliseconds, by the server's clock
    approval: ApprovalChanged


class ApprovalChanges(FollowSource[NumberedChange]):
    """A source of changes. What this version cannot read is passed over: a newer server may say more."""

    def __init__(self, after: int) -> None:
        self._stream = OneStream(STREAM, after)
        self.path = self._stream.path

    def connect(self) -> tuple[Query, dict[str, str]]:
        return self._stream.connect()

    def read(self, frame: Frame) -> tuple[NumberedChange, ...]:
        return tuple(change for event in self._stream.read(frame) if (change := _change(event)) is not None)


def follow_approvals(after: int = 0, *, patience: float = PATIENCE) -> Follow[NumberedChange]:
    """Every change above the number `after`, then all to come, over as many connections as it takes.

    For what is pending and what then changes, without a gap: take the head of the stream `approvals`, list what is
    pending, and follow from that head."""
    return Follow(ApprovalChanges(after), Reconnects(patience))


def _change(event: Event) -> NumberedChange | None:
    if event.type != ApprovalChanged.event_type():
        return None
    try:
        return NumberedChange(event.seq, event.at, _decode(event.raw))
    except ValueError:
        return None


class StreamsApi(Group[C]):
    list = lists(operations.list_streams)
    events = lists(operations.list_events)
    follow = follows(follow)
    follow_many = follows(follow_many)


class AgentsApi(Group[C]):
    list = calls(operations.list_agents)
    install = calls(operations.install_agent)
    modes = calls(operations.agent_modes)
    models = calls(operations.agent_models)


class ApprovalsApi(Group[C]):
    list = lists(operations.list_approvals)
    get = calls(operations.read_approval)
    approve = calls(operations.approve)
    deny = calls(operations.deny)
    escalate = calls(operations.escalate)
    claim = calls(operations.claim)
    answer_group = calls(operations.answer_group)
    follow = follows(follow_approvals)


class GrantsApi(Group[C]):
    list = lists(operations.list_grants)
    give = calls(operations.give_grant)
    get = calls(operations.read_grant)
    revoke = calls(operations.revoke_grant)


class TracesApi(Group[C]):
    list = lists(operations.list_traces)
    get = calls(operations.read_trace)
    verify = calls(operations.verify_traces)
    export = reads_lines(operations.export_traces)


class PolicyApi(Group[C]):
    info = calls(operations.policy_info)
    explain = calls(operations.explain)
    replay = calls(operations.replay)
    hits = calls(operations.rule_hits)


class TrustApi(Group[C]):
    list = lists(operations.list_trusted)
    give = calls(operations.trust_folder)
    withdraw = calls(operations.untrust_folder)


class TokensApi(Group[C]):
    list = lists(operations.list_tokens)
    create = calls(operations.create_token)
    revoke = calls(operations.revoke_token)


class UsersApi(Group[C]):
    list = lists(operations.list_users)
    get = calls(operations.read_user)
    create = calls(operations.create_user)
    change = calls(operations.change_user)


class WorkspacesApi(Group[C]):
    list = lists(operations.list_workspaces)
    get = calls(operations.read_workspace)
    create = calls(operations.create_workspace)
    members = lists(operations.list_members)
    set_role = calls(operations.set_role)
    remove = calls(operations.remove_member)


class Surface(Group[C]):
    health = calls(operations.health)
    ready = calls(operations.ready)
    info = calls(operations.info)
    stop = calls(operations.stop)
    backup = saves(operations.backup)
    rotate_keys = calls(operations.rotate_keys)
    me = calls(operations.me)
    sign_in_link = calls(operations.sign_in_link)
    audit = lists(operations.list_audit)
    call_tool = calls(operations.call_tool)
    decide = calls(operations.decide)

    def __init__(self, caller: C) -> None:
        super().__init__(caller)
        self.sessions: SessionsApi[C] = SessionsApi(caller)
        self.agents: AgentsApi[C] = AgentsApi(caller)
        self.streams: StreamsApi[C] = StreamsApi(caller)
        self.approvals: ApprovalsApi[C] = ApprovalsApi(caller)
        self.grants: GrantsApi[C] = GrantsApi(caller)
        self.traces: TracesApi[C] = TracesApi(caller)
        self.policy: PolicyApi[C] = PolicyApi(caller)
        self.trust: TrustApi[C] = TrustApi(caller)
        self.tokens: TokensApi[C] = TokensApi(caller)
        self.users: UsersApi[C] = UsersApi(caller)
        self.workspaces: WorkspacesApi[C] = WorkspacesApi(caller)
