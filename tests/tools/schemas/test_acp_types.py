"""The ACP driver's types against the schema that ACP publishes: the inventory that is part of Legation."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace

import pytest
from tools.schemas.acp import METHODS
from tools.schemas.command import KNOWN, OURS, acp_fitted

from legation.wire import acp
from legation.wire.acp.methods import (
    AUTH_METHOD_TYPES,
    PERMISSION_OPTION_KINDS,
    STOP_REASONS,
    Supported,
    Usage,
)
from legation.wire.acp.rpc import CANCEL_REQUEST, AgentMethod, ClientMethod, ErrorCode, Shape
from legation.wire.acp.updates import (
    COMPACTION_STATUSES,
    CONFIG_CATEGORIES,
    NOTICE_SEVERITIES,
    PLAN_PRIORITIES,
    PLAN_STATUSES,
    TOOL_CALL_STATUSES,
    TOOL_KINDS,
    PlanFile,
    PlanItems,
    PlanMarkdown,
    PlanRemoved,
    PlanUpdate,
    Unread,
)
from tools.schemas import Inventory, Published, committed, fit

STABLE = committed("acp")
NAMED_PLANS: set[type] = {PlanUpdate, PlanRemoved, PlanItems, PlanFile, PlanMarkdown}
UNSTABLE = replace(STABLE, definitions={**STABLE.definitions, **committed("acp-unstable").definitions})


def test_every_type_of_ours_fits_what_is_published() -> None:
    assert acp_fitted(STABLE).misfits == ()


def test_what_we_read_besides_is_still_not_published() -> None:
    """One that is published by now is no exception any more."""
    found = fit(OURS, Published(STABLE)).misfits
    assert {each.where if each.where in KNOWN else str(each) for each in found} == set(KNOWN)


def test_named_plans_are_read_as_the_unstable_schema_has_them() -> None:
    found = fit(OURS, Published(UNSTABLE))
    assert found.compared >= NAMED_PLANS
    assert not [each for each in found.misfits if "lan" in str(each)]


def test_tokens_of_a_turn_are_read_as_the_unstable_schema_has_them() -> None:
    found = fit(OURS, Published(UNSTABLE))
    assert Usage in found.compared
    assert "PromptResponse.usage" not in {each.where for each in found.misfits}
    of_usage = {str(each) for each in found.misfits if each.where.startswith("Usage.")}
    # We only read it: agents leave some out, whatever the schema says.
    missing = "is required, and ours leaves it out when it has its default"
    assert of_usage == {f"Usage.{name}Tokens: {missing}" for name in ("input", "output", "total")}


def test_no_type_of_ours_is_left_out_of_the_comparison() -> None:
    for module in pkgutil.iter_modules(acp.__path__):
        importlib.import_module(f"{acp.__name__}.{module.name}")
    every = {kind for kind in _below(Shape) if kind.__module__.startswith(acp.__name__)}
    apart = {Unread, Usage, *NAMED_PLANS}  # ours alone; in the unstable schema only
    assert every - acp_fitted(STABLE).compared == apart
    assert Supported in every  # the walk finds what is deep inside


def _below(kind: type[Shape]) -> set[type[Shape]]:
    return {each for child in kind.__subclasses__() for each in (child, *_below(child))}


@pytest.mark.parametrize(
    ("definition", "ours"),
    [
        ("ToolKind", TOOL_KINDS),
        ("ToolCallStatus", TOOL_CALL_STATUSES),
        ("StopReason", STOP_REASONS),
        ("PermissionOptionKind", PERMISSION_OPTION_KINDS),
        ("PlanEntryPriority", PLAN_PRIORITIES),
        ("PlanEntryStatus", PLAN_STATUSES),
        ("NoticeSeverity", NOTICE_SEVERITIES),
        ("CompactionStatus", COMPACTION_STATUSES),
    ],
)
def test_words_that_we_name_are_those_of_the_protocol(definition: str, ours: tuple[str, ...]) -> None:
    assert set(_words(definition)) == set(ours)


def _words(definition: str) -> list[str]:
    found = STABLE.definitions[definition]
    assert isinstance(found, tuple)
    return [each.strip("'") for each in found if each != "string"]


def test_words_of_open_lists_are_those_of_the_protocol() -> None:
    assert set(_words("SessionConfigOptionCategory")) | {"other"} == set(CONFIG_CATEGORIES)
    assert {int(each) for each in _words("ErrorCode") if each != "integer"} == {
        code.value for code in ErrorCode
    }
    assert "AuthMethod<terminal>" in STABLE.definitions
    assert set(AUTH_METHOD_TYPES) == {"agent", "terminal"}


def test_methods_that_we_name_are_published_for_the_side_that_we_think() -> None:
    published = STABLE.definitions[METHODS]
    assert isinstance(published, dict)
    of = {side: {key.split()[1] for key in published if key.startswith(side)} for side in ("agent", "client")}
    assert of["agent"] == {method.value for method in AgentMethod}
    assert of["client"] == {method.value for method in ClientMethod}
    assert {key.split()[1] for key in published} - of["agent"] - of["client"] == {CANCEL_REQUEST}


def test_a_schema_that_moved_on_is_noticed() -> None:
    moved: Inventory = replace(
        STABLE,
        definitions={
            **STABLE.definitions,
            "ToolCallId": "integer",
            "PermissionOption": {"kind": "PermissionOptionKind", "label": "string", "optionId": "string"},
        },
    )
    assert [str(each) for each in acp_fitted(moved).misfits] == [
        "CreateElicitationRequest.toolCallId: may be integer, which ours does not read",
        "PermissionOption.label: is required, and ours does not write it",
        "PermissionOption.name: may be absent, and ours requires it",
        "PermissionOption.name: ours reads it, and it is not published",
        "ToolCall.toolCallId: may be integer, which ours does not read",
        "ToolCallPatch.toolCallId: may be integer, which ours does not read",
        "ToolCallUpdate.toolCallId: may be integer, which ours does not read",
    ]
