"""An agent as the catalogue knows it: what it is called, how it can be driven, how one signs in to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from legation.agents.beginning import AskingModes, Beginning
from legation.agents.driver import DriverName

NOT_A_KEY: Final = "not-a-key"
_KEY: Final = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Packaged:
    """A program in an installed agent, or of that name on PATH.

    Paths are templates below the version's folder (`Target.fill`). With `node` it is a script for that version of
    Node or a later one. `helpers` are variables that name another program of the agent, by path and by name.
    """

    inside: str
    on_path: str
    node: int | None = None
    helpers: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Direct:
    """A command line that needs no installation: built in, or the owner's own."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stance:
    """What is added to a way because of the folder. `{folder}` in an argument is its path, as a text of JSON and TOML."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    beginning: Beginning = field(default_factory=Beginning)


@dataclass(frozen=True, slots=True)
class Way:
    """`env` is set whenever it starts so: nothing of it updates itself or reports to its maker.

    `untrusted` makes it ignore its own configuration in the folder, `trusted` makes it heed that. `obeys` are files,
    as patterns below the folder or one above it in the same repository, that it acts on whatever it is told: where
    there is one, it is not started in a folder that is not trusted. `executing` are the arguments with which one that
    does what its prompts say, word for word, also runs commands.
    """

    driver: DriverName
    program: Packaged | Direct
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    trusted: Stance = field(default_factory=Stance)
    untrusted: Stance = field(default_factory=Stance)
    obeys: tuple[str, ...] = ()
    executing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignIn:
    """The agent's own sign-in, in its home: a program with arguments at the terminal, or a method of ACP's.

    `files` lie in the home afterwards.
    """

    files: tuple[str, ...]
    program: Packaged | None = None
    args: tuple[str, ...] = ()
    method: str | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`credentials` are variables that it takes a key from; `synonyms` those that people set and it does not read, with
    the one that it does. `key_methods` are for an agent that takes the key of a variable only when told so, by ACP's
    `authenticate`. `passes` are variables of ours that it is given: a key without the address that it is for would go elsewhere.

    `placeholders` let it start in a clean home without reaching anything: for the doctor, and to be asked what it
    offers.
    """

    name: str
    title: str
    way: Way
    aliases: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    key_methods: Mapping[str, str] = field(default_factory=dict)
    passes: tuple[str, ...] = ()
    sign_in: SignIn | None = None
    needs_sign_in: bool = True
    placeholders: Mapping[str, str] = field(default_factory=dict)
    origin: Literal["known", "built in", "custom"] = "known"
    modes: AskingModes = field(default_factory=AskingModes)  # where their names do not say whether it asks
    fs: bool = True  # whether it is offered to have files read and written for it; some cannot live with that
    shares: str | None = None  # the agent whose installation it is a part of

    @property
    def package(self) -> str:
        """The name that it is locked and installed by."""
        return self.shares or self.name

    @property
    def stand_ins(self) -> dict[str, str]:
        """The placeholders, and one for every key that the owner's stanza names."""
        keys = [name for name in self.passes if self.is_key(name)]
        return {**dict.fromkeys(keys, NOT_A_KEY), **self.placeholders}

    def is_key(self, credential: str) -> bool:
        """Whether its value is a secret: the owner's stanza may name anything."""
        return credential not in self.passes or _KEY.search(credential) is not None
