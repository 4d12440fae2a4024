"""What Codex would find in its own home and act on unasked, and how it is kept from that.

Codex runs what `~/.codex/config.toml` names (`notify`, MCP servers, a provider's program for keys), obeys the allow rules in
`~/.codex/rules` and sets the variables of `~/.codex/.env`; the app server has no option against any of it. The home is the
agent's: what was allowed there once, as a mere change of a file, must not decide what is run without asking ever after.
Nothing of ours and nothing of a sign-in writes there, so that where such a file is, no thread is opened.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from legation.errors import Forbidden

# Members of the configuration that run and allow nothing. What is said of projects each thread says anew.
_HARMLESS: Final = frozenset(
    (
        "cli_auth_credentials_store",
        "history",
        "model",
        "model_reasoning_effort",
        "model_reasoning_summary",
        "model_verbosity",
        "notice",
        "personality",
        "projects",
        "service_tier",
        "tui",
    )
)


def refuse_orders(env: Mapping[str, str]) -> None:
    """`env` is what Codex is started with. Blocks."""
    found = next(_orders(Path(env.get("CODEX_HOME") or Path(env["HOME"], ".codex"))), None)
    if found is not None:
        raise Forbidden(
            f"cannot start Codex: {found} would decide what it runs and allows unasked; look at it and remove it, and give"
            " settings of your own as `-c` arguments"
        )


def _orders(folder: Path) -> Iterator[str]:
    yield from (str(each) for each in sorted(folder.glob("rules/*")))
    if (folder / ".env").exists():
        yield str(folder / ".env")
    file = folder / "config.toml"
    try:
        members = tomllib.loads(file.read_text()).keys()
    except FileNotFoundError:
        return
    except (OSError, ValueError):
        yield str(file)
        return
    yield from (f"{name!r} in {file}" for name in sorted(members - _HARMLESS))
