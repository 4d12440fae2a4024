"""The message that is being said: chunks become one item, with a delta each and the whole of it at its end."""

from typing import TypeAlias

import msgspec

from legation.wire.acp.content import ContentBlock, Text
from legation.wire.universal import shapes
from legation.wire.universal.outbox import Outbox
from legation.wire.universal.parts import part_of

Pieces: TypeAlias = "tuple[Pieces, str | shapes.Part] | None"
"""Last first, each with those before it: a copy shares them, however long the message is."""


class Speaker(msgspec.Struct, frozen=True):
    kind: shapes.ItemKind
    role: shapes.Role
    thinks: bool = False


USER = Speaker("message", "user")
AGENT = Speaker("message", "assistant")
THOUGHT = Speaker("message", "assistant", thinks=True)
SUMMARY = Speaker("system", "system")


class Speech:
    __slots__ = ("_item_id", "_native_id", "_pieces", "_speaker")

    def __init__(self) -> None:
        self._speaker: Speaker | None = None  # nobody speaks
        self._native_id: str | None = None
        self._item_id = ""
        self._pieces: Pieces = None

    def copy(self) -> "Speech":
        other = Speech()
        other._speaker, other._native_id = self._speaker, self._native_id
        other._item_id, other._pieces = self._item_id, self._pieces
        return other

    def say(self, out: Outbox, speaker: Speaker, native_id: str | None, block: ContentBlock) -> None:
        if self._speaker is not speaker or self._native_id != native_id:
            self.end(out)
            self._begin(out, speaker, native_id)
        if type(block) is Text:
            self._pieces = (self._pieces, block.text)
            out.delta(self._item_id, native_id, block.text)
        else:
            self._pieces = (self._pieces, part_of(block))
            out.delta(self._item_id, native_id, "")

    def end(self, out: Outbox) -> None:
        speaker = self._speaker
        if speaker is None:
            return
        content = tuple(_joined(self._pieces, thinks=speaker.thinks))
        out.emit("item.completed", self._item(speaker, content, "completed"), synthetic=True)
        self._speaker = self._pieces = None

    def _begin(self, out: Outbox, speaker: Speaker, native_id: str | None) -> None:
        self._speaker, self._native_id, self._item_id = speaker, native_id, out.new_item()
        # Whoever shows a text as it comes must know at once whether it is a thought.
        content = (shapes.Reasoning(""),) if speaker.thinks else ()
        out.emit("item.started", self._item(speaker, content, "in_progress"), synthetic=True)

    def _item(
        self, speaker: Speaker, content: tuple[shapes.Part, ...], status: shapes.ItemStatus
    ) -> shapes.ItemEvent:
        item = shapes.Item(self._item_id, self._native_id, None, speaker.kind, speaker.role, content, status)
        return shapes.ItemEvent(item)


def _joined(pieces: Pieces, *, thinks: bool) -> list[shapes.Part]:
    """Texts that follow each other are one."""
    found: list[shapes.Part] = []
    texts: list[str] = []

    def close_text() -> None:
        if texts:
            text = "".join(reversed(texts))
            found.append(shapes.Reasoning(text) if thinks else shapes.Text(text))
            texts.clear()

    while pieces is not None:
        pieces, piece = pieces
        if isinstance(piece, str):
            texts.append(piece)
        else:
            close_text()
            found.append(piece)
    close_text()
    return found[::-1]
