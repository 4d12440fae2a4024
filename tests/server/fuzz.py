"""Calls every operation of an OpenAPI document with made-up requests, right and wrong ones, and holds the answers to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from legation.server.http.app import App

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
    allow_header_conformance,
)
TOO_LARGE = 413  # refused too, and not among those that schemathesis takes for that
STREAM = "text/event-stream"  # never ends: not for a client that waits for the end


def fuzz(
    target: App | str,
    *,
    headers: Mapping[str, str] | None = None,
    examples: int = 25,
    modes: Iterable[GenerationMode] = tuple(GenerationMode),
    skip: Iterable[str] = (),
    refuses_more: Iterable[str] = (),
    reset: Callable[[], None] = lambda: None,
    path: str = "/openapi.json",
) -> int:
    """How many operations were called. `target` is an application or the address of a server; `skip` are operationIds.
    Those of `refuses_more` may refuse what fits their schema; every other check holds for them too.

    Raises the first failure, with the request as a curl command. `reset` runs before each operation.
    """
    schema = (
        schemathesis.openapi.from_url(f"{target}{path}")
        if isinstance(target, str)
        else schemathesis.openapi.from_asgi(path, target)
    )
    called, skipped, stricter = 0, set(skip), set(refuses_more)
    for found in schema.get_all_operations():
        assert isinstance(found, Ok), found
        operation = found.ok()
        raw = operation.definition.raw
        if raw["operationId"] in skipped or _streams(raw):
            continue
        for mode in modes:
            reset()
            left_out = {positive_data_acceptance} if raw["operationId"] in stricter else set()
            _hammer(
                operation, mode, headers or {}, examples, [each for each in CHECKS if each not in left_out]
            )
        called += 1
    return called


def _streams(operation: Mapping[str, object]) -> bool:
    return STREAM in str(operation["responses"])


def _hammer(
    operation: object,
    mode: GenerationMode,
    headers: Mapping[str, str],
    examples: int,
    checks: list[Any],
) -> None:
    @given(case=operation.as_strategy(generation_mode=mode))  # type: ignore[attr-defined]
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    def call(case: schemathesis.Case[Any]) -> None:
        answer = case.call(headers=dict(headers))
        refused = {negative_data_rejection} if answer.status_code == TOO_LARGE else set()
        case.validate_response(answer, checks=[each for each in checks if each not in refused])

    try:
        call()
    except Unsatisfiable:
        if mode is not GenerationMode.NEGATIVE:  # what takes no input can be given no wrong one
            raise
