"""The publishers that are watched: where each is found, how it is read, and what to do where it is absent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from legation.agents.schemas import acp, amp, claude, codex, opencode
from legation.agents.schemas.inventory import Inventory
from legation.agents.schemas.places import Places
from legation.errors import InvalidParams


@dataclass(frozen=True, slots=True)
class Extractor:
    """`package` is what npm calls it."""

    name: str
    package: str
    find: Callable[[Places], Path | None]
    extract: Callable[[Path], Awaitable[Inventory]]

    @property
    def remedy(self) -> str:
        return f"install {self.package} with npm and name the folder with --in"


EXTRACTORS: Final = {
    each.name: each
    for each in (
        Extractor("acp", acp.PACKAGE, acp.find, acp.extract),
        Extractor("acp-unstable", acp.PACKAGE, acp.find, acp.extract_unstable),
        Extractor("amp", "@ampcode/cli", amp.find, amp.extract),
        Extractor("claude", claude.PACKAGE, claude.find, claude.extract),
        Extractor("codex", "@openai/codex", codex.find, codex.extract),
        Extractor("codex-experimental", "@openai/codex", codex.find, codex.extract_experimental),
        Extractor("opencode", "opencode-ai", opencode.find, opencode.extract),
    )
}


def extractor(name: str) -> Extractor:
    try:
        return EXTRACTORS[name]
    except KeyError:
        raise InvalidParams(
            f"cannot read the schema of {name!r}: it is not one of {', '.join(EXTRACTORS)}; name one of those"
        ) from None
