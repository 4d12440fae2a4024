"""A connection to one server, named or found on this machine, which users hold, and the names that they call on it, each
declared once for sync and async."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, TypedDict, TypeVar, Unpack

import msgspec

from legation import settings
from legation.client import operations
from legation.client.decode import Frame
from legation.client.follow import Follow, FollowSource, ManyStreams, OneStream
from legation.client.method import C, Group, LateMethod, calls, follows, lists, reads_lines, saves
from legation.client.request import (
    DEFAULT_TIMEOUTS,
    PATIENCE,
    REPEATS,
    Outages,
    Query,
    Reconnects,
    ServerTarget,
    Spawn,
    Timeouts,
    target,
)
from legation.errors import StorageFailed, Unavailable
from legation.secret import Secret
from legation.wire.api.approvals import ApprovalChanged
from legation.wire.api.server import OWNER_LOCK, SERVER_FILE, ServerFile
from legation.wire.events import Event

if TYPE_CHECKING:
    from legation.client.async_http import AsyncCaller
    from legation.client.child import ServerChild
    from legation.client.http import Caller
    from legation.client.runs import RunsApi, TemplatesApi, opens_run, submit_run
    from legation.client.sessions import SessionsApi
    from legation.wire.api.inbox import InboxChanged


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


T = TypeVar("T")

STREAM: Final = "approvals"  # the changes of a workspace's approvals

INBOX: Final = "inbox"  # the changes of a workspace's inbox

_decode: Final = msgspec.json.Decoder(ApprovalChanged).decode


class NumberedChange(NamedTuple):
    """An approval as it is after something happened to it. Keep `seq` to go on from there."""

    seq: int
    at: int  # epoch milliseconds, by the server's clock
    approval: ApprovalChanged


class NumberedInboxChange(NamedTuple):
    """Something that changed in the inbox: read it again. Keep `seq` to go on from there."""

    seq: int
    at: int  # epoch milliseconds, by the server's clock
    change: InboxChanged


class StreamChanges(FollowSource[T]):
    """A source of changes, as `change` reads them from the events of a stream. What this version cannot read is passed over: a
    newer server may say more."""

    def __init__(self, stream: str, after: int, change: Callable[[Event], T | None]) -> None:
        self._stream = OneStream(stream, after)
        self._change = change
        self.path = self._stream.path

    def connect(self) -> tuple[Query, dict[str, str]]:
        return self._stream.connect()

    def read(self, frame: Frame) -> tuple[T, ...]:
        found = map(self._change, self._stream.read(frame))
        return tuple(change for change in found if change is not None)


def follow_approvals(after: int = 0, *, patience: float = PATIENCE) -> Follow[NumberedChange]:
    """Every change above the number `after`, then all to come, over as many connections as it takes.

    For what is pending and what then changes, without a gap: take the head of the stream `approvals`, list what is
    pending, and follow from that head."""
    return Follow(StreamChanges(STREAM, after, _change), Reconnects(patience))


def follow_inbox(after: int = 0, *, patience: float = PATIENCE) -> Follow[NumberedInboxChange]:
    """Every change of the inbox above the number `after`, then all to come. Begin with `inbox()`, follow from its `seq` on, and
    read it again when something changes."""
    return Follow(StreamChanges(INBOX, after, _inbox_change), Reconnects(patience))


def _change(event: Event) -> NumberedChange | None:
    if event.type != ApprovalChanged.event_type():
        return None
    try:
        return NumberedChange(event.seq, event.at, _decode(event.raw))
    except ValueError:
        return None


def _inbox_change(event: Event) -> NumberedInboxChange | None:
    from legation.wire.api.inbox import InboxChanged  # few follow it

    if event.type != InboxChanged.event_type():
        return None
    try:
        return NumberedInboxChange(event.seq, event.at, msgspec.json.decode(event.raw, type=InboxChanged))
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


class AsksApi(Group[C]):
    ask = calls(operations.ask)
    get = calls(operations.read_ask)
    use = calls(operations.use_ask)
    withdraw = calls(operations.withdraw_ask)


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


A = TypeVar("A", bound="Caller | AsyncCaller")


class How(TypedDict, total=False):
    """The options that every way to a server takes."""

    workspace: str | None  # None: the one the token belongs to
    certificate: str | None  # the only one to trust, in PEM; None: those that the system trusts
    timeouts: Timeouts
    repeats: int  # of a call that is safe to repeat, when the server cannot be reached or is busy
    outages: Outages | None  # told when what is followed waits for its server, and when that is back


class ServerConnection(Group[A]):
    """A connection, sync or async: where it leads, and the server that was started for it."""

    health = calls(operations.health)
    ready = calls(operations.ready)
    info = calls(operations.info)
    stop = calls(operations.stop)
    backup = saves(operations.backup)
    rotate_keys = calls(operations.rotate_keys)
    sizes = calls(operations.sizes)
    prune = reads_lines(operations.prune)
    me = calls(operations.me)
    sign_in_link = calls(operations.sign_in_link)
    audit = lists(operations.list_audit)
    call_tool = calls(operations.call_tool)
    decide = calls(operations.decide)
    inbox = calls(operations.read_inbox)
    recordings = calls(operations.list_recordings)
    look_at = calls(operations.look_at)
    follow_inbox = follows(follow_inbox)
    if TYPE_CHECKING:
        run = opens_run(submit_run)
    else:
        run = LateMethod("legation.client.runs", "RunsApi", "submit")

    def __init__(
        self,
        url: str,
        token: str | Secret | None = None,
        *,
        workspace: str | None = None,
        certificate: str | None = None,
        timeouts: Timeouts = DEFAULT_TIMEOUTS,
        repeats: int = REPEATS,
        outages: Outages | None = None,
    ) -> None:
        caller: A = self._caller_to(target(url, token, workspace, certificate), timeouts, repeats, outages)
        super().__init__(caller)
        self.agents: AgentsApi[A] = AgentsApi(caller)
        self.streams: StreamsApi[A] = StreamsApi(caller)
        self.approvals: ApprovalsApi[A] = ApprovalsApi(caller)
        self.asks: AsksApi[A] = AsksApi(caller)
        self.grants: GrantsApi[A] = GrantsApi(caller)
        self.traces: TracesApi[A] = TracesApi(caller)
        self.policy: PolicyApi[A] = PolicyApi(caller)
        self.trust: TrustApi[A] = TrustApi(caller)
        self.tokens: TokensApi[A] = TokensApi(caller)
        self.users: UsersApi[A] = UsersApi(caller)
        self.workspaces: WorkspacesApi[A] = WorkspacesApi(caller)
        self._child: ServerChild | None = None

    @cached_property
    def sessions(self) -> SessionsApi[A]:
        from legation.client.sessions import SessionsApi  # a third of the client, and most commands have none

        return SessionsApi(self.caller)

    @cached_property
    def runs(self) -> RunsApi[A]:
        from legation.client.runs import RunsApi  # as sessions

        return RunsApi(self.caller)

    @cached_property
    def templates(self) -> TemplatesApi[A]:
        from legation.client.runs import TemplatesApi

        return TemplatesApi(self.caller)

    @staticmethod
    def _caller_to(at: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None) -> A:
        """Make the caller; importing it is slow, and only now is it needed."""
        raise NotImplementedError

    @classmethod
    def connect(cls, url: str, token: str | Secret | None = None, **how: Unpack[How]) -> Self:
        """Connect to a server that runs, without a token to one that was started with `--no-token`. Makes no call: the first
        operation finds out whether it is there."""
        return cls(url, token, **how)

    @classmethod
    def find(cls, data_dir: Path | None = None, **how: Unpack[How]) -> Self:
        """Connect to the `legation up` of this machine, and after a restart to the next one: at another port, if need be."""
        if data_dir is None:
            data_dir = settings.load({}, os.environ).data_dir
        # Absolute, for whoever looks there again later.
        folder, own = data_dir.expanduser().absolute(), "certificate" in how
        found = find(folder)
        how.setdefault("certificate", found.certificate)
        made = cls(found.url, found.token, **how)

        def again() -> ServerTarget:
            found = find(folder)
            certificate = how.get("certificate") if own else found.certificate
            return target(found.url, found.token, how.get("workspace"), certificate)

        made.caller.located.again = again
        return made

    @classmethod
    def _to_own(cls, spawn: bool | Spawn, how: How) -> Self:
        """Make a connection to a server of one's own, which does not run yet; with `spawn=False` as `find`."""
        if spawn is False:
            return cls.find(**how)
        from legation.client.child import ServerChild

        child = ServerChild(Spawn() if spawn is True else spawn)
        made = cls(child.url, child.token, **how)
        made._child = child
        return made

    @property
    def url(self) -> str:
        return self.caller.located.now.base

    @property
    def token(self) -> Secret | None:
        """The token that it calls with: of a server of one's own, the one to give to another client of it."""
        return self.caller.located.now.token

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.url}>"


class Legation(ServerConnection["Caller"]):
    """Make one with `connect`, `find` or `start`; close it, or use it in a `with`."""

    @staticmethod
    def _caller_to(at: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None) -> Caller:
        from legation.client.http import Caller  # brings httpx2 with it

        return Caller(at, timeouts, repeats, outages)

    @classmethod
    def start(cls, spawn: bool | Spawn = True, **how: Unpack[How]) -> Self:
        """Start a server of one's own, healthy on return and stopped by `close`; with `spawn=False` as `find`."""
        made = cls._to_own(spawn, how)
        if made._child is not None:
            made._child.start()
        return made

    def close(self) -> None:
        self.caller.close()
        if self._child is not None:
            self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncLegation(ServerConnection["AsyncCaller"]):
    """Make one with `connect`, `find` or `start`; close it, or use it in an `async with`."""

    @staticmethod
    def _caller_to(
        at: ServerTarget, timeouts: Timeouts, repeats: int, outages: Outages | None
    ) -> AsyncCaller:
        from legation.client.async_http import AsyncCaller  # brings httpx2 and asyncio with it

        return AsyncCaller(at, timeouts, repeats, outages)

    @classmethod
    def start(cls, spawn: bool | Spawn = True, **how: Unpack[How]) -> Self:
        """Connect to a server of one's own; with `spawn=False` as `find`.

        It starts when the `async with` is entered, and is healthy then; leaving stops it.
        """
        return cls._to_own(spawn, how)

    async def close(self) -> None:
        await self.caller.close()
        if self._child is not None:
            await self.caller.work(self._child.stop)

    async def __aenter__(self) -> Self:
        child = self._child
        if child is not None:
            try:
                await self.caller.work(child.start)
            except BaseException:  # also when this task is cancelled: the thread then gives up by itself
                child.give_up()
                await self.caller.close()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


# The server of this machine, by the file that `legation up` leaves in its data folder.


def find(folder: Path) -> ServerFile:
    """The server that runs on a data folder now. Each has a token of its own: after a restart, look again."""
    path = folder / SERVER_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=ServerFile)
    except FileNotFoundError:
        raise Unavailable(
            f"cannot find a running Legation in {folder}: start one with `legation up`"
        ) from None
    except OSError as error:
        raise StorageFailed(
            f"cannot read {path}: {error.strerror}; run as the user who started it"
        ) from error
    except ValueError:  # not chained: the decoder's words may hold a piece of the token
        raise Unavailable(f"cannot read {path}: it is damaged; restart with `legation up`") from None
    owner = _owner(folder)
    if owner is None:
        raise Unavailable(
            f"cannot reach the Legation of {folder}: its process {found.pid} is gone; start it with `legation up`"
        )
    if owner not in ("", str(found.pid)):  # what is written there is of one that was killed
        raise Unavailable(f"cannot reach the Legation of {folder} yet: process {owner} starts; try again")
    return found


def _owner(folder: Path) -> str | None:
    """The pid of the server there, empty where that could not be written; None: none runs.

    A pid may have been given to somebody else; the lock that a server holds ends with it."""
    import fcntl

    try:
        fd = os.open(folder / OWNER_LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(fd, 32).decode(errors="replace").strip()
    finally:
        os.close(fd)
    return None
