"""The page docs/reference/settings.md."""

from __future__ import annotations

from typing import Final

from legation.settings.fields import FIELDS, flag, variable


def reference() -> str:
    """The page docs/reference/settings.md; a test keeps the two equal."""
    rows = [
        f"| `{name}` | {f'`{flag(name)}`' if has_flag else '-'} | `{variable(name)}` | "
        f"{f'`{default}`' if default else 'none'} | {description} |"
        for name, default, _, description, has_flag in FIELDS
    ]
    return "\n".join([_PAGE_HEAD, *rows, ""])


_PAGE_HEAD: Final = """\
# Settings

A setting is taken from the first of these that names it:

1. the flag of the command,
2. the environment variable,
3. the key in `legation.toml`: the file that `LEGATION_CONFIG` names, else
   `$XDG_CONFIG_HOME/legation/legation.toml`, else `~/.config/legation/legation.toml`,
4. the default.

The current folder is never searched for `legation.toml`: a repository must not configure the program that
watches over it. Unknown names and unusable values are refused, all of them in one error, also those that a
stronger source overrules. A command takes the flags that matter to it; `legation doctor` shows every value
and where it came from.

Durations are seconds, or a text with a unit: `"500ms"`, `"90s"`, `"10m"`, `"1h"`, `"2d"`. Sizes are bytes, or a
text with a unit: `"64KiB"`, `"32MiB"`, `"1GiB"` (powers of 1024) or `"64kB"`, `"32MB"`, `"1GB"` (of 1000).
Paths are absolute or start with `~/`; only a flag may be relative to the current folder.

| key | flag | variable | default | meaning |
|---|---|---|---|---|"""
