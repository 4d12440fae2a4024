"""The toy, held to its own OpenAPI document; and that the fuzzing finds what it should."""

from typing import cast

import pytest
from schemathesis.core.failures import FailureGroup, ServerError
from schemathesis.openapi.checks import JsonSchemaError
from tests.server.fuzz import fuzz
from tests.server.toy_app import Shelf, Size, broken, routes, toy_app

from legation.server.http.routes import OPEN, Call, RouteReply, Routes

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

MANAGER = {"Authorization": "Bearer manager"}


def test_every_answer_is_as_documented() -> None:
    shelf = Shelf()
    called = fuzz(toy_app([routes], services=shelf), headers=MANAGER, reset=shelf.things.clear)
    assert called == len([each for each in routes.operations if "event-stream" not in each.media]) + 1


def test_without_a_credential_too() -> None:
    assert fuzz(toy_app([routes]), examples=5) > 0


def test_a_server_error_is_found() -> None:
    with pytest.raises(FailureGroup) as found:
        fuzz(toy_app([broken]), examples=5)
    assert [type(each) for each in found.value.exceptions] == [ServerError]


def test_an_answer_that_is_not_as_documented_is_found() -> None:
    surface = Routes(tag="t")

    @surface.get("/v1/lie", access=OPEN)
    async def lie(call: Call) -> RouteReply[Size]:
        """Not a size."""
        return RouteReply(cast(Size, {"size": "large"}))

    with pytest.raises(FailureGroup) as found:
        fuzz(toy_app([surface]), headers=MANAGER, examples=5)
    assert [type(each) for each in found.value.exceptions] == [JsonSchemaError]
