"""`legation leaks`: what is alive here and why, and what should not be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from legation.cli.command import Json, LocalFlags, Style, line, say, say_json, say_verdict, settings_of
from legation.cli.folders import Folders
from legation.proc.registry import RegisteredChild, listed, unreadable
from legation.proc.tree import process

Verdict = Literal["ok", "waits", "left"]
_STYLES: dict[Verdict, Style] = {"ok": "green", "waits": "yellow", "left": "red"}
_NEXT_START = "legation up, or any legation exec: the next start ends it"


@dataclass(frozen=True, slots=True)
class LeakFinding:
    """Something that is there. `left`: it should not be; `waits`: for an owner, or for one to ask how it ended."""

    verdict: Verdict
    kind: Literal["process", "file", "folder"]
    state: str
    name: str
    why: str
    next: str = ""
    pid: int = 0
    owner: int = 0
    detached: bool = False
    adopted: bool = False
    seconds: float | None = None  # since it began


def leaks(*, json: Json = False, settings: LocalFlags | None = None) -> int:
    """Show what Legation has started and what of it is alive, and why.

    - ok: it is alive and so is its owner: a server, an exec, or whoever adopted it.
    - waits: it is detached, was meant to outlive its owner and waits for the next one; or it has ended, and how it
      did waits to be asked for, a week at most.
    - left: it should be gone, because its owner is dead. The next start of Legation ends it.

    The exit code is 1 if something is left, else 0. It reads the data folder of this machine and asks no server, so that
    it works whether one is up or not.

    What is detached ends with `kill -- -PID`: the whole group, by the number that is shown.
    """
    data = settings_of(settings).data_dir
    found = list(_find(data))
    for each in found:
        if json:
            say_json(each)
        else:
            shown = f"{line(each.name)}{f' (pid {each.pid})' if each.pid else ''}: {line(each.why)}"
            say_verdict(each.verdict, _STYLES[each.verdict], shown, each.next)
    if not found and not json:
        say(f"nothing runs and nothing is left behind in {line(str(data))}")
    return 1 if any(each.verdict == "left" for each in found) else 0


def _find(data: Path) -> Iterator[LeakFinding]:
    folder = Folders(data).children
    children = listed(folder)
    yield from (_child(each) for each in children)
    for path in unreadable(folder):
        why = "names no process that can be read; look whether it is in use, and remove it"
        yield LeakFinding("left", "file", "unreadable", str(path), why, f"rm {path}")
    if any(each.owner_lives or each.state in ("unowned", "elsewhere") for each in children):
        return  # they may be theirs
    for path in sorted((data / "agents").glob("*/*/tmp/*")):
        why = "an agent's temporary folder, which a killed Legation left"
        yield LeakFinding("left", "folder", "left", str(path), why, _NEXT_START)


def _child(each: RegisteredChild) -> LeakFinding:
    verdict, why, following = _say(each)
    found = process(each.pid) if each.pid and each.state in ("running", "unowned") else None
    return LeakFinding(
        verdict,
        "process",
        each.state,
        each.name,
        why,
        following,
        pid=each.pid,
        owner=each.owner,
        detached=each.detached,
        adopted=each.adopted,
        seconds=None if found is None else round(found.age, 1),
    )


def _say(each: RegisteredChild) -> tuple[Verdict, str, str]:
    owner = f"process {each.owner}" if each.owner else "nobody"
    pids = ", ".join(map(str, each.left))
    if each.left and each.owner_lives:
        return "ok", f"of {owner}, which lives and ends what is left of it: {pids}", ""
    if each.left:
        why = f"of {owner}, which is dead, and this is left of it: {pids}"
        return "left", why, _NEXT_START
    match each.state:
        case "starting":
            return "ok", f"{owner} is about to start it", ""
        case "running" if each.detached:
            how = "adopted by" if each.adopted else "started by"
            return "ok", f"detached, {how} {owner}, which lives", ""
        case "running":
            return "ok", f"started by {owner}, which lives and ends it", ""
        case "unowned":
            of = f"of {owner}, which is dead" if each.owner else "released by its owner"
            return "waits", f"detached, {of}: it goes on until somebody adopts or ends it", ""
        case "ended":
            return "waits", f"detached, has ended with {_exit(each)}; nobody has taken note of it yet", ""
        case "elsewhere":
            return "ok", "belongs to another container that shares the data folder", ""
        case "orphaned" | "gone":
            return "ok", "nothing of it is left but its file, which the next start removes", ""


def _exit(each: RegisteredChild) -> str:
    if each.ended is None or (each.ended.code is None and each.ended.signal is None):
        return "an unknown exit"
    return f"signal {each.ended.signal}" if each.ended.code is None else f"exit code {each.ended.code}"
