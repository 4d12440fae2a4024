"""The provider `sandbox`: a runner on the worker's own machine, detached, found again by its name.

Below `runs/<run>` of the data folder are the agent's working folder, its home, and for each attempt the runner's own folder. The
configuration, with the token and the keys, goes through a pipe that is read once: it is in no file, no argument and no variable.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from legation.clock import Clock
from legation.errors import Conflict, Forbidden, InvalidParams, NotFound, StorageFailed, TooLarge, Unavailable
from legation.host.launch import AgentLauncher, AgentProgram, servers_of
from legation.host.options import AgentDefinition
from legation.host.skills import PLACES, Folder, put_in_place, put_texts
from legation.proc import Command, ProcessLauncher, Registry
from legation.proc.launcher import FileStdio, child_environment
from legation.proc.registry import RegisteredChild, listed, reap
from legation.proc.tree import process
from legation.runs.provider import Observation, RunJob, RunResource, StepFailed
from legation.runs.run import SQL, Run
from legation.runs.states import ErrorClass, RunState
from legation.secret import Secret
from legation.store.database.transaction import Database, Row, Transaction, only
from legation.store.datafolder import make_folder
from legation.store.forbidden import ForbiddenPlaces
from legation.store.trust import TrustedFolders
from legation.tasks import in_thread
from legation.wire.acp.methods import McpServer
from legation.wire.api.runs import FolderPlace, GitPlace, RunSpec
from legation.wire.api.sessions import LocalMcp, RemoteMcp
from legation.wire.callbacks import token_digest

FOLDER: Final = "runs"  # of the data folder
CONFIG_LIMIT: Final = 60.0  # seconds for the runner to read its configuration: the machine's time to start it
STOP_GRACE: Final = (
    20.0  # seconds from TERM to KILL: the agent's time to end, and the last report's to be taken
)
LOCAL: Final = "file://"  # of an address of a repository
SHORTEST_HIDDEN: Final = 8  # characters of a part of a secret: a shorter one may be any word
SPOOL: Final = "_reports.jsonl"  # in the runner's folder, once it has begun: its journal
PLUGIN: Final = "plugin"  # below the run's folder: its skills, for Claude Code
SKILL: Final = "skill:"  # in a bundle, before the name of a skill
CLONE_LIMIT: Final = 600.0  # seconds: the repository's time
SILENT_MS: Final = 60_000  # without a heartbeat, of which there is one every ten seconds, and without a process that we know of

_ALIVE: Final = ("running", "unowned")
# Classes of what a runner says; whatever it says else is the agent's failure.
_CODES: Final[Mapping[str, ErrorClass]] = {
    "runner": ErrorClass.MACHINE_LOST,
    "legation/unauthenticated": ErrorClass.TENANT_PERMANENT,
    "legation/invalid-params": ErrorClass.TENANT_PERMANENT,
    "legation/storage-failed": ErrorClass.UNAVAILABLE,
    "legation/rate-limited": ErrorClass.PROVIDER_LIMIT,
    "legation/unavailable": ErrorClass.PROVIDER_TRANSIENT,
}
_STOPS: Final = {"end_turn": RunState.SUCCEEDED, "cancelled": RunState.CANCELLED}


@dataclass(slots=True)
class SandboxProvider:
    """`report_url` is where runners of this machine reach a server, `children` the folder in which they are on file. `folder` finds one that
    this machine serves: runs work, and take skills, in no other."""

    database: Database
    clock: Clock
    data_dir: Path
    children: Path
    machine: str
    report_url: str
    launcher: AgentLauncher
    folder: Folder
    forbidden: ForbiddenPlaces

    def resources(self, run: Run) -> tuple[RunResource, ...]:
        return RunResource("folder", run.id), RunResource("runner", run.attempt_id)

    def journal(self, run: Run, token: Secret, now_ms: int) -> Transaction[None]:
        yield SQL.register_runner(
            id=run.attempt_id,
            workspace=run.workspace,
            token_digest=token_digest(token.reveal()),
            machine=self.machine,
            run=run.id,
            attempt=run.attempt,
            now=now_ms,
        )

    # Folders.

    def _folder(self, run: Run) -> Path:
        return self.data_dir / FOLDER / run.id

    def _own_work(self, run: Run) -> Path:
        return self._folder(run) / "work"

    def _runner_folder(self, run: Run) -> Path:
        return self._folder(run) / f"runner-{run.attempt}"

    async def prepare(self, run: Run, spec: RunSpec) -> None:
        folder, place = self._folder(run), spec.workspace
        try:
            for each in (folder, folder / "home", folder / "tmp", self._runner_folder(run)):
                await asyncio.to_thread(make_folder, each)
            if isinstance(place, GitPlace):
                await self._clone(run, place)
            elif not isinstance(place, FolderPlace):
                await asyncio.to_thread(make_folder, self._own_work(run))
        except OSError as error:
            raise StorageFailed(
                f"cannot make the folders of {run.id}: {error.strerror}; check the disk"
            ) from None
        work = await self._work(run, spec)
        # It is here, or it is fetched: the runner's start is no time for that.
        agent = await self._agent(run, work)
        into, places = self._skills_folder(run, agent, work)
        try:
            if into != work:
                await in_thread(_make_plugin, into)
            await put_in_place(spec.skills, into, self.folder, self.forbidden, places)
        except Unavailable:
            raise  # a repository that does not answer may do so later
        except (InvalidParams, NotFound, Conflict, Forbidden, TooLarge) as error:
            raise StepFailed(
                ErrorClass.TENANT_PERMANENT,
                "skills",
                f"cannot take its skills ({error.code}); check their sources",
            ) from None

    def _skills_folder(self, run: Run, agent: AgentDefinition, work: Path) -> tuple[Path, Sequence[str]]:
        """Find where the agent looks for skills, and the folders of them there. Claude Code takes none from a folder that nobody trusts, but
        from a plug-in that it is named."""
        if agent.driver == "claude":
            return self._folder(run) / PLUGIN, ("skills",)
        return work, PLACES

    async def _work(self, run: Run, spec: RunSpec) -> Path:
        """Find where the agent works. No reason tells a path: somebody typed it."""
        if not isinstance(spec.workspace, FolderPlace):
            return self._own_work(run)
        try:
            return await self.folder(spec.workspace.path)
        except Forbidden:
            why = "its folder is none of those that its machine serves; name another, or serve it (LEGATION_FOLDERS)"
        except (NotFound, Conflict, InvalidParams):
            why = "there is no such folder on its machine; name another"
        raise StepFailed(ErrorClass.TENANT_PERMANENT, "workspace", f"cannot work there: {why}")

    async def _clone(self, run: Run, place: GitPlace) -> None:
        """Into a folder beside its own, which then gets its name: there is all of it or nothing."""
        work, part = self._own_work(run), self._folder(run) / "clone"
        if work.is_dir():
            return
        await asyncio.to_thread(shutil.rmtree, part, ignore_errors=True)
        if place.url.startswith(LOCAL):
            await self._served_repository(place)
        await self._git(run, "clone", "--quiet", "--", place.url, str(part))
        if place.ref is not None:
            await self._git(run, "-C", str(part), "checkout", "--quiet", "--detach", place.ref, "--")
        part.rename(work)

    async def _served_repository(self, place: GitPlace) -> None:
        try:
            await self.folder(unquote(urlsplit(place.url).path))
        except (Forbidden, NotFound, Conflict, InvalidParams):
            raise StepFailed(
                ErrorClass.TENANT_PERMANENT,
                "workspace",
                "cannot get the repository: it is in no folder that its machine serves; name another",
            ) from None

    async def _git(self, run: Run, *args: str) -> None:
        folder = self._folder(run)
        passed = {
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file",
        }
        environment = child_environment(passed, home=folder / "home", tmp=folder / "tmp")
        command = Command(("git", *args), folder, environment, f"git of {run.id}")
        try:
            async with asyncio.timeout(CLONE_LIMIT), await self._launcher().spawn(command) as git:
                git.close_stdin()
                ended = await git.wait()
        except TimeoutError:
            raise StepFailed(
                ErrorClass.PROVIDER_TRANSIENT,
                "workspace",
                f"cannot get the repository within {CLONE_LIMIT:g} s; check its address, or submit it again",
            ) from None
        if ended.code != 0:
            raise StepFailed(
                ErrorClass.TENANT_PERMANENT,
                "workspace",
                "cannot get the repository: git refused; check its address, its ref and who may read it",
            )

    # The runner.

    def _launcher(self) -> ProcessLauncher:
        return ProcessLauncher(registry=Registry(self.children))

    def _entry(self, run: Run) -> RegisteredChild | None:
        """Find what is on file under its name. One that was being started by somebody who is dead is settled before: its
        keeper has put itself on file, or never will."""
        for _ in range(2):
            named = [each for each in listed(self.children) if each.name == run.attempt_id]
            # Beside one that was killed may be the one that goes on in its folder: that one counts.
            found = min(named, key=lambda each: each.state not in _ALIVE, default=None)
            if found is None or found.pid or found.owner_lives:
                return found
            reap(self.children)
        return None

    async def find(self, run: Run) -> str | None:
        found = await in_thread(self._entry, run)
        return (
            None if found is None or found.state in ("gone", "starting") else f"{found.pid}:{found.started}"
        )

    async def create(self, job: RunJob) -> str:
        work = await self._work(job.run, job.spec)
        agent = await self._agent(job.run, work)
        config = msgspec.json.encode(await self._config(job, work, agent))
        own = {
            name.removeprefix(SKILL): each.reveal()
            for name, each in job.secrets.items()
            if name.startswith(SKILL)
        }
        if not job.rest_only:
            await in_thread(put_texts, own, *self._skills_folder(job.run, agent, work))
        await in_thread(
            self._forget, job.run.attempt_id
        )  # of one that has ended: this one goes on in its folder
        reading, writing = os.pipe()
        try:
            child = await self._launcher().spawn(self._command(job, reading))
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        try:
            await job.still_ours()  # without a configuration it does nothing and ends
            await in_thread(_write_all, writing, config, CONFIG_LIMIT)
        except (OSError, TimeoutError):
            raise StepFailed(
                ErrorClass.UNAVAILABLE,
                "runner",
                "cannot start the runner: it ended before it had read its task",
            ) from None
        finally:
            os.close(writing)
            await child.release()
        found = process(child.pid)
        return f"{child.pid}:{found.started if found is not None else 0}"

    def _command(self, job: RunJob, reading: int) -> Command:
        run, folder = job.run, self._folder(job.run)
        argv = (sys.executable, "-P", "-m", "legation", "runner", "--config-fd", str(reading))
        return Command(
            (*argv, "--folder", str(self._runner_folder(run))),
            folder,
            child_environment({}, home=folder / "home", tmp=folder / "tmp"),
            run.attempt_id,
            detached=True,
            pass_fds=(reading,),
            files=FileStdio(self._runner_folder(run), "stdout", "stderr"),
        )

    async def _config(self, job: RunJob, work: Path, agent: AgentDefinition) -> dict[str, Any]:
        """The one place that knows what a runner is told."""
        run, spec = job.run, job.spec
        keys = {name: value.reveal() for name, value in job.secrets.items() if ":" not in name}
        has_skills = spec.skills is not None or any(name.startswith(SKILL) for name in job.secrets)
        plugin = self._folder(run) / PLUGIN
        plugins = (f"--plugin-dir={plugin}",) if has_skills and agent.driver == "claude" else ()
        entry = await self.launcher.entry(run.agent)
        methods = (method for name, method in entry.key_methods.items() if name in keys)
        program = AgentProgram(
            command=agent.command,
            driver=agent.driver,
            args=(*agent.args, *plugins),
            beginning=agent.beginning,
            modes=agent.modes,
            key_method=next(methods, None),
            trusted=await asyncio.to_thread(self._trusts, run, work),
        )
        return {
            "runId": run.id,
            "taskId": run.id,
            "sandboxId": self.machine,
            "promptId": run.attempt_id,
            "callbackUrl": f"{self.report_url}/v1/runs/{run.attempt_id}/reports",
            "token": job.token.reveal(),
            "prompt": "\n\n".join(spec.prompts),
            "repoDir": str(work),
            "mcpServers": msgspec.to_builtins(mcp_servers(spec, job.secrets)),
            # The one place where a key reaches the agent: as a variable of its own, and of nobody else's.
            # What the catalogue sets for an agent that nobody trusts is not the submitter's to change.
            "bundle": {**spec.environment.env_vars, **agent.env, **keys},
            # And what is replaced in all that it says, wherever it has that from.
            "hide": hidden_texts(job.secrets),
            "agent": msgspec.to_builtins(program),
            "agentName": run.agent,
            **({"restOnly": True} if job.rest_only else {}),
            # What the agent asks is decided at home: by the rules of its workspace, a supervisor or a person.
            "permissions": "route",
            # Where its provider has had enough, it waits with the agent's session, and goes on by itself.
            "limitWaits": run.caps.suspensions,
            "limitSeconds": run.caps.suspended_seconds,
            **({} if spec.timeouts.idle is None else {"idleTimeout": spec.timeouts.idle}),
            "commandsUrl": f"{self.report_url}/v1/runs/{run.attempt_id}/commands",
            **({} if spec.model is None else {"modelId": spec.model}),
        }

    async def _agent(self, run: Run, work: Path) -> AgentDefinition:
        """Find how the agent is started there, and install it if need be, as for a session."""
        try:
            return (await self.launcher.launch(run.workspace, run.agent, work)).definition
        except Forbidden:
            raise StepFailed(
                ErrorClass.TENANT_PERMANENT,
                "untrusted",
                f"cannot start {run.agent} there: what the folder has for agents would run unasked; look at it, then trust the "
                "folder with `legation trust`, or use another agent",
            ) from None

    def _trusts(self, run: Run, work: Path) -> bool:
        return TrustedFolders(self.data_dir, run.workspace).trusts(str(work))

    async def observe(self, run: Run) -> Observation:
        row = await self.database.read(_runner_state, run)
        if row is None:
            return Observation("gone", heard=False)
        if row["ended_at"] is None and not self._works(run, row):
            row = await self.database.read(
                _runner_state, run
            )  # its last word may have come just before its end
            if row is None or row["ended_at"] is None:
                heard = row is not None and row["heard_at"] is not None
                return Observation("gone", heard=heard, has_rest=await in_thread(self._has_spool, run))
        if row["ended_at"] is None:
            return Observation(
                "working",
                heard=row["heard_at"] is not None,
                waits_for=row["waits_for"],
                paused=row["told"] == "pause",
                limited_until=row["limited_until"],
            )
        return _ended(row["ended_kind"], row["ended_code"] or "unknown")

    def _has_spool(self, run: Run) -> bool:
        """Whether a runner began the prompt here: what it has not told is in its folder."""
        return (self._runner_folder(run) / SPOOL).exists()

    def _works(self, run: Run, row: Row) -> bool:
        """Whether its process is there; one that is not known here, or is another machine's, is told by its heartbeats."""
        pid, _, started = (row["external_id"] or "").partition(":")
        if not pid or run.machine != self.machine:
            return bool(row["seen_at"] > self.clock.now_ms() - SILENT_MS)
        found = process(int(pid))
        return found is not None and found.started == int(started) and not found.dead

    async def cancel(self, run: Run) -> None:
        found = await in_thread(self._entry, run)
        if found is None or found.state not in _ALIVE:
            return
        with suppress(NotFound):  # it has just ended
            child = await self._launcher().adopt(found.pid, found.started)
            try:
                await child.stop(STOP_GRACE)
            finally:
                child.forget()

    async def clean(self, run: Run, resource: RunResource) -> None:
        if resource.kind == "runner":
            await self.cancel(run)
            await in_thread(self._forget, resource.name)
            return
        folder = self._folder(run)
        try:
            await in_thread(_remove, folder)
        except OSError as error:
            raise StorageFailed(
                f"cannot remove the folder of {run.id}: {error.strerror}; check the disk"
            ) from None

    async def retain(self, run: Run, resource: RunResource) -> bool:
        """Only the folder that it worked in: in its home, and in the runner's folder, a program may have left a key."""
        if resource.kind != "folder":
            return False
        try:
            await in_thread(_remove_but, self._folder(run), self._own_work(run))
        except OSError as error:
            raise StorageFailed(
                f"cannot clean the folder of {run.id}: {error.strerror}; check the disk"
            ) from None
        return self._own_work(run).is_dir()

    async def asks_all(self, run: Run, spec: RunSpec) -> bool:
        """In a folder of somebody's own what that has for agents may have run, where it is trusted there."""
        entry = await self.launcher.entry(run.agent)
        return entry.asks_all and not isinstance(spec.workspace, FolderPlace)

    def _forget(self, name: str) -> None:
        """Take those that have ended off the file; what a killed keeper has left is ended before."""
        if any(each.name == name and each.state == "orphaned" for each in listed(self.children)):
            reap(self.children)
        for each in listed(self.children):
            if each.name == name and each.state in ("ended", "gone"):
                each.file.unlink(missing_ok=True)


def _runner_state(run: Run) -> Transaction[Row | None]:
    return only((yield SQL.runner_state(workspace=run.workspace, id=run.attempt_id)))


def _ended(kind: str, code: str) -> Observation:
    if kind == "prompt_complete" and code in _STOPS:
        return Observation("ended", _STOPS[code])
    if kind == "prompt_complete":
        reason = f"the agent ended its turn with {code}"
        return Observation("ended", RunState.FAILED, ErrorClass.AGENT_FAILED, code, reason)
    found = _CODES.get(code, ErrorClass.AGENT_FAILED)
    reason = f"the runner reported that the prompt failed ({code}); its events say more"
    return Observation("ended", RunState.FAILED, found, code, reason)


def mcp_servers(spec: RunSpec, secrets: Mapping[str, Secret]) -> tuple[McpServer, ...]:
    """Servers as ACP has them; headers and variables that are secret come from the bundle, under `mcp:<server>:<name>`."""
    found: dict[str, LocalMcp | RemoteMcp] = {}
    for name, server in spec.mcp_servers.items():
        own = {
            key.split(":", 2)[2]: each.reveal()
            for key, each in secrets.items()
            if key.startswith(f"mcp:{name}:")
        }
        if isinstance(server, LocalMcp):
            found[name] = msgspec.structs.replace(server, env={**(server.env or {}), **own})
        else:
            found[name] = msgspec.structs.replace(server, headers={**(server.headers or {}), **own})
    return servers_of(found)


def hidden_texts(secrets: Mapping[str, Secret]) -> list[str]:
    """List secrets as they stand, and without the word before them in a header such as `Bearer abc`."""
    whole = [each.reveal() for name, each in secrets.items() if not name.startswith(SKILL)]
    parts = [each.rpartition(" ")[2] for each in whole]
    return [*dict.fromkeys((*whole, *(each for each in parts if len(each) >= SHORTEST_HIDDEN)))]


def _write_all(fd: int, data: bytes, limit: float) -> None:
    """Write into a pipe whose reader may be stuck: a thread that waits there cannot be cancelled."""
    os.set_blocking(fd, False)
    waiting, deadline, view = select.poll(), time.monotonic() + limit, memoryview(data)
    waiting.register(fd, select.POLLOUT)
    while view:
        if not waiting.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError
        with suppress(BlockingIOError):
            view = view[os.write(fd, view) :]


def _make_plugin(folder: Path) -> None:
    make_folder(folder)
    make_folder(folder / ".claude-plugin")
    (folder / ".claude-plugin" / "plugin.json").write_text('{"name": "given", "version": "1.0.0"}\n', "utf-8")


def _remove_but(folder: Path, kept: Path) -> None:
    for each in [*folder.iterdir()] if folder.is_dir() else []:
        if each != kept:
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()


def _remove(folder: Path) -> None:
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
