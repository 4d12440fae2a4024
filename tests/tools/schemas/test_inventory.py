"""The inventories that are part of Legation: whole, in their one form, and saying what they are of."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import pytest
from tools.schemas.expression import PRIMITIVES, names
from tools.schemas.expression import parse as parsed
from tools.schemas.fitting import Published
from tools.schemas.inventory import FOLDER, Definition

from legation.agents.install.lock import shipped
from legation.errors import InvalidParams, NotFound
from tools import schemas
from tools.schemas import EXTRACTORS, Inventory, committed, read, written

PUBLISHED = files(schemas) / FOLDER
MOST = 100_000  # bytes of one: it is read by people when it changes


def test_there_is_one_for_every_extractor_and_no_other() -> None:
    assert {each.name for each in PUBLISHED.iterdir()} == {f"{name}.json" for name in EXTRACTORS}


@pytest.mark.parametrize("name", EXTRACTORS)
def test_a_committed_inventory_is_in_its_one_form_and_names_its_version(name: str) -> None:
    raw = (PUBLISHED / f"{name}.json").read_bytes()
    found = read(raw)
    assert written(found) == raw, f"renew it: python -m tools.schemas extract {name}"
    assert found.agent == name
    assert found.version[0].isdigit()
    assert EXTRACTORS[name].package in found.source
    assert len(raw) < MOST


@pytest.mark.parametrize("name", ["acp", "codex", "opencode"])
def test_a_name_inside_leads_to_a_definition_or_was_left_out_on_purpose(name: str) -> None:
    found = committed(name)
    assert _loose(found) - _APART[name](found) == set()


def _types(definition: Definition) -> list[str]:
    if isinstance(definition, str):
        return [definition]
    return list(definition) if isinstance(definition, tuple) else list(definition.values())


def _named(definition: Definition) -> set[str]:
    return {each for text in _types(definition) for each in names(parsed(text))}


def _loose(found: Inventory) -> set[str]:
    used = {each for one in found.definitions.values() for each in _named(one)}
    return used - found.definitions.keys() - PRIMITIVES


def _unused(found: Inventory) -> set[str]:
    messages = [
        each for name, each in found.definitions.items() if name.endswith(("Request", "Notification"))
    ]
    return {name for each in messages for name in _named(each)}


def _undetailed(found: Inventory) -> set[str]:
    return {*_named(found.definitions["operations"]), *_named(found.definitions["Event"])}


_APART: dict[str, Callable[[Inventory], set[str]]] = {
    "acp": lambda _: set(),
    "codex": _unused,
    "opencode": _undetailed,
}


def test_the_agents_that_are_installed_are_the_versions_that_were_read() -> None:
    """A new pin in lock.json wants a new inventory."""
    opencode = shipped().wanted("opencode")
    claude = shipped().wanted("claude")
    assert opencode
    assert claude
    assert committed("opencode").version == opencode.version
    sdk = next(each for each in claude.packages if each.name == EXTRACTORS["claude"].package)
    assert committed("claude").version.split()[0] == sdk.version


def test_what_the_drivers_will_stand_on_is_there() -> None:
    claude = Published(committed("claude"))
    said = {form.only("type") for form in claude.forms(parsed("StdoutMessage")) if hasattr(form, "only")}
    assert {"'assistant'", "'control_request'", "'result'", "'stream_event'", "'system'", "'user'"} <= said
    codex = committed("codex").definitions
    assert len(_types(codex["ClientRequest"])) > len(_types(codex["ServerRequest"])) > 0
    assert "item/commandExecution/requestApproval" in codex["ServerRequest"]
    ahead = {**codex, **committed("codex-experimental").definitions}
    assert "collaborationMode?" in ahead["TurnStartParams"]
    assert "availableDecisions?" in ahead["CommandExecutionRequestApprovalParams"]
    assert "POST /session/{sessionID}/prompt_async" in committed("opencode").definitions["operations"]
    assert "--stream-json" in committed("amp").definitions["options"]


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b'{"agent":"a","version":"1","source":"","definitions":{"A":"Words of theirs."}}']
)
def test_another_file_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidParams, match="cannot read the inventory"):
        read(raw)


def test_an_agent_without_an_inventory_is_said() -> None:
    with pytest.raises(NotFound, match="cannot find an inventory of 'nobody'"):
        committed("nobody")
