"""What a session can be set to, and its history, as its own log tells them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, TypeAlias

from legation.server.acp.messages import ACP_TYPES
from legation.store.stream import Stream
from legation.wire import codec, jsontext
from legation.wire.events import Draft, Event
from legation.wire.lifecycle import PromptStarted, SetupFacts

_MODE: Final = "current-mode-update"
_OPTIONS: Final = "config-option-update"
_FACTS: Final = SetupFacts.event_type()
_SAID: Final = "user-message-chunk"

Told: TypeAlias = Event | Draft
"""An update: of the log, or one that stands for what the user said, or for how the agent is set up."""


class Setup:
    """The modes and options that an agent named, as a client is told of them when it opens the session."""

    def __init__(self) -> None:
        self._modes: dict[str, object] = {}
        self._options: object = None

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.type in (_MODE, _OPTIONS):
                self._note(_members(event.brief))
            elif event.type == _FACTS:
                facts = _members(event.brief)
                modes = facts.get("modes")
                self._note({**facts, **modes} if isinstance(modes, dict) else facts)

    def _note(self, update: Mapping[str, object]) -> None:
        for name in ("currentModeId", "availableModes"):
            if name in update:
                self._modes[name] = update[name]
        self._options = update.get("configOptions", self._options)

    def members(self) -> dict[str, object]:
        told: dict[str, object] = {}
        if "availableModes" in self._modes:
            told["modes"] = self._modes
        if self._options is not None:
            told["configOptions"] = self._options
        return told


def _members(raw: bytes) -> Mapping[str, object]:
    try:
        value = jsontext.read(raw)
    except jsontext.READ_ERRORS:
        return {}
    return value if isinstance(value, dict) else {}


async def past(stream: Stream, upto: int) -> AsyncIterator[list[Event]]:
    """Everything that is readable, up to that number."""
    async for batch in stream.subscribe(0).batches():
        yield [event for event in batch if event.seq <= upto]
        if batch[-1].seq >= upto:
            return


class History:
    """The updates of a log in order, with what the user said where the agent does not tell it itself."""

    def __init__(self) -> None:
        self._prompt: list[Told] = []  # of the turn whose agent has said nothing yet

    def updates(self, events: Sequence[Event]) -> list[Told]:
        told: list[Told] = []
        for event in events:
            if event.type == PromptStarted.event_type():
                told += self._rest()
                self._prompt = _said_by_user(event)
            elif event.type in ACP_TYPES:
                if event.type == _SAID:
                    self._prompt = []  # an agent that repeats the prompt
                told += [*self._rest(), event]
            elif event.type == _FACTS:
                told += [*self._rest(), *facts_told(event)]
        return told

    def rest(self) -> list[Told]:
        """At the end: a prompt that nothing has followed yet."""
        return self._rest()

    def _rest(self) -> list[Told]:
        prompt, self._prompt = self._prompt, []
        return prompt


def facts_told(event: Event) -> list[Told]:
    """As the updates that an agent would send of them. ACP's names only the mode that is chosen; those to choose from are
    added to it."""
    facts = _members(event.payload)
    modes, options = facts.get("modes"), facts.get("configOptions")
    told: list[Told] = []
    if isinstance(modes, dict):
        told.append(Draft(_MODE, jsontext.write({"sessionUpdate": "current_mode_update", **modes})))
    if options is not None:
        update = {"sessionUpdate": "config_option_update", "configOptions": options}
        told.append(Draft(_OPTIONS, jsontext.write(update)))
    return told


def _said_by_user(event: Event) -> list[Told]:
    blocks = _members(event.raw).get("prompt")
    if not isinstance(codec.decode(event), PromptStarted) or not isinstance(blocks, list):
        return []
    updates = [{"sessionUpdate": "user_message_chunk", "content": block} for block in blocks]
    return [Draft(_SAID, jsontext.write(update)) for update in updates]
