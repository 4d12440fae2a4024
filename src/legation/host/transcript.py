"""What was said in a session, told by its record or by an agent that loads it.

An agent tells a history in other pieces than it once came in: chunks joined, a call with its updates in one, prompts as
messages of the user, thoughts left out. So the two are compared by what they say: `Account`.

INV-R1  An account takes no more memory than the calls that it names: of what is said there are digests.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final

import msgspec

from legation.store.stream import Stream
from legation.wire import jsontext
from legation.wire.events import UNRECOGNIZED, Draft, Event
from legation.wire.lifecycle import PromptStarted

LONGEST: Final = 1024 * 1024  # bytes of an event that is looked into
STEP: Final = 500  # events that are folded before others have their turn,
STEP_BYTES: Final = 256 * 1024  # or so many bytes of them: a few milliseconds
MOST_ESCAPED: Final = 8  # bytes of JSON for one of a text, and what stands around that
CUT: Final = "[what came before is left out]"

_PROMPT: Final = PromptStarted.event_type()
_USER, _AGENT = "user-message-chunk", "agent-message-chunk"
_PLANS: Final = frozenset(("plan", "plan-update", "plan-removed"))
_CALLS: Final = frozenset(("tool-call", "tool-call-update"))
_OTHERS: Final = frozenset(("compaction-summary-chunk", UNRECOGNIZED))
# All else is our own, or says how the agent is set up, what it thinks or what it costs: that is no history.
_COUNTED: Final = _CALLS | _OTHERS | _PLANS | {_PROMPT, _USER, _AGENT}
_OF_ITS_OWN: Final = frozenset((_PROMPT, "tool-call"))  # never a piece of what was said before
_MARKS: Final = re.compile(r"\[(?=(?:user|agent|tool)\])|<(?=/?transcript>)", re.IGNORECASE)
_HEADED: Final = len("[agent]\n\n\n")  # characters around what somebody said
_NOT_OF_A_CALL: Final = frozenset(("sessionUpdate", "toolCallId", "_meta"))

Row = Event | Draft


def update_of(row: Row) -> Mapping[str, object] | None:
    """What the agent said, whatever stands around it."""
    return _read(row) or None


def _read(row: Row) -> dict[str, object]:
    """Nothing of what cannot be read, or would hold up others while it is."""
    try:
        value = jsontext.read(row.payload) if len(row.raw) <= LONGEST else None
    except jsontext.READ_ERRORS:
        return {}
    return value if isinstance(value, dict) else {}


def _prompt_of(row: Row) -> Sequence[object]:
    blocks = _read(row).get("prompt")
    return blocks if isinstance(blocks, list) else [row.raw.decode(errors="replace")]


class Account:
    """Fed with rows in order; `end` it before it is looked at. `updates` is how many of them it is about."""

    def __init__(self) -> None:
        self.updates = 0
        self._prompts = 0  # messages of the user, one after the other
        self._agent_size = 0  # at least: of what is not looked into it is not known
        self._others = 0
        self._user, self._agent, self._other = blake2b(), blake2b(), blake2b()
        self._calls: dict[str, dict[str, bytes]] = {}
        self._plan: bytes | None = None
        self._unheard: Sequence[object] | None = None  # a prompt that the agent may still repeat as a message
        self._in_user = False

    def add(self, row: Row) -> None:
        if row.type not in _COUNTED:
            return
        self.updates += 1
        update = update_of(row)
        if row.type == _PROMPT:
            self._add_prompt(row)
        elif row.type == _USER and update is not None:
            self._unheard = None
            self._add_user([update.get("content")])
        else:
            self.end()
            self._in_user = False
            self._add_said(row, update)

    def _add_prompt(self, row: Row) -> None:
        self.end()
        self._unheard = _prompt_of(row)

    def _add_user(self, blocks: Iterable[object]) -> None:
        self._prompts += not self._in_user
        self._in_user = True
        for block in blocks:
            self._user.update(_text_of(block))

    def _add_said(self, row: Row, update: Mapping[str, object] | None) -> None:
        if update is None or row.type in _OTHERS:
            self._other.update(_digest(update if update is not None else row.payload))
            if row.type == _AGENT:
                self._agent_size += len(row.raw) // MOST_ESCAPED
            else:
                self._others += 1
        elif row.type == _AGENT:
            text = _text_of(update.get("content"))
            self._agent_size += len(text)
            self._agent.update(text)
        elif row.type in _PLANS:
            self._plan = _digest({name: value for name, value in update.items() if name != "_meta"})
        else:
            told = {name: _digest(value) for name, value in update.items() if name not in _NOT_OF_A_CALL}
            self._calls.setdefault(str(update.get("toolCallId")), {}).update(told)

    def end(self) -> None:
        unheard, self._unheard = self._unheard, None
        if unheard is not None:
            self._add_user(unheard)

    def has_all_of(self, told: Account) -> bool:
        """`told` says the same, or leaves out what agents leave out: the user's messages, the plan, parts of a call."""
        return (
            self._agent.digest() == told._agent.digest()
            and (not told._prompts or self._user.digest() == told._user.digest())
            and self._other.digest() == told._other.digest()
            and (told._plan is None or self._plan == told._plan)
            and [*self._calls] == [*told._calls]
            and all(parts.items() <= self._calls[name].items() for name, parts in told._calls.items())
        )

    def is_longer_than(self, told: Account) -> bool:
        return (
            self._agent_size > told._agent_size
            or len(self._calls) > len(told._calls)
            or self._prompts > told._prompts > 0
            or (self._says_as_much_as(told) and self._others > told._others)
        )

    def _says_as_much_as(self, told: Account) -> bool:
        return self._agent_size == told._agent_size and len(self._calls) == len(told._calls)


async def account_of(rows: AsyncIterator[Sequence[Row]]) -> Account:
    account = Account()
    async for row in _in_turn(rows):
        account.add(row)
    account.end()
    return account


async def _in_turn(batches: AsyncIterator[Sequence[Row]]) -> AsyncIterator[Row]:
    """One row after the other; a long history is no reason for others to wait."""
    count = size = 0
    async for batch in batches:
        for row in batch:
            yield row
            count, size = count + 1, size + len(row.raw)
            if count >= STEP or size >= STEP_BYTES:
                count = size = 0
                await asyncio.sleep(0)


async def account_of_replay(replay: Sequence[Draft]) -> Account:
    async def rows() -> AsyncIterator[Sequence[Row]]:
        yield replay

    return await account_of(rows())


async def account_of_stream(stream: Stream) -> Account:
    """Of what readers see: the newest generation."""
    return await account_of(stream.subscribe(follow=False).batches())


async def transcript_of(stream: Stream, limit: int) -> str:
    """The last of it as text, about so many characters at most: who said what, and which tools were used."""
    told: deque[tuple[str, deque[str]]] = deque()
    size, cut = 0, False
    async for row in _in_turn(stream.subscribe(follow=False).batches()):
        who, text = _words_of(row)
        if not text:
            continue
        if row.type in _OF_ITS_OWN or not told or told[-1][0] != who:
            told.append((who, deque()))
            size += _HEADED
        told[-1][1].append(text)
        size += len(text)
        while size > limit and (len(told) > 1 or len(told[0][1]) > 1):
            size -= len(told[0][1].popleft())
            cut = True
            if not told[0][1]:
                told.popleft()
                size -= _HEADED
    if size > limit:
        [(who, [text])] = told
        told, cut = deque([(who, deque((text[len(text) - limit + _HEADED :],)))]), True
    said = "\n\n".join(f"[{who}]\n{_quoted(''.join(pieces))}" for who, pieces in told)
    return f"{CUT}\n\n{said}" if cut else said


def _quoted(text: str) -> str:
    """No word of anybody's can be taken for another's, or for the end of what is told."""
    return _MARKS.sub(r"\\\g<0>", text)


def _words_of(row: Row) -> tuple[str, str]:
    """Who speaks, and what; nothing where a row has no words."""
    if row.type == _PROMPT:
        return "user", "\n".join(map(_shown, _prompt_of(row)))
    if row.type not in (_USER, _AGENT, "tool-call"):
        return "", ""
    update = update_of(row) or {}
    if row.type == "tool-call":
        return "tool", str(update.get("title") or "")
    return "user" if row.type == _USER else "agent", _shown(update.get("content"))


def _shown(block: object) -> str:
    if not isinstance(block, dict):
        return ""
    return str(block.get("text") or block.get("uri") or "")


def _text_of(block: object) -> bytes:
    """Of a text its bytes, so that it does not matter how it was cut; of anything else the value."""
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        text: str = block["text"]
        return text.encode(errors="surrogatepass")
    return _digest(block)


def _digest(value: object) -> bytes:
    return blake2b(value if isinstance(value, bytes) else _canonical(value), digest_size=16).digest()


def _canonical(value: object) -> bytes:
    try:
        return msgspec.json.encode(value, order="sorted")
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(value, sort_keys=True).encode()
