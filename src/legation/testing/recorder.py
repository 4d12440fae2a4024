"""A launcher that writes down what its children are told and say: how fixtures of real agents are made.

    recorder = Recorder(ProcessLauncher(), folder)   # give it to whoever starts the agent

A recording of one child is one JSON object a line, `{"t", "dir", "msg"}`. `dir` is `start` (argv, env, cwd), `in`, `out`,
`err`, `note` or `exit` (rc, minus the number of a signal). `msg` is the line's JSON, or its text where it is none; `t` are
seconds since the start.

INV-R1  The same thing gets the same placeholder throughout a recording, so that what belonged together still does.
INV-R2  No value of a variable that is named like a secret is in it.
INV-R3  The child behaves as without it: nothing that it reads or writes is changed.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from legation.errors import InvalidParams
from legation.proc import Child, Command, Exit, Launcher, Pipes
from legation.wire import jsontext

STDIN_CLOSED: Final = "stdin closed"  # notes on what was done to the child that is no line
STOPPED: Final = "stop"
OUTPUT_ENDED: Final = "EOF"
BY_ITSELF: Final = "by itself"  # it ended, and neither was done to it


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    t: float
    dir: str
    msg: object

    def line(self) -> bytes:
        return jsontext.write({"t": self.t, "dir": self.dir, "msg": self.msg}) + b"\n"


def read_recording(path: Path) -> tuple[RecordedEntry, ...]:
    return tuple(_entry(line, path) for line in path.read_bytes().splitlines() if line.strip())


def message_of(line: bytes) -> object:
    """JSON where it is an object, else text."""
    try:
        found = jsontext.read(line)
    except jsontext.READ_ERRORS:
        found = None
    return found if isinstance(found, dict) else line.decode("utf-8", "replace")


async def in_blocks(batches: AsyncIterator[list[bytes]]) -> list[bytes]:
    """The next lines of a child as `Child.blocks` gives them."""
    async for lines in batches:
        if lines:
            return [b"\n".join(lines)]
    return []


def lines_of(messages: Iterable[object]) -> list[bytes]:
    return [each.encode() if isinstance(each, str) else jsontext.write(each) for each in messages]


def _entry(line: bytes, path: Path) -> RecordedEntry:
    found = message_of(line)
    if not isinstance(found, Mapping) or not {"dir", "msg"} <= found.keys():
        raise InvalidParams(
            f"cannot read the recording {path.name}: a line of it is no entry; record it again"
        )
    moment = found.get("t", 0.0)
    return RecordedEntry(
        float(moment) if isinstance(moment, int | float) else 0.0, str(found["dir"]), found["msg"]
    )


# Which of a driver's own words stand for which in a recording: it chooses ids anew, and its agent repeats them.

_ID: Final = re.compile(r"(^|_)(uu)?id$|[a-z](Uui|I)d$")
_NAMES: Final = ("type", "method", "subtype")
_INNER: Final = ("request", "response")
_SHORTEST_INSIDE: Final = 8  # characters of an id that is looked for inside longer texts, too


def kind_of(message: object) -> tuple[str, ...]:
    """The kind of a line: its method, type and subtype, or that it is an answer."""
    if not isinstance(message, Mapping):
        return ("text",)
    words = [str(message[name]) for name in _NAMES if isinstance(message.get(name), str)]
    for name in _INNER:
        inner = message.get(name)
        if isinstance(inner, Mapping) and isinstance(inner.get("subtype"), str):
            words.append(str(inner["subtype"]))
    if words:
        return tuple(words)
    return ("error",) if "error" in message else ("result",) if "result" in message else ("object",)


class Correspondence:
    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = [
            (re.compile(rf"(?<![\w./-]){re.escape(word)}(?![\w.-])"), place) for word, place in places.items()
        ]
        self._words: dict[str, str] = {}
        self._answers: dict[object, object] = {}  # ids of requests, which may be numbers

    def learn(self, recorded: object, written: object) -> None:
        if isinstance(recorded, Mapping) and isinstance(written, Mapping) and "id" in recorded:
            self._answers[recorded["id"]] = written.get("id")
        for old, new in _ids(recorded, written):
            self._words[old] = new

    def put(self, message: object) -> object:
        found = self._put(message)
        if (
            isinstance(found, dict)
            and isinstance(message, Mapping)
            and "method" not in found
            and "id" in found
        ):
            found["id"] = self._answers.get(message["id"], message["id"])
        return found

    def _put(self, message: object) -> object:
        match message:
            case str():
                return self._text(message)
            case list():
                return [self._put(each) for each in message]
            case dict():
                return {name: self._put(each) for name, each in message.items()}
            case _:
                return message

    def _text(self, text: str) -> str:
        if text in self._words:
            return self._words[text]
        for old, new in self._words.items():
            if len(old) >= _SHORTEST_INSIDE:
                text = text.replace(old, new)
        for word, place in self._places:
            text = word.sub(place.replace("\\", r"\\"), text)
        return text


def _ids(recorded: object, written: object) -> Iterator[tuple[str, str]]:
    """Pairs of different texts under the same name, where the name is an id's."""
    if isinstance(recorded, Mapping) and isinstance(written, Mapping):
        for name, old in recorded.items():
            new = written.get(name)
            if isinstance(old, str) and isinstance(new, str):
                if old != new and _ID.search(str(name)):
                    yield old, new
            else:
                yield from _ids(old, new)
    elif isinstance(recorded, list) and isinstance(written, list):
        for old, new in zip(recorded, written, strict=False):
            yield from _ids(old, new)


# What a recording says instead of this machine's and this run's own: folders, ports, ids, keys, long texts.

LONGEST: Final = 400  # characters of one text that are kept
ELLIPSIS: Final = "…"
HIDDEN: Final = "***"

_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
_UUID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
# `toolu_01A…`, `ses_…`: a short word, then something long with a digit in it, as no word of a language is.
_MADE_UP = re.compile(r"\b([A-Za-z]{1,10}[_-])(?=[0-9A-Za-z]*\d)[0-9A-Za-z]{10,}\b")
_PORT = re.compile(r"\b(127\.0\.0\.1|localhost):\d{2,5}\b")
_SHORTEST_SECRET = 6  # a shorter one would turn up by chance


class Neutral:
    """`places` are folders and what stands for them: `{"/home/me/work": "/w"}`. The longest is replaced first."""

    def __init__(self, places: Mapping[str, str], env: Mapping[str, str], longest: int = LONGEST) -> None:
        secrets = {value: HIDDEN for name, value in env.items() if _is_secret(name, value)}
        known = {**{place: word for place, word in places.items() if len(place) > 1}, **secrets}
        self._known = sorted(known.items(), key=lambda pair: -len(pair[0]))
        self._longest = longest
        self._ids: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def message(self, message: object) -> object:
        match message:
            case str():
                return self._cut(self.text(message))
            case list() | tuple():
                return [self.message(each) for each in message]
            case dict():
                return {self.text(str(name)): self.message(each) for name, each in message.items()}
            case _:
                return message

    def text(self, text: str) -> str:
        for found, word in self._known:
            text = text.replace(found, word)
        text = _PORT.sub(r"\1:0", text)
        text = _UUID.sub(lambda match: self._uuid(match[0]), text)
        return _MADE_UP.sub(lambda match: self._id(match[0], match[1]), text)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return {
            name: HIDDEN if _SECRET.search(name) else str(self.message(value)) for name, value in env.items()
        }

    def _cut(self, text: str) -> str:
        return text if len(text) <= self._longest else text[: self._longest] + ELLIPSIS

    def _uuid(self, found: str) -> str:
        if found not in self._ids:
            self._ids[found] = f"00000000-0000-4000-8000-{self._count(''):012}"
        return self._ids[found]

    def _id(self, found: str, prefix: str) -> str:
        if found not in self._ids:
            self._ids[found] = f"{prefix}{self._count(prefix)}"
        return self._ids[found]

    def _count(self, prefix: str) -> int:
        self._counts[prefix] = self._counts.get(prefix, 0) + 1
        return self._counts[prefix]


def _is_secret(name: str, value: str) -> bool:
    return len(value) >= _SHORTEST_SECRET and _SECRET.search(name) is not None


class Recorder:
    """One file a child, `<name>-1.jsonl` and so on in `folder`; `recordings` are those made so far.

    The command's folder is `/w` in them, its HOME `/h`, its TMPDIR `/t`, the folder of its program `/a`.
    """

    def __init__(self, launcher: Launcher, folder: Path, *, longest: int = LONGEST) -> None:
        self._launcher = launcher
        self._folder = folder
        self._longest = longest
        self.recordings: list[Path] = []

    async def spawn(self, command: Command, pipes: Pipes | None = None) -> Child:
        self._folder.mkdir(parents=True, exist_ok=True)
        count = sum(path.name.startswith(f"{command.name}-") for path in self.recordings) + 1
        path = self._folder / f"{command.name}-{count}.jsonl"
        tape = _Tape(path, command, self._longest)
        own = pipes or Pipes()

        def complained(lines: list[bytes]) -> None:
            tape.lines("err", lines)
            if own.on_stderr is not None:
                own.on_stderr(lines)

        child = await self._launcher.spawn(command, replace(own, on_stderr=complained))
        self.recordings.append(path)
        return _RecordedChild(child, tape)


class _Tape:
    def __init__(self, path: Path, command: Command, longest: int) -> None:
        self._path = path
        self._began = time.monotonic()
        self._neutral = Neutral(_places(command), command.env, longest)
        self._unfinished = b""
        self._left = False
        path.write_bytes(b"")
        env = self._neutral.environment(command.env)
        argv, cwd = self._neutral.message(list(command.argv)), self._neutral.text(str(command.cwd))
        self._add("start", {"argv": argv, "env": env, "cwd": cwd})

    def lines(self, way: str, lines: list[bytes]) -> None:
        for line in lines:
            self._add(way, self._neutral.message(message_of(line)))

    def written(self, data: bytes) -> None:
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        self.lines("in", lines)

    def left(self, how: str) -> None:
        self._left = True
        self.note(how)

    def note(self, text: str) -> None:
        if self._unfinished:
            self.lines("in", [self._unfinished])
            self._unfinished = b""
        self._add("note", text)

    def exited(self, exit_: Exit) -> None:
        if not self._left:
            self.note(BY_ITSELF)
        self._add("exit", {"rc": -exit_.signal if exit_.signal is not None else exit_.code})

    def _add(self, way: str, message: object) -> None:
        entry = RecordedEntry(round(time.monotonic() - self._began, 3), way, message)
        with self._path.open("ab") as file:
            file.write(entry.line())


class _RecordedChild(Child):
    """Another child with an ear at it; it has nothing of its own but that."""

    def __init__(self, child: Child, tape: _Tape) -> None:
        self._child = child
        self._tape = tape
        self._blocks = self._heard()
        self.name, self.pid, self.started = child.name, child.pid, child.started
        self._ending = asyncio.create_task(self._end(), name=f"legation-recorder-{child.pid}")

    async def _end(self) -> Exit:
        found = await self._child.wait()
        self.survivors = self._child.survivors
        self._tape.exited(found)
        return found

    async def _heard(self) -> AsyncIterator[list[bytes]]:
        async for lines in self._child.lines():
            self._tape.lines("out", lines)
            yield lines
        self._tape.note(OUTPUT_ENDED)

    def lines(self) -> AsyncIterator[list[bytes]]:
        return self._heard()

    async def blocks(self) -> list[bytes]:
        return await in_blocks(self._blocks)

    @property
    def buffered(self) -> int:
        return self._child.buffered

    def write(self, data: bytes) -> None:
        self._tape.written(data)
        self._child.write(data)

    @property
    def unsent(self) -> int:
        return self._child.unsent

    async def drain(self, timeout: float | None = None) -> None:
        await self._child.drain(timeout)

    def close_stdin(self) -> None:
        self._tape.left(STDIN_CLOSED)
        self._child.close_stdin()

    def stderr_tail(self) -> str:
        return self._child.stderr_tail()

    @property
    def output_ended(self) -> bool:
        return self._child.output_ended

    def unfinished(self) -> bytes:
        return self._child.unfinished()

    async def ends_within(self, seconds: float) -> bool:
        return await self._child.ends_within(seconds)

    async def wait(self) -> Exit:
        return await asyncio.shield(self._ending)

    async def stop(self, grace: float = 5.0) -> Exit:
        if not self._ending.done():
            self._tape.left(STOPPED)
        await self._child.stop(grace)
        return await self.wait()


def _places(command: Command) -> dict[str, str]:
    """Folders as they are named and as they really are: agents tell either."""
    known = {
        sys.prefix: "/py",
        str(Path(command.argv[0]).parent) if command.argv else "": "/a",
        command.env.get("TMPDIR", ""): "/t",
        command.env.get("HOME", ""): "/h",
        str(command.cwd): "/w",
    }
    named = {place: word for place, word in known.items() if place.startswith("/")}
    return {**{os.path.realpath(place): word for place, word in named.items()}, **named}
