"""`extract` and `check`: the two things that are done with a publisher's schema."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from legation.agents.schemas.acp_types import acp_fitted
from legation.agents.schemas.drift import changes
from legation.agents.schemas.extractor import EXTRACTORS, Extractor, extractor
from legation.agents.schemas.inventory import Inventory, committed, written
from legation.agents.schemas.places import Places
from legation.errors import NotFound


@dataclass(frozen=True, slots=True)
class Report:
    """What is to be said of one publisher; `drifted` where somebody has to look at it."""

    lines: tuple[str, ...]
    drifted: bool = False


async def extract(name: str | None, places: Places, out: Path) -> list[Report]:
    """Without a name all of them; one that is not here keeps the inventory that there is. `out` is a folder."""
    found = []
    for each in _chosen(name):
        program = each.find(places)
        if program is None:
            found.append(_absent(each, named=name is not None))
            continue
        inventory = await each.extract(program)
        (out / f"{each.name}.json").write_bytes(written(inventory))
        count = len(inventory.definitions)
        found.append(Report((f"{each.name} {inventory.version}: written, {count} definitions",)))
    return found


async def check(name: str | None, places: Places) -> list[Report]:
    found = []
    for each in _chosen(name):
        program = each.find(places)
        if program is None:
            found.append(_absent(each, named=name is not None))
        else:
            found.append(compared(committed(each.name), await each.extract(program)))
    return found


def compared(before: Inventory, after: Inventory) -> Report:
    found = [str(each) for each in changes(before, after)]
    if after.agent == "acp":
        found += [f"Legation's {each}" for each in acp_fitted(after).misfits]
    versions = after.version if after.version == before.version else f"{before.version} and {after.version}"
    head = f"{after.agent} {versions}: {f'{len(found)} differences' if found else 'no difference'}"
    return Report((head, *(f"  {each}" for each in found)), drifted=bool(found))


def _chosen(name: str | None) -> Iterable[Extractor]:
    return EXTRACTORS.values() if name is None else (extractor(name),)


def _absent(each: Extractor, *, named: bool) -> Report:
    if named:
        raise NotFound(f"cannot find the program or package of {each.name} on this machine; {each.remedy}")
    kept = committed(each.name).version
    return Report((f"{each.name}: not on this machine, so the inventory of {kept} stands; {each.remedy}",))
