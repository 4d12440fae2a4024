from __future__ import annotations

from tools.schemas.inventory import Definition

from tools.schemas import Inventory, changes


def _said(before: dict[str, Definition], after: dict[str, Definition]) -> list[str]:
    return [str(each) for each in changes(Inventory("a", "1", "", before), Inventory("a", "2", "", after))]


def test_nothing_changed_says_nothing() -> None:
    same: dict[str, Definition] = {"A": {"x?": "string"}, "B": ("'a'", "'b'")}
    assert _said(same, dict(same)) == []


def test_definitions_come_and_go_with_what_is_inside_them() -> None:
    assert _said({"A": {"x": "A.x"}, "A.x": {"y": "any"}}, {"B": ("B<a>",), "B<a>": {"y": "any"}}) == [
        "A is gone",
        "B is new",
    ]


def test_an_object_inside_a_field_is_said_of_the_field() -> None:
    before: dict[str, Definition] = {"A": {"w": "any"}}
    after: dict[str, Definition] = {"A": {"w": "any", "x?": "A.x#[]"}, "A.x#": {"y": "any"}}
    assert _said(before, after) == ["A.x is new: A.x#[]; it may be absent"]


def test_a_dot_in_a_name_is_no_parent_by_itself() -> None:
    assert _said({}, {"session.create": {"body": "any"}}) == ["session.create is new"]


def test_fields_are_named_with_what_became_of_them() -> None:
    before: dict[str, Definition] = {
        "A": {"gone": "string", "loose": "any", "tight?": "any", "type": "string"}
    }
    after: dict[str, Definition] = {"A": {"loose?": "any", "new": "B[]", "tight": "any", "type": "integer"}}
    assert _said(before, after) == [
        "A.gone is gone; it was string",
        "A.loose may be absent now",
        "A.new is new: B[]",
        "A.tight must be there now",
        "A.type was string, and is integer",
    ]


def test_values_are_named_and_not_only_their_union() -> None:
    assert _said(
        {"A": ("'a'", "'b'"), "B": {"x": "'a' | null"}}, {"A": ("'a'", "'c'"), "B": {"x": "'a'"}}
    ) == [
        "A can also be 'c'",
        "A cannot be 'b' any more",
        "B.x cannot be null any more",
    ]


def test_another_kind_of_definition_is_said() -> None:
    assert _said({"A": {"x": "any"}}, {"A": "string"}) == ["A was an object with fields, and is string"]
