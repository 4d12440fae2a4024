"""The modes and models that an agent offers: asked of itself, kept, else as they were when it was locked.

What it offers without anybody signed in is asked for: an account may have more of them, or fewer.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from legation.agents.catalogue.catalogue import Catalogue
from legation.agents.catalogue.program import Start
from legation.agents.install.lock import OfferedChoice
from legation.errors import LegationError
from legation.proc import Launcher
from legation.store.datafolder import make_folder
from legation.wire.acp.methods import SessionSetup
from legation.wire.acp.updates import VARIANT_CATEGORIES, SelectChoice, SelectOption

Source = Literal["asked", "kept", "lock"]
"""`asked` now; `kept` from when this very program was asked; `lock`: as this Legation was made."""

_KEPT: Final = ".options"
_FORM: Final = 2  # of what is kept: with variants


class AgentOptions(msgspec.Struct, frozen=True):
    """`variants` are those of the default model; others may have their own. `problem` says why it could not be asked."""

    agent: str
    source: Source
    modes: tuple[OfferedChoice, ...]
    models: tuple[OfferedChoice, ...]
    default_mode: str | None = None
    default_model: str | None = None
    problem: str | None = None
    variants: tuple[OfferedChoice, ...] = ()
    default_variant: str | None = None


async def options_of(
    catalogue: Catalogue, name: str, *, again: bool = False, launcher: Launcher | None = None
) -> AgentOptions:
    """Starts the agent, unless it was asked before; `again` asks in any case."""
    from legation.agents.catalogue.probe import probe  # drivers are loaded by whoever starts an agent

    entry = catalogue.entry(name)
    try:
        start = catalogue.start(entry.name)
        kept = _OptionsFile(catalogue.data_dir, entry.name, start, catalogue.version_of(entry.name))
        if not again and (found := kept.read()):
            return found
        method = next(iter(entry.key_methods.values()), None)
        probed = await probe(
            entry.name, start, entry.stand_ins, session=True, key_method=method, launcher=launcher
        )
    except LegationError as error:
        return _locked(catalogue, entry.name, error.message)
    if probed.setup is None:
        return _locked(catalogue, entry.name, probed.refusal)
    found = read_options(entry.name, probed.setup)
    kept.write(found)
    return found


def read_options(agent: str, setup: SessionSetup) -> AgentOptions:
    """Modes and models stand among the config options; older agents have fields of their own for them."""
    modes, models = _Menu.of(setup, "mode"), _Menu.of(setup, "model")
    variants = next(filter(_has_choices, (_Menu.of(setup, each) for each in VARIANT_CATEGORIES)), _Menu())
    if not modes.choices and setup.modes:
        offered = setup.modes.available_modes
        modes = _Menu(tuple(OfferedChoice(each.id, each.name, each.description) for each in offered))
        modes = msgspec.structs.replace(modes, current=setup.modes.current_mode_id)
    if not models.choices:
        models = _older_models(setup.models)
    return AgentOptions(
        agent,
        "asked",
        modes.choices,
        models.choices,
        modes.current,
        models.current,
        variants=variants.choices,
        default_variant=variants.current,
    )


class _Menu(msgspec.Struct, frozen=True):
    choices: tuple[OfferedChoice, ...] = ()
    current: str | None = None

    @classmethod
    def of(cls, setup: SessionSetup, category: str) -> _Menu:
        for option in setup.config_options or ():
            if isinstance(option, SelectOption) and category in (option.category, option.id):
                return cls(tuple(_flat(option.options)), option.current_value)
        return cls()


def _has_choices(menu: _Menu) -> bool:
    return bool(menu.choices)


def _flat(choices: Iterable[SelectChoice]) -> Iterator[OfferedChoice]:
    for each in choices:
        if each.value is not None:
            yield OfferedChoice(each.value, each.name, each.description)
        yield from _flat(each.options)


def _older_models(models: Any) -> _Menu:
    try:
        found = msgspec.convert(models, type=_OlderModels)
    except msgspec.ValidationError:
        return _Menu()
    choices = tuple(
        OfferedChoice(each.modelId, each.name, each.description) for each in found.availableModels
    )
    return _Menu(choices, found.currentModelId)


class _OlderModel(msgspec.Struct):
    modelId: str  # noqa: N815 - as it is on the wire
    name: str
    description: str | None = None


class _OlderModels(msgspec.Struct):
    availableModels: tuple[_OlderModel, ...]  # noqa: N815
    currentModelId: str | None = None  # noqa: N815


def _locked(catalogue: Catalogue, agent: str, problem: str | None) -> AgentOptions:
    release = catalogue.lock.wanted(catalogue.entry(agent).package)
    if release is None:
        return AgentOptions(agent, "lock", (), (), problem=problem)
    return AgentOptions(agent, "lock", release.modes, release.models, problem=problem)


class _OptionsFile:
    """Options on file, for as long as the same program would be started."""

    def __init__(self, data_dir: Path, agent: str, start: Start, version: str | None) -> None:
        self._path = data_dir / "agents" / _KEPT / f"{agent}.json"
        known = msgspec.json.encode([_FORM, start.argv, sorted(start.env), version, _stamp(start.argv)])
        self._key = hashlib.sha256(known).hexdigest()

    def read(self) -> AgentOptions | None:
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_KeptOptions)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return msgspec.structs.replace(found.options, source="kept") if found.key == self._key else None

    def write(self, options: AgentOptions) -> None:
        """Atomically; where it cannot be kept it is asked again."""
        try:
            for place in (self._path.parents[2], self._path.parent):  # the data folder is its owner's alone
                make_folder(place)
            handle, temporary = tempfile.mkstemp(dir=self._path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(_KeptOptions(self._key, options)))
            Path(temporary).rename(self._path)
        except OSError:
            return


class _KeptOptions(msgspec.Struct):
    key: str
    options: AgentOptions


def _stamp(argv: tuple[str, ...]) -> list[int]:
    """A program of the owner's that was built anew is another one."""
    found = []
    for word in argv:
        if not word.startswith("/"):
            continue
        try:
            about = Path(word).stat()
        except (OSError, ValueError):
            continue
        found += [about.st_mtime_ns, about.st_size]
    return found
