"""The OpenAPI document says what the routes do."""

from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate
from tests.server.toy_app import ask, routes, toy_app

from legation.server.http.routes import OPEN, Call, Routes
from legation.server.routes import ROUTES
from legation.wire.api.server import Health


def document() -> Any:
    return toy_app([routes]).document


def test_the_document_is_valid_openapi() -> None:
    validate(document())


def test_an_operation_is_described_by_its_signature() -> None:
    found = document()["paths"]["/v1/things"]["get"]
    assert found["operationId"] == "listThings"
    assert found["summary"] == "The things on the shelf."
    assert found["description"].startswith("In the order of their ids")
    assert found["tags"] == ["things"]
    limit, after, colours = found["parameters"]
    assert limit == {
        "name": "limit",
        "in": "query",
        "required": False,
        "schema": {"type": "integer", "minimum": 1, "maximum": 500, "default": 100},
    }
    assert after["schema"] == {"type": "string", "pattern": "^[^\\u0000]*$"}
    assert colours["schema"] == {"type": "array", "items": {"enum": ["blue", "green", "red"]}}


def _patterns(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        if isinstance(found.get("pattern"), str):
            yield found["pattern"]
        yield from (each for value in found.values() for each in _patterns(value))
    elif isinstance(found, list):
        yield from (each for value in found for each in _patterns(value))


def test_no_name_in_a_body_ends_with_a_line() -> None:
    """To Python `$` is also before the last line's end: `X-Key\\n` was the name of a header."""
    document: Any = toy_app(ROUTES).document
    schemas = document["components"]["schemas"]
    open_ended = {each for each in _patterns(schemas) if each.endswith("$")}
    assert {each for each in open_ended if not each.endswith(r"[^\u0000]*$")} == set()  # those are no names


def test_a_header_has_its_name() -> None:
    parameters = document()["paths"]["/v1/show/{count}"]["get"]["parameters"]
    assert ("X-Tag", "header") in [(each["name"], each["in"]) for each in parameters]


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("get", "/v1/things", ["200", "400", "401", "403", "429", "500"]),
        ("post", "/v1/things", ["201", "400", "401", "403", "409", "413", "415", "429", "500"]),
        ("delete", "/v1/things/{id}", ["204", "400", "401", "403", "404", "429", "500"]),
        ("get", "/v1/page", ["200", "400", "500"]),
    ],
)
def test_every_answer_is_listed(method: str, path: str, statuses: list[str]) -> None:
    responses = document()["paths"][path][method]["responses"]
    assert sorted(responses) == statuses
    for status in statuses[1:]:
        assert list(responses[status]["content"]) == ["application/problem+json"]


def test_open_operations_ask_for_no_credential_and_others_for_any() -> None:
    paths = document()["paths"]
    assert paths["/v1/page"]["get"]["security"] == []
    assert paths["/v1/things"]["post"]["security"] == [
        {"bearer": ["manage"]},
        {"basic": ["manage"]},
        {"cookie": ["manage"]},
    ]


def test_other_answers_can_be_declared() -> None:
    surface = Routes(tag="t")

    @surface.get("/v1/x", access=OPEN, also={503: Health})
    async def sometimes(call: Call) -> Health:
        """Sometimes."""
        return Health()

    found: Any = toy_app([surface]).document
    validate(found)
    content = found["paths"]["/v1/x"]["get"]["responses"]["503"]["content"]
    assert content == {"application/json": {"schema": {"$ref": "#/components/schemas/Health"}}}


def test_two_handlers_of_one_name_are_refused() -> None:
    surface = Routes(tag="t")

    @surface.get("/v1/other", access=OPEN)
    async def list_things(call: Call) -> None:
        """The same name as another."""

    with pytest.raises(TypeError, match="listThings: rename one"):
        toy_app([routes, surface])


async def test_it_is_served_with_a_tag_and_not_twice() -> None:
    app = toy_app()
    got = await ask(app, "GET", "/openapi.json")
    assert got.json() == app.document
    tag = got.header("etag") or ""
    again = await ask(app, "GET", "/openapi.json", headers=[("If-None-Match", f'"other", {tag}')])
    assert (again.status, again.body, again.header("etag")) == (304, b"", tag)
    assert (await ask(app, "GET", "/openapi.json", headers=[("If-None-Match", '"other"')])).status == 200


@pytest.mark.parametrize("group", ROUTES, ids=lambda group: group.tag)
def test_every_signature_of_ours_can_be_served(group: Routes) -> None:
    for each in group.operations:
        assert each.contract.summary
