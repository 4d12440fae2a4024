"""`legation demo`: the first minute. A real agent process fixes a bug in a small repository, made for it; you decide.

It is a durable run of a real server with a folder of its own, which is killed with -9 in the middle. What is shown is what every
client is told, and the page in the browser shows the same; all of it goes when the minute is over.
"""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

from cyclopts import Parameter

import legation
from legation.cli.approver import login, open_tty, read_line, show_asked
from legation.cli.command import Console, line, paint_diff
from legation.cli.folders import Folders
from legation.cli.view import Renderer
from legation.errors import LegationError, TimedOut
from legation.proc.registry import listed
from legation.proc.tree import own_children
from legation.tasks import TaskSet

if TYPE_CHECKING:
    from legation.client import AsyncLegation
    from legation.client.async_http import AsyncCaller
    from legation.client.child import ServerChild
    from legation.client.runs import ClientRun
    from legation.secret import Secret
    from legation.wire.api.approvals import ApprovalDetail

AUTOPILOT_AFTER: Final = 20.0  # seconds a person has before the demo answers for itself
AUTOPILOT: Final = "demo:autopilot: {}, and this is only a demo"
START_LIMIT: Final = 120.0  # seconds for a server to be up: a busy machine's time
RUN_LIMIT: Final = 600.0  # seconds for all of it: the agent's, and whoever is asked
STOP_LIMIT: Final = 30.0  # seconds for a cancelled run to end: its agent's
LOOK: Final = 0.2  # seconds between two looks at what waits
PROMPT: Final = "One test fails in this repository. Find out why and fix it."
SURE: Final = 0.97
SERVE: Final = (sys.executable, "-P", "-c", "from legation.cli.demo import serve; serve()")
QUESTION: Final = "Allow it, once? [y]es [n]o: "

# Who decides what in the minute: a rule, a program, a person.
POLICY: Final = """\
name: demo
agent: "*"
rules:
  - id: read
    kind: [read, search]
    action: allow
    when: {paths: {under: $WORKSPACE}}
  - id: tests
    kind: execute
    action: supervisor
    when: {command: {glob: python -m unittest}}
  - id: edit
    kind: edit
    action: human_approval
    when: {paths: {under: $WORKSPACE}}
    timeout: 5m
"""

# What `--check` insists on: every line of the first minute, as far as it exists.
_RULE = " · Run python -m unittest: demo:tests: demo:supervisor: the tests of this folder, confidence 0.97"
PROMISES = (
    ("a link leads to the same in the browser", "Legation is up: http://", "/sign-in#"),
    ("the plan is shown", "plan: ▸ Run the tests"),
    ("a supervisor lets the tests run, and says how sure it is", _RULE),
    ("the tests fail", "✗ Run python"),
    ("server and worker are killed in the middle", "killed with -9", "is back"),
    ("the edit is asked about, with the diff and why", "asks: Edit pages.py", "demo:edit", "left to answer"),
    ("the autopilot answers visibly", "Edit pages.py: demo:edit: demo:autopilot: nobody is at the terminal"),
    ("the edit is made", "✓ Edit pages.py"),
    ("the tests pass", "✓ Run python -m unittest\n", "All 4 tests pass"),
    ("the diff is shown", "+    return list(range(1, page_count(total, size) + 1))"),
    ("the size of the change and the cost are told", "1 file(s) changed, +1 -1", "tokens, 0 USD"),
    ("the record is whole", "0 lost, 0 doubled"),
    ("the trace is verified", "trace verify: ok, "),
    ("nothing is left", "left behind: nothing"),
    ("what is off is said", "off: "),
    ("the next steps are named", "--agent claude --repo .", "legation.client", "curl "),
)


def demo(
    *,
    check: Annotated[
        bool, Parameter(negative="", help="Headless: assert every line and say which one is missing.")
    ] = False,
) -> int:
    """Watch the first minute: a scripted agent fixes a bug in a small repository, and asks you on the way.

    No key, no account, no network. Without a terminal, or after 20 seconds, a visible autopilot answers.
    """
    return _check() if check else _show(Console(), open_tty())


def _show(out: Console, tty: TextIO | None) -> int:
    version = legation.__version__
    out.say(f"Legation {version}, the first minute: an agent fixes a bug, and you are in charge.", "bold")
    with tempfile.TemporaryDirectory(prefix="legation-demo-") as place:
        minute = FirstMinute(out, tty, Path(place))
        try:
            code = asyncio.run(minute.play())
        except (KeyboardInterrupt, asyncio.CancelledError):  # Ctrl-C, a TERM, the end of the terminal
            code = 130
        finally:
            left = minute.end()
    if Path(place).exists():
        left.append(place)
    out.say(f"left behind: {', '.join(left) or 'nothing'}", "bold")
    if code != 130:
        _say_next(out)
    return code


def _say_next(out: Console) -> None:
    out.say("off: no jail and no egress rules yet; an agent that means harm can do what you can do", "yellow")
    out.say()
    out.say(
        "Next, in a folder of yours, with `legation up` in another terminal (or --agent rehearsal: no key):"
    )
    out.say('  legation run "Fix the failing test" --agent claude --repo .')
    out.say(
        '  python -c \'from legation.client import Legation as L; print(L.find().run("rehearsal", "Fix it").id)\''
    )
    out.say('  curl -H "Authorization: Bearer $(legation tokens new me)" http://127.0.0.1:4517/v1/runs')


@dataclass(slots=True)
class FirstMinute:
    """A run of a server of its own, shown in the terminal. `place` is a folder that goes with it."""

    out: Console
    tty: TextIO | None
    place: Path
    child: ServerChild | None = None
    address: tuple[int, Secret] | None = None
    _view: Renderer = field(init=False)
    _asked: set[str] = field(default_factory=set)
    _was_killed: bool = False

    def __post_init__(self) -> None:
        self._view = Renderer(self.out)

    async def play(self) -> int:
        """Show it to its end; the exit code."""
        from legation.client import AsyncLegation
        from legation.wire.api.runs import FolderPlace, RunTimeouts

        playing = asyncio.current_task()
        assert playing
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, playing.cancel)
        repository = self.place / "pages"
        make_demo_repo(repository)
        (self.place / "policy.yaml").write_text(POLICY)
        child = await self._start()
        async with AsyncLegation.connect(child.url, child.token, outages=lambda _: None) as server:
            link = await server.sign_in_link()
            self.out.say(f"Legation is up: {link.url}", "bold")
            self.out.say("the same in your browser, if you like: whoever answers first decides", "dim")
            program = await server.tokens.create("demo:supervisor", kind="supervisor")
            run = await server.run(
                "rehearsal",
                PROMPT,
                workspace=FolderPlace(path=str(repository)),
                timeouts=RunTimeouts(run=RUN_LIMIT),
            )
            self.out.say(f"{run.id}, a durable run", "dim")
            tasks = TaskSet("legation-demo")
            tasks.start(self._supervise(child.url, program.secret))
            tasks.start(self._attend(server, run))
            try:
                async with asyncio.timeout(RUN_LIMIT), run.stream_events(0) as events:
                    async for event in events:
                        self._view.show(event)
            except TimeoutError:
                raise TimedOut(
                    f"cannot show the rest: the run takes longer than {RUN_LIMIT:g} s; try it on a quieter machine"
                ) from None
            except asyncio.CancelledError:  # a durable run would go on without us
                await tasks.close()
                with suppress(OSError):  # the terminal may be gone
                    self.out.say("\ncancelling the run", "yellow")
                with suppress(LegationError):
                    await run.cancel()
                    await run.wait(STOP_LIMIT)
                raise
            finally:
                await tasks.close()
                self._view.end()
            return await self._account(server, run)

    def end(self) -> list[str]:
        """Stop the server, and name what is left of it all."""
        if self.child is not None:
            self.child.stop()
        data = self.place / "data"
        alive = [each for each in listed(Folders(data).children) if each.state not in ("ended", "gone")]
        left = [f"{each.name} (pid {each.pid})" for each in alive]
        left += [f"process {pid}" for pid in own_children()]
        return left + [str(path) for path in data.glob("agents/*/*/tmp/*")]

    async def _start(self) -> ServerChild:
        from legation.client.child import ServerChild, choose_port, make_token
        from legation.client.request import Spawn

        settings = {"LEGATION_POLICY": str(self.place / "policy.yaml"), "LEGATION_FOLDERS": str(self.place)}
        settings |= {
            "LEGATION_REHEARSAL_EXECUTES": "true"
        }  # in a folder of its own, for whoever has a shell here
        # The same place when it starts again: whoever knew it finds it there.
        self.address = self.address or (choose_port(Spawn()), make_token(None))
        port, token = self.address
        folder = self.place / "data"
        spawn = Spawn(
            binary=SERVE,
            port=port,
            token=token,
            data_dir=folder,
            log="silent",
            wait=START_LIMIT,
            env=settings,
        )
        self.child = ServerChild(spawn)
        await asyncio.to_thread(self.child.start)
        return self.child

    async def _supervise(self, url: str, token: str) -> None:
        """Decide what the rules leave to a program, as any program may: by the public API, with a token of its own."""
        from legation.client import AsyncLegation

        async with AsyncLegation.connect(url, token, outages=lambda _: None) as server:
            while True:
                with suppress(LegationError):  # it is away for a moment, or somebody was faster
                    async for each in server.approvals.list("pending"):
                        if each.needs == "supervisor":
                            why = f"demo:supervisor: the tests of this folder, confidence {SURE}"
                            await server.approvals.approve(each.id, reasoning=why, confidence=SURE)
                await asyncio.sleep(LOOK)

    async def _attend(self, server: AsyncLegation, run: ClientRun[AsyncCaller]) -> None:
        """See to what waits for a person. When the edit does, kill server and worker first."""
        while True:
            with suppress(LegationError):
                waits_for = (await run.info()).waits_for
                if waits_for is not None and waits_for not in self._asked:
                    asked = await server.approvals.get(waits_for)
                    if (asked.status, asked.needs) == ("pending", "person"):
                        if not self._was_killed:
                            await self._kill(server)
                        await self._ask(server, asked)
                        self._asked.add(waits_for)
            await asyncio.sleep(LOOK)

    async def _kill(self, server: AsyncLegation) -> None:
        self._was_killed = True
        pid = (await server.info()).pid
        self._view.pause()
        os.kill(pid, signal.SIGKILL)
        self.out.say(
            f"server and worker (pid {pid}) were killed with -9, by this demo; the agent goes on without",
            "red",
        )
        assert self.child is not None
        await asyncio.to_thread(self.child.stop)
        await self._start()
        self.out.say(f"Legation is back (pid {(await server.info()).pid}); the question still waits", "green")

    async def _ask(self, server: AsyncLegation, asked: ApprovalDetail) -> None:
        """Ask whoever sits here, while whoever sits at the page may answer too."""
        self._view.pause()
        show_asked(self.out, asked)
        if self.tty is None:
            await server.approvals.approve(asked.id, reasoning=AUTOPILOT.format("nobody is at the terminal"))
            return
        typed, elsewhere = (
            asyncio.create_task(_answer(self.tty)),
            asyncio.create_task(_decided(server, asked.id)),
        )
        try:
            await asyncio.wait(
                {typed, elsewhere}, timeout=AUTOPILOT_AFTER, return_when=asyncio.FIRST_COMPLETED
            )
            if elsewhere.done():
                self.out.say("\nanswered in the browser", "dim")
            elif typed.done() and (yes := typed.result()) is not None:
                decide = server.approvals.approve if yes else server.approvals.deny
                await decide(asked.id, reasoning=f"{'yes' if yes else 'no'}, in the terminal, by {login()}")
            else:
                self.out.say(f"\nnobody answered for {AUTOPILOT_AFTER:g} s", "yellow")
                await server.approvals.approve(asked.id, reasoning=AUTOPILOT.format("nobody answered"))
        finally:
            for task in (typed, elsewhere):
                task.cancel()
            await asyncio.gather(typed, elsewhere, return_exceptions=True)

    async def _account(self, server: AsyncLegation, run: ClientRun[AsyncCaller]) -> int:
        """Say what changed and what was kept."""
        ended, changes = await run.wait(RUN_LIMIT), await run.changes()
        self.out.say()
        paint_diff(self.out, changes.patch)
        added, removed = (
            sum(each.added for each in changes.files),
            sum(each.removed for each in changes.files),
        )
        counted = f"{len(changes.files)} file(s) changed, +{added} -{removed}"
        self.out.say(counted if changes.files else "no file changed", "bold")
        seqs = [event.seq async for event in run.events()]
        lost, doubled = max(seqs, default=0) - len(set(seqs)), len(seqs) - len(set(seqs))
        self.out.say(f"on the record: {len(seqs)} events, {lost} lost, {doubled} doubled", "bold")
        reports = await server.traces.verify()
        problems = [problem for report in reports for problem in report.problems]
        steps = sum(report.steps for report in reports)
        self.out.say(f"trace verify: {line(problems[0]) if problems else f'ok, {steps} steps'}", "bold")
        return 0 if ended.state == "succeeded" else 1


def serve() -> None:
    """Be `legation up`, server and worker in one, for as long as the demo that started this process lives."""
    from legation.cli.start import read_plain
    from legation.server.run import run
    from legation.settings import load

    line = read_plain(sys.argv[1:])
    assert line is not None
    settings = load(line.flags, os.environ)
    run(settings, mode="up", announce=lambda _: None, exit_with_parent=True)
    # A run outlives its server, which is the point of it; that of a demo which was killed nobody would ever take up.
    for child in listed(Folders(settings.data_dir).children):
        if child.state not in ("ended", "gone") and child.pid:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its guard ends the agent


async def _answer(tty: TextIO) -> bool | None:
    """Read a yes or a no; None where nobody sits there any more."""
    out = Console(tty)
    termios.tcflush(tty.fileno(), termios.TCIFLUSH)  # what was typed before is no answer
    while True:
        out.write(QUESTION, "yellow")
        typed = await read_line(tty)
        if typed is None:
            return None
        if typed.lower() in ("y", "yes", "n", "no"):
            return typed.lower().startswith("y")


async def _decided(server: AsyncLegation, approval: str) -> None:
    """Wait until somebody has decided it."""
    while True:
        with suppress(LegationError):
            if (await server.approvals.get(approval)).status != "pending":
                return
        await asyncio.sleep(LOOK)


def _check() -> int:
    """Show the same as anybody sees, without a terminal."""
    seen = io.StringIO()
    code = _show(Console(seen), None)
    transcript = seen.getvalue()
    sys.stdout.write(transcript)
    missing = [what for what, *lines in PROMISES if not all(each in transcript for each in lines)]
    for what, *_ in PROMISES:
        print(f"{'MISSING' if what in missing else 'held':<8}{what}")
    print(f"check: {len(PROMISES) - len(missing)} of {len(PROMISES)} hold, exit code {code}")
    return 1 if missing else code


# The small repository: one module, one off-by-one bug, one failing test.

GIT_LIMIT = 30.0  # git's time for one command on four small files

README = """\
# pages

Splits a list into numbered pages. Run the tests with `python -m unittest`.
"""

PAGES = '''\
"""Split a list into numbered pages."""


def page_count(total: int, size: int) -> int:
    """How many pages it takes to show `total` items, `size` on each."""
    if size < 1:
        raise ValueError("a page holds at least one item")
    return (total + size - 1) // size


def page_items(items: list[str], number: int, size: int) -> list[str]:
    """The items of one page; the first page is number 1."""
    start = (number - 1) * size
    return items[start : start + size]


def page_numbers(total: int, size: int) -> list[int]:
    """The numbers below the list, from 1 to the last page."""
    return list(range(1, page_count(total, size)))
'''

TESTS = """\
import unittest

from pages import page_count, page_items, page_numbers


class PagesTest(unittest.TestCase):
    def test_a_last_page_that_is_not_full_counts(self) -> None:
        self.assertEqual(page_count(45, 10), 5)

    def test_a_page_holds_at_least_one_item(self) -> None:
        with self.assertRaises(ValueError):
            page_count(45, 0)

    def test_the_second_page_starts_where_the_first_ends(self) -> None:
        self.assertEqual(page_items(list("abcde"), 2, 2), ["c", "d"])

    def test_every_page_has_a_number(self) -> None:
        self.assertEqual(page_numbers(45, 10), [1, 2, 3, 4, 5])


if __name__ == "__main__":
    unittest.main()
"""


FILES: Mapping[str, str] = {
    "README.md": README,
    "pages.py": PAGES,
    "test_pages.py": TESTS,
    ".gitignore": "__pycache__/\n",
}


def make_demo_repo(folder: Path) -> None:
    """Writes the files, and commits them where git is to be had."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    if git := shutil.which("git"):
        # An empty template: no sample hooks, nothing of the machine's own.
        _git(git, folder, "init", "--quiet", "--initial-branch=main", "--template=")
        _git(git, folder, "add", "--all")
        _git(git, folder, "commit", "--quiet", "--no-verify", "--message=Pages, with a bug")


def _git(git: str, folder: Path, *arguments: str) -> None:
    settings = {
        "user.name": "Rehearsal",
        "user.email": "rehearsal@example.invalid",
        "core.hooksPath": os.devnull,
        "commit.gpgSign": "false",
        "core.autocrlf": "false",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
    }
    subprocess.run([git, *options, *arguments], cwd=folder, env=env, check=True, timeout=GIT_LIMIT)
