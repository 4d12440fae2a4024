"""Where the agent works, as it tells the model: tools that want whole paths are given them."""

from __future__ import annotations

import re

from legation.testing.model.request import ModelRequest

# How Claude Code, OpenCode, Codex and the Gemini CLI put it.
_SAID = re.compile(
    r"(?:working directory|working directory is|<cwd>|workspace root folder|workspace director(?:y|ies)"
    r"|currently working in the directory)\W{0,6}?(/[^\s<>\"'`]*)",
    re.IGNORECASE,
)


def completed(path: str, request: ModelRequest) -> str:
    """As it is where the request names no working directory."""
    if path.startswith("/"):
        return path
    said = next(
        filter(None, map(_SAID.search, (request.system, *(each.text for each in request.messages)))), None
    )
    return f"{said[1].rstrip('/.')}/{path}" if said else path
