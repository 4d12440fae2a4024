"""A child and all it started, found again wherever it went, killed and reaped.

A process belongs to the tree if it started no earlier than the child and any of these holds:

1. its environment carries the child's token (or a token that a Legation below it derived from that one);
2. it is in the child's process group or session;
3. it is our descendant and bears the child's mark: an unusual soft limit on POSIX message queues, which the kernel
   hands down through fork, exec, `setsid` and `env -i`, and shows even for zombies;
4. it was seen as a descendant of the child while that lived;
5. its parent belongs.

Legation is a subreaper, so that a daemon whose parents have ended becomes our child: it stays our descendant, and its
exit code is ours to take. Exit codes are only taken from processes of the tree: the embedding program's own children
are never touched. A tree that is registered as detached is spared, unless it is the one to be killed.

Only a jail (a pid namespace) catches what a hostile program can do: leave the session, change its environment *and*
its limits, and let its parents end before it is ever seen (the first moments before the mark is set are enough);
become another user; ask a service outside (cron, systemd, a container daemon) to start something; or fork faster
than it is killed. Where the system has no subreaper or refuses
to set limits, rule 3 is missing, and a daemon that cleared its environment needs no hostility to get away.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

from legation.settings import CHILD_VARIABLE

# What Linux says about processes, read from /proc, and the few calls Python has no name for.

_PR_SET_CHILD_SUBREAPER: Final = 36
_PROC: Final = Path("/proc")


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    session: int
    started: int  # clock ticks since boot: with the pid it names one process until the machine restarts
    dead: bool  # a zombie: it has ended and nobody has taken its exit code yet

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def age(self) -> float:
        """Seconds since it began."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self.started / os.sysconf("SC_CLK_TCK")


def process(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  half the cost of Path.read_bytes
            # The name in parentheses may hold anything, parentheses and spaces too.
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    state, parent, group, session = fields[:4]
    return Process(pid, int(parent), int(group), int(session), int(fields[19]), state in b"ZX")


def processes() -> dict[int, Process]:
    found = (process(int(name)) for name in os.listdir(_PROC) if name.isdigit())  # noqa: PTH208
    return {each.pid: each for each in found if each is not None}


def environment_value(pid: int, name: str) -> str | None:
    """A variable as the process got it at its start; None if it has none, has ended or is another user's."""
    try:
        environ = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    _, found, rest = (b"\0" + environ).partition(b"\0" + name.encode() + b"=")
    return rest.partition(b"\0")[0].decode(errors="replace") if found else None


def own_children() -> list[int]:
    """Our direct children, adopted ones too."""
    return children(os.getpid())


def children(pid: int) -> list[int]:
    """Direct children, without a look at every process; empty where the kernel does not list them."""
    pids: list[int] = []
    for thread in _threads(pid):
        try:
            pids += map(int, (thread / "children").read_bytes().split())
        except OSError:
            continue
    return pids


def _threads(pid: int) -> list[Path]:
    try:
        return list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return []


def boot_id() -> str:
    """Names this run of the kernel: start times mean nothing beyond it."""
    return _line(_PROC / "sys/kernel/random/boot_id")


def pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    except OSError:
        return ""


def become_subreaper() -> bool:
    """Orphans below us become our children rather than init's; False where the system refuses."""
    import ctypes

    try:
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def kill(target: Process) -> None:
    send(target, signal.SIGKILL)


def send(target: Process, number: signal.Signals) -> None:
    """Signal that very process: held by a descriptor while its start time is compared, so never a later namesake."""
    try:
        descriptor = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return
    except OSError:
        _send_by_pid(target, number)
        return
    try:
        now = process(target.pid)
        if now is not None and now.started == target.started:
            signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, PermissionError):
        return
    finally:
        os.close(descriptor)


def signal_all(pids: Iterable[int], number: signal.Signals, rounds: int) -> None:
    """Signal these and all below them. To stop them takes some rounds: one that was not stopped yet may have started
    another meanwhile. Blocks, for milliseconds."""
    told: set[Identity] = set()
    for _ in range(rounds):
        look = Look()
        everybody = look.processes
        below = {each for pid in pids for each in (pid, *_below(pid, look.children))}
        new = [everybody[pid] for pid in below if pid in everybody and everybody[pid].identity not in told]
        if not new:
            return
        for each in new:
            send(each, number)
            told.add(each.identity)


def _send_by_pid(target: Process, number: signal.Signals) -> None:
    now = process(target.pid)
    if now is None or now.started != target.started:
        return
    try:
        os.kill(target.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _line(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


TOKEN_NAME: Final = CHILD_VARIABLE  # it names a process and opens nothing
# The system's time to let a killed process go, before a sweep that runs without an event loop looks again.
SWEEP_PAUSE: Final = 0.005
# Our time: a sweep that has not ended by then leaves processes that cannot be killed.
SWEEP_LIMIT: Final = 3.0
# Looks at our own children before each look at all processes; one takes some dozens of microseconds.
_STRIKES: Final = 20
_MARKS: Final = 1 << 40  # where the message queue limit is "unlimited"

_drawn: set[int | None] = set()  # the marks of the children that this process has now

Identity = tuple[int, int]


def nothing_spared() -> frozenset[Identity]:
    return frozenset()


def new_token(*, detached: bool = False) -> str:
    """Derived from our own token, so that whoever sweeps us finds our children too; a detached one is on its own."""
    own = "" if detached else os.environ.get(TOKEN_NAME, "")
    return f"{own}/{secrets.token_hex(16)}" if own else secrets.token_hex(16)


class Look:
    """One look at all processes, for every tree that wants one: what costs a file or a call each is asked for once, and
    whoever could belong to a tree is looked up, not looked for. A hundred trees take little more than one."""

    def __init__(self) -> None:
        self._by_token: dict[str, list[int]] = {}
        self._spared: dict[Callable[[], Iterable[Identity]], frozenset[Identity]] = {}
        self._below_spared: dict[Callable[[], Iterable[Identity]], frozenset[int]] = {}

    @cached_property
    def processes(self) -> dict[int, Process]:
        return processes()

    @cached_property
    def children(self) -> dict[int, list[int]]:
        return _by(lambda each: each.parent, self.processes.values())

    @cached_property
    def groups(self) -> dict[int, list[int]]:
        return _by(lambda each: each.group, self.processes.values())

    @cached_property
    def sessions(self) -> dict[int, list[int]]:
        return _by(lambda each: each.session, self.processes.values())

    @cached_property
    def marked(self) -> dict[int | None, list[int]]:
        """Our descendants, by their marks."""
        found: dict[int | None, list[int]] = {}
        for pid in _below(os.getpid(), self.children):
            found.setdefault(mark_of(pid), []).append(pid)
        return found

    @cached_property
    def _unread(self) -> list[Process]:
        """Those whose tokens nobody wanted to know yet, the youngest last."""
        return sorted(self.processes.values(), key=lambda each: each.started)

    def bearing(self, token: str, since: int) -> list[int]:
        """Find those that carry the token, or one that was derived from it; older ones are not looked at for it."""
        while self._unread and self._unread[-1].started >= since:
            self._note_token(self._unread.pop().pid)
        return self._by_token.get(token, [])

    def _note_token(self, pid: int) -> None:
        token = environment_value(pid, TOKEN_NAME)
        while token:
            self._by_token.setdefault(token, []).append(pid)
            token = token.rpartition("/")[0]

    def spared(self, ask: Callable[[], Iterable[Identity]]) -> frozenset[Identity]:
        if ask not in self._spared:
            self._spared[ask] = frozenset(ask())
        return self._spared[ask]

    def below_spared(self, ask: Callable[[], Iterable[Identity]], but: int) -> frozenset[int]:
        """Those that are spared, and all below them; `but` is to be killed."""
        spared = {pid for pid, started in self.spared(ask) if self._runs(pid, started)}
        if but in spared:
            return self._with_all_below(spared - {but})
        if ask not in self._below_spared:
            self._below_spared[ask] = self._with_all_below(spared)
        return self._below_spared[ask]

    def _runs(self, pid: int, started: int) -> bool:
        return (found := self.processes.get(pid)) is not None and found.started == started

    def _with_all_below(self, pids: Iterable[int]) -> frozenset[int]:
        return frozenset({each for pid in pids for each in (pid, *_below(pid, self.children))})


class ProcessTree:
    def __init__(
        self,
        pid: int,
        started: int,
        token: str,
        *,
        mark: int | None = None,
        whole: bool = False,
        spared: Callable[[], Iterable[Identity]] = nothing_spared,
    ) -> None:
        self.pid = pid
        self.started = started
        self._token = token
        self._mark = mark
        self._whole = whole  # the child too, because nobody waits for its exit code
        self._spared = spared
        self._known: frozenset[Identity] = frozenset()

    def observe(self, look: Look | None = None) -> None:
        """Remember who belongs now: after the child's death some can no longer be recognised."""
        self._known |= {each.identity for each in self.members(look or Look())}

    def members(self, look: Look) -> list[Process]:
        """All of the tree, dead ones too; the child itself only if the tree is to be killed whole."""
        everybody = look.processes
        excluded = look.below_spared(self._spared, self.pid) | {os.getpid()}
        root = everybody.get(self.pid)
        rooted = root is not None and root.started == self.started
        waiting = [
            pid for pid, started in self._known if pid in everybody and everybody[pid].started == started
        ]
        waiting += look.bearing(self._token, self.started)
        if self._mark is not None:
            waiting += look.marked.get(self._mark, ())
        if rooted:
            for belonging in (look.children, look.groups, look.sessions):
                waiting += belonging.get(self.pid, ())
        found: set[int] = set()
        while waiting:
            pid = waiting.pop()
            if pid not in found and pid not in excluded and everybody[pid].started >= self.started:
                found.add(pid)
                waiting += look.children.get(pid, ())
        if not self._whole:
            found.discard(self.pid)
        elif rooted:
            found.add(self.pid)
        return [everybody[pid] for pid in found]

    def kill(self, look: Look | None = None) -> list[Process]:
        """One round: kill and reap what there is now, and return it; empty when nothing was left to do. Whoever brings
        the look along has struck before."""
        mine = os.getpid()
        if look is None:
            look = Look()
            strike([self], look)
        members = self.members(look)
        self._known |= {each.identity for each in members}
        for each in members:
            if not each.dead:
                kill(each)
        for each in members:
            # Looked at again: the look may be old by now, and another child of ours have the number.
            if (
                each.parent == mine
                and (now := process(each.pid)) is not None
                and now.identity == each.identity
            ):
                _reap(each.pid)
        return [each for each in members if not each.dead or each.parent == mine]

    @property
    def mark(self) -> int | None:
        return self._mark

    @property
    def spared(self) -> Callable[[], Iterable[Identity]]:
        return self._spared

    def sweep(self, limit: float = SWEEP_LIMIT) -> list[Process]:
        """Rounds until nothing is left; blocks. Returns what could not be killed."""
        deadline = time.monotonic() + limit
        while (remaining := self.kill()) and time.monotonic() < deadline:
            time.sleep(SWEEP_PAUSE)
        return remaining

    def reap(self) -> None:
        """Take the exit code of the child itself, where it is ours to take and has ended."""
        found = process(self.pid)
        if found is not None and found.dead and found.started == self.started and found.parent == os.getpid():
            _reap(self.pid)

    def reap_adopted(self) -> None:
        """Take the exit codes of daemons that ended by themselves, lest they pile up while the child lives on."""
        if self._mark is None:
            return
        for pid in own_children():
            if pid != self.pid and mark_of(pid) == self._mark:
                found = process(pid)
                if found is not None and found.dead:
                    _reap(pid)


def strike(trees: Iterable[ProcessTree], look: Look) -> None:
    """Kill our own children that bear a mark of these trees, several times over and before the look at all processes: a
    process that forks and ends, again and again, is gone before that one is over. Orphans become our children, and
    those are seen at once."""
    marked = {tree.mark: tree for tree in trees if tree.mark is not None}
    if not marked:
        return
    for _ in range(_STRIKES):
        for pid in own_children():
            # The mark first: a look at it costs a fraction of one at the process, and most are others' children.
            mark = mark_of(pid)
            tree = None if mark is None else marked.get(mark)
            if tree is None or pid == tree.pid:
                continue
            found = process(pid)
            if found is not None and not found.dead and found.identity not in look.spared(tree.spared):
                kill(found)


def set_mark(pid: int) -> int | None:
    """Give the process a message queue limit that no other child of ours has; None where that is not allowed."""
    import resource

    own, _ = resource.getrlimit(resource.RLIMIT_MSGQUEUE)
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_MSGQUEUE)
        mark = _draw(_MARKS if hard == resource.RLIM_INFINITY else hard, {own, *_drawn})
        _put_mark(pid, mark, hard)
    except (OSError, ValueError):
        return None
    _drawn.add(mark)
    return mark


def _put_mark(pid: int, mark: int, hard: int) -> None:
    """Mark the process first: what it starts from then on inherits it, and what it had started is all there is."""
    import resource

    resource.prlimit(pid, resource.RLIMIT_MSGQUEUE, (mark, hard))
    for child in children(pid):
        with contextlib.suppress(OSError):  # it has ended
            _put_mark(child, mark, hard)


def release_mark(mark: int | None) -> None:
    _drawn.discard(mark)


def _draw(below: int, taken: set[int | None]) -> int:
    if below <= len(taken):
        raise ValueError("no mark is left")
    while (mark := secrets.randbelow(below)) in taken:
        pass
    return mark


def mark_of(pid: int) -> int | None:
    import resource

    try:
        return resource.prlimit(pid, resource.RLIMIT_MSGQUEUE)[0]
    except OSError:
        return None


def _by(key: Callable[[Process], int], all_of_them: Iterable[Process]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for each in all_of_them:
        found.setdefault(key(each), []).append(each.pid)
    return found


def _below(pid: int, children: Mapping[int, list[int]]) -> set[int]:
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        new = [child for child in children.get(waiting.pop(), ()) if child not in found]
        found.update(new)
        waiting += new
    return found


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
