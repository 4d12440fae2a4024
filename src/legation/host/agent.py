"""One agent of a host, over all the processes it takes: started, watched, restarted, disposed of; and where it lives: a
HOME of its own, kept, and a TMPDIR, not kept."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from signal import SIGKILL, SIGTERM
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from msgspec.structs import replace

from legation.agents.driver import Driver
from legation.agents.drivers import open_driver
from legation.agents.native import DriverContext
from legation.clock import new_id
from legation.errors import AgentExited, LegationError, StorageFailed
from legation.host.options import AgentDefinition
from legation.host.router import MessageRouter
from legation.host.session import Session
from legation.proc import Command, Exit, Pipes, child_environment, reap
from legation.proc.registry import listed
from legation.store.datafolder import make_folder
from legation.wire.acp.methods import FileSystemCapabilities
from legation.wire.event_types import AgentExited as AgentExitedEvent
from legation.wire.event_types import AgentStatus, AgentUpdated, Diagnostic, DiagnosticCode, ExitStatus

if TYPE_CHECKING:
    from legation.host.host import AcpHost

LEFT_AFTER: Final = 600.0  # seconds: a sign-in under way has a temporary folder, and no child that is on file


@dataclass(frozen=True, slots=True)
class AgentHomes:
    """`data` is the user's data folder, or a temporary one that goes with the host."""

    data: Path
    temporary: bool
    workspace: str = "local"

    @classmethod
    def open(cls, data_dir: Path | None, workspace: str = "local") -> AgentHomes:
        """Open the homes, and end what a killed host left in the same folder. Blocks."""
        if data_dir is None:
            return cls(Path(tempfile.mkdtemp(prefix="legation-host-")), True, workspace)
        homes = cls(data_dir, False, workspace)
        reap(homes.children)
        homes._sweep()
        return homes

    def _sweep(self) -> None:
        """Temporary folders that a killed host left, with what was secret in them. Whoever else lives here keeps his."""
        if any(each.owner_lives or each.state == "unowned" for each in listed(self.children)):
            return
        young = time.time() - LEFT_AFTER
        for folder in (self.data / "agents" / self.workspace).glob("*/tmp/*"):
            with suppress(OSError):
                if folder.lstat().st_mtime < young:
                    rmtree(folder, ignore_errors=True)

    @property
    def children(self) -> Path:
        return self.data / "children"

    def home(self, agent: str) -> Path:
        return self.data / "agents" / self.workspace / quote(agent, safe="") / "home"

    def command(self, definition: AgentDefinition) -> tuple[Command, Path]:
        """Make the folders; return how to start the agent, and the temporary folder to remove when it has ended."""
        own = self.home(definition.name)
        home, tmp = definition.home or own, own.parent / "tmp" / new_id("tmp")
        try:
            for folder in (tmp,) if definition.home else (own, tmp):
                make_folder(folder)
        except OSError as error:
            raise StorageFailed(
                f"cannot write to {self.data}: {error.strerror}; choose another data folder"
            ) from error
        command = Command(
            argv=(definition.command, *definition.args),
            cwd=definition.cwd or Path.cwd(),
            env=child_environment(definition.env, home=home, tmp=tmp),
            name=definition.name,
        )
        return command, tmp

    def close(self) -> None:
        if self.temporary:
            rmtree(self.data, ignore_errors=True)


Reason = Literal["spawn-failed", "initialize-failed", "crashed", "ended", "stopped", "disposed"]

STDERR_AT_ONCE = 20  # diagnostics of what an agent says there; then one a second, with how many were left out
STDERR_SHOWN = 2000  # bytes of a block of stderr that a diagnostic holds


class Agent:
    """States: starting -> ready -> exited; from there restarting -> ready again, or exited for good;
    disposed at any time, and then for ever."""

    def __init__(self, agent_id: str, definition: AgentDefinition, core: AcpHost, *, terminals: bool) -> None:
        """Offer it, with `terminals`, also those of a handler that is not offered to every agent."""
        self.id = agent_id
        self.definition = definition
        self.live: Driver | None = None
        self.router = MessageRouter(agent_id, core)
        self._core = core
        self._grace = core.options.kill_timeout_ms / 1000
        self._offered = core.reverse.capabilities
        if terminals and core.reverse.terminal is not None:
            self._offered = replace(self._offered, terminal=True)
        if not definition.fs:
            self._offered = replace(self._offered, fs=FileSystemCapabilities())
        self._status: AgentStatus = "starting"
        self._reason: Reason | None = None
        self._exit: Exit | None = None
        self._restarts = 0
        self._announced: Mapping[str, object] = {}
        # Its disposal has begun, or is about to: nobody takes anything up with it, but until its process has ended, its
        # sessions are still with it.
        self.leaving = False
        self._wanted_again = False  # stopped by us in order to be restarted
        self._tmp: Path | None = None
        self._starting: asyncio.Task[None] | None = None
        self._pause: asyncio.Future[None] | None = None
        self._life: asyncio.Task[None] | None = None
        self._over = asyncio.Event()  # no process of it runs, and none follows
        self._moved = asyncio.Event()  # to another status

    def snapshot(self) -> AgentUpdated:
        methods = self._announced.get("authMethods")
        capabilities = self._announced.get("agentCapabilities")
        return AgentUpdated(
            agent_id=self.id,
            status=self._status,
            restart_count=self._restarts,
            reason=self._reason,
            exit=ExitStatus(code=self._exit.code, signal=self._exit.signal) if self._exit else None,
            capabilities=capabilities if isinstance(capabilities, dict) else None,
            auth_methods=tuple(methods) if isinstance(methods, list | tuple) else None,
        )

    def how_it_ended(self) -> str:
        return f"{self._reason}: {self._exit}" if self._exit else f"{self._reason}"

    def running(self) -> Driver:
        if self._status != "ready" or self.live is None:
            raise AgentExited(f"cannot use {self.id}: it is {self._status}; wait for it or start another")
        return self.live

    def serve(self, session: Session, live: Driver) -> None:
        """The process `live` has taken the session. It may have ended since, when nobody knew of that yet."""
        self.router.open(session)
        if self.live is not live:
            session.disconnect(self.how_it_ended())

    async def start(self) -> None:
        """The first start is not tried again: whoever asked for it learns why it failed."""
        self._move("starting")
        self._starting = asyncio.create_task(self._launch())
        try:
            await self._starting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.leaving and task is not None and not task.cancelling():  # else whoever asked has gone
                raise AgentExited(f"cannot start {self.id}: it was disposed of; start another") from None
            raise
        finally:
            if self.live is not None:
                self._life = asyncio.create_task(self._live(), name=f"legation-{self.id}")
                self._life.add_done_callback(lambda _: self._over.set())
            else:
                self._over.set()

    async def until_ready(self) -> AgentUpdated:
        """Wait until it is ready, or will not be: one that was stopped for not obeying is followed by another."""
        while self._status in ("starting", "restarting") or (
            self._status == "exited" and self._reason == "stopped"
        ):
            await self._moved.wait()
        return self.snapshot()

    async def until_ended(self) -> AgentUpdated:
        await self._over.wait()
        if self.leaving:  # in the pause before a restart, perhaps, and that is told next
            await self.dispose()
        return self.snapshot()

    async def restart(self, why: str) -> None:
        """Stop the process, which no longer obeys; a new one takes its place, whatever the restart policy."""
        if self.leaving or self.live is None:
            return
        self._wanted_again = True
        self._diagnose(DiagnosticCode.AGENT_KILL, why)
        await self.live.stop(self._grace)

    async def dispose(self) -> None:
        """Idempotent. Everything of it is gone afterwards."""
        self.leaving = True
        if self._pause is not None:
            self._pause.cancel()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        if self.live is not None:
            found = await self.live.stop(self._grace)
            if found.signal in (SIGTERM, SIGKILL):
                what = f"it did not end within {self._grace:g} s and was killed: {found}"
                self._diagnose(DiagnosticCode.AGENT_KILL, what)
        if self._life is not None:
            await asyncio.wait({self._life})
        if self._status != "disposed":
            self._move("disposed", "disposed")

    async def _live(self) -> None:
        """Go from process to process, until one is not followed by another."""
        while True:
            await self._until_exit()
            while await self._may_restart():
                self._starting = asyncio.create_task(self._launch())
                [failed] = await asyncio.gather(self._starting, return_exceptions=True)
                if failed is None:  # else that was told already, and used up one of the restarts
                    break
            else:
                return
            await self._core.ready_again(self)

    async def _until_exit(self) -> None:
        assert self.live is not None
        found = await self.live.wait()
        tail = self.live.stderr_tail().strip() or None
        self.live = None
        self._exit = found
        self.router.exited(AgentExitedEvent(code=found.code, signal=found.signal, stderr_tail=tail))
        self._tell_exit(found)
        if self.leaving:
            self._move("disposed", "disposed")
        elif self._wanted_again:
            self._move("exited", "stopped")
        else:
            self._move("exited", "ended" if found.code == 0 else "crashed")
        await self._core.lost(self)
        await self._tidy()

    async def _may_restart(self) -> bool:
        """Wait out the pause before a restart; False where there will be none."""
        options = self._core.options
        if self.leaving:
            return False
        if self._wanted_again:
            self._wanted_again = False
            return True
        if options.restart == "never" or self._reason == "ended":
            why = (
                "the policy is never"
                if options.restart == "never"
                else "it ended by itself, without an error"
            )
            self._diagnose(DiagnosticCode.AGENT_RESTART_SUPPRESSED, f"not restarted: {why}")
            return False
        if self._restarts >= options.restart_limit:
            what = f"not restarted: {self._restarts} restarts in a row were not enough"
            self._diagnose(DiagnosticCode.AGENT_RESTART_EXHAUSTED, what)
            return False
        self._restarts += 1
        pause = options.restart_backoff.seconds(self._restarts)
        self._diagnose(DiagnosticCode.AGENT_RESTART_SCHEDULED, f"restart {self._restarts} in {pause:g} s")
        self._move("restarting", self._reason)
        self._pause = asyncio.ensure_future(self._core.clock.sleep(pause))
        await asyncio.wait({self._pause})
        self._pause = None
        return not self.leaving

    async def _launch(self) -> None:
        live = await self._spawned()
        try:
            await live.initialize(self._offered, self._core.options.limits.start)
        except BaseException as error:
            await asyncio.shield(self._give_up(live, error))
            raise
        self.live = live
        self._announced = live.announced
        self._diagnose(DiagnosticCode.AGENT_INITIALIZED, "ready")
        self._exit, self._restarts = None, 0
        self._move("ready")

    async def _spawned(self) -> Driver:
        host = self._core
        try:
            command, self._tmp = await asyncio.to_thread(host.homes.command, self.definition)
            names = sorted(command.env)
            self._diagnose(DiagnosticCode.AGENT_SPAWN, f"starting {command.argv[0]}", data={"env": names})
            self.router.reset()
            given = host.launcher, self._pipes(), self.router, host.pool, host.options.trusts
            context = DriverContext(command, *given, self.definition.beginning)
            return await open_driver(self.definition.driver, context)
        except BaseException as error:
            self._diagnose(DiagnosticCode.AGENT_SPAWN_FAILED, _said(error))
            self._fail("spawn-failed")
            await asyncio.shield(self._tidy())
            raise

    async def _give_up(self, live: Driver, error: BaseException) -> None:
        """Told first; how its process ended is added when it has."""
        self._diagnose(DiagnosticCode.AGENT_INITIALIZE_FAILED, _said(error))
        self._fail("initialize-failed")
        self._exit = await live.stop(grace=0)
        self._tell_exit(self._exit)
        self._publish()
        await self._tidy()

    async def _tidy(self) -> None:
        if self._tmp is not None:
            await asyncio.to_thread(rmtree, self._tmp, ignore_errors=True)
            self._tmp = None

    def _fail(self, reason: Reason) -> None:
        if not self.leaving:
            self._exit = None
            self._move("exited", reason)

    def _pipes(self) -> Pipes:
        options = self._core.options

        def too_long(size: int) -> None:
            self.router.trouble(DiagnosticCode.AGENT_LINE_TOO_LONG, f"skipped a line of {size} bytes")

        clock = self._core.clock
        allowed, since, left_out = float(STDERR_AT_ONCE), clock.monotonic(), 0

        def said(lines: list[bytes]) -> None:
            nonlocal allowed, since, left_out
            now = clock.monotonic()
            allowed, since = min(STDERR_AT_ONCE, allowed + now - since), now
            if allowed < 1:
                left_out += 1
                return
            text = b"\n".join(lines)[:STDERR_SHOWN].decode(errors="replace")
            data: dict[str, object] | None = {"leftOut": left_out} if left_out else None
            allowed, left_out = allowed - 1, 0
            self._diagnose(DiagnosticCode.AGENT_STDERR, text, data=data)

        return Pipes(
            max_line=options.max_line, redact=options.redact, on_line_too_long=too_long, on_stderr=said
        )

    def _move(self, status: AgentStatus, reason: Reason | None = None) -> None:
        self._status, self._reason = status, reason
        self._moved.set()
        self._moved = asyncio.Event()
        self._publish()

    def _publish(self) -> None:
        self._core.stream.publish(self.snapshot())

    def _diagnose(self, code: DiagnosticCode, message: str, data: dict[str, object] | None = None) -> None:
        self._core.stream.publish(Diagnostic(code=code, message=message, agent_id=self.id, data=data))

    def _tell_exit(self, found: Exit) -> None:
        data: dict[str, object] = {"code": found.code, "signal": found.signal}
        self._diagnose(DiagnosticCode.AGENT_EXIT, f"the process ended with {found}", data)


def _said(error: BaseException) -> str:
    return error.message if isinstance(error, LegationError) else type(error).__name__
