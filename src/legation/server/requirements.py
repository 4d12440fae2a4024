"""Requirements of a start: all that is wrong with the settings is told at once, before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from legation.errors import ConfigInvalid
from legation.secret import Secret
from legation.server.address import is_loopback
from legation.settings import Settings, variable
from legation.store.secrets.sealer import BadKey, read_key

Role = Literal["the server", "the worker"]

MIN_TOKEN: Final = 16  # characters; `legation keys new` makes better ones
_NEEDED_WITH_POSTGRES: Final = ("vault_key", "token_pepper", "cookie_key")
_NOTIFY: Final = (
    "notify_webhook",
    "notify_webhook_secret",
    "notify_command",
    "notify_smtp",
    "notify_from",
    "notify_to",
)


# Of each role on Postgres, beyond the keys: what nobody can guess, and must not.
_NEEDED_BY: Final[dict[Role, dict[str, str]]] = {
    "the server": {},
    "the worker": {
        "worker_id": "name it, the same at every start, and no other worker so",
        "report_url": "runners report to a server; give its address",
    },
}


def check(settings: Settings, what: Role = "the server", *, no_token: bool = False) -> None:
    """Refuse a start of a role with all that it lacks."""
    problems = list(_problems(settings, what, no_token=no_token))
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(f"cannot start {what}; correct this:{lines}", {"problems": problems})


def _problems(settings: Settings, what: Role, *, no_token: bool) -> Iterator[str]:
    if no_token and settings.database_url is not None:
        yield "--no-token is for one server alone: others of its database would not know such a caller; leave it out"
    if what == "the worker" and settings.database_url is None:
        yield (
            f"{variable('database_url')} is missing: a file has one owner, and `legation up` works on its own runs"
        )
    for name, remedy in _NEEDED_BY[what].items():
        if getattr(settings, name) is None:
            yield f"{variable(name)} is missing: {remedy}"
    if settings.database_url is not None:
        for name in _NEEDED_WITH_POSTGRES:
            if getattr(settings, name) is None:
                yield (
                    f"{variable(name)} is missing: servers that share a database share their keys; make one with "
                    "`legation keys new`"
                )
    yield from _bad_keys(settings)
    if settings.token is not None and len(settings.token.reveal()) < MIN_TOKEN:
        yield f"token is shorter than {MIN_TOKEN} characters: make one with `legation keys new`"
    if settings.token is None and not no_token and not is_loopback(settings.host):
        yield (
            f"{variable('token')} is missing: others can reach {settings.host}; make one with `legation keys new`, listen "
            "on 127.0.0.1, or start `legation server` with --no-token in a sandbox that only your programs reach"
        )
    if what == "the server":
        for folder in settings.folders:
            if not folder.is_dir():
                yield f"folders has {folder}, which is no folder: make it, or correct {_named(settings)}"
    if settings.mesh_port and settings.mesh_port == settings.port:
        yield f"mesh_port is {settings.mesh_port}, as port is: choose another for one of them"
    if any(getattr(settings, name) for name in _NOTIFY):
        from legation.approvals.notify import problems  # not for those who are not told

        yield from problems(settings)
    for given, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if getattr(settings, given) is None and getattr(settings, other) is not None:
            yield f"{given} is missing: {other} is of no use without it"
    for name in ("tls_cert", "tls_key"):
        path = getattr(settings, name)
        if path is not None and not os.access(path, os.R_OK):
            yield f"{name} cannot be read: check {path}"
    if (
        settings.tls_cert is not None
        and settings.tls_key is not None
        and not _fit(settings.tls_cert, settings.tls_key)
    ):
        yield "tls_cert and tls_key are no certificate and its key, in PEM: correct one of them"


def _named(settings: Settings) -> str:
    return "--folder" if settings.source("folders").startswith("flag") else variable("folders")


def _bad_keys(settings: Settings) -> Iterator[str]:
    for name in _NEEDED_WITH_POSTGRES:
        given: Secret | None = getattr(settings, name)
        for text in given.reveal().split(",") if given is not None else ():
            try:
                read_key(text, name)
            except BadKey as fault:
                yield f"{variable(name)} {fault}"


def _fit(certificate: Path, key: Path) -> bool:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certificate, key, password=""
        )  # never asks for one
    except (OSError, ValueError):  # an SSLError is an OSError
        return not (os.access(certificate, os.R_OK) and os.access(key, os.R_OK))  # told as such
    return True
