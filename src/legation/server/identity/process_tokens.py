"""Tokens that live as long as the process: the one of `--token`, and the one that the CLI finds in `server.json`.

They are in no table, and only their hashes are in memory. Whoever has one is the first workspace's owner, and is recorded
as that person: `via` says by which credential. What the process does by itself is its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from legation.secret import Secret
from legation.store.identity.bootstrap import Installed
from legation.store.identity.credential import CredentialHash, new_token
from legation.store.keys import Keys
from legation.wire.principal import SCOPES, Principal

NAME: Final = "server"  # what the audit log calls them


class ProcessTokens:
    def __init__(self, keys: Keys, installed: Installed) -> None:
        self._hashes = CredentialHash(keys.pepper)
        self._known: set[bytes] = set()
        self.principal: Final = Principal(
            kind="process",
            id=NAME,
            workspace=installed.workspace,
            scopes=SCOPES,
            level=2,
            user=installed.user,
        )  # for what the process does by itself
        self.owner: Final = replace(self.principal, kind="user", id=installed.user, via=NAME)

    def add(self, token: Secret | None = None) -> Secret:
        """The token itself; a new one if none is given."""
        token = token or new_token()
        self._known.add(self._hashes.token(token.reveal()))
        return token

    def find(self, hash: bytes) -> Principal | None:  # noqa: A002
        return self.owner if hash in self._known else None
