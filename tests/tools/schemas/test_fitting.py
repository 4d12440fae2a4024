from __future__ import annotations

import msgspec
from tools.schemas.inventory import Definition

from tools.schemas import Inventory, Published, fit


class Point(msgspec.Struct, omit_defaults=True):
    x: int
    label: str | None = None


class Text(msgspec.Struct, tag="text", tag_field="type"):
    text: str


class Image(msgspec.Struct, tag="image", tag_field="type"):
    data: str


def _misfits(ours: object, **published: Definition) -> list[str]:
    return [str(each) for each in fit([(ours, "A")], Published(Inventory("a", "1", "", published))).misfits]


def test_what_fits_says_nothing_and_is_counted() -> None:
    published = Published(
        Inventory("a", "1", "", {"A": {"label?": "string | null", "more?": "any", "x": "integer"}})
    )
    found = fit([(Point, "A")], published)
    assert (list(found.misfits), set(found.compared)) == ([], {Point})


def test_a_field_that_is_not_published_is_found() -> None:
    assert _misfits(Point, A={"x": "integer"}) == ["Point.label: ours reads it, and it is not published"]


def test_a_value_that_ours_cannot_read_is_found() -> None:
    assert _misfits(Point, A={"label?": "string", "x": "B"}, B=("integer", "'far'", "C[]"), C="any") == [
        "Point.x: may be 'far', which ours does not read",
        "Point.x: may be a list, which ours does not read",
    ]


def test_null_and_absence_are_found() -> None:
    assert _misfits(Point, A={"label?": "string", "x?": "integer | null"}) == [
        "Point.x: may be absent, and ours requires it",
        "Point.x: may be null, which ours does not read",
    ]


def test_what_must_be_sent_and_is_not_is_found() -> None:
    assert _misfits(Point, A={"label": "string", "x": "integer", "y": "integer"}) == [
        "Point.label: is required, and ours leaves it out when it has its default",
        "Point.y: is required, and ours does not write it",
    ]


def test_variants_are_told_apart_by_their_tag() -> None:
    blocks: dict[str, Definition] = {
        "A": ("A<image>", "A<sound>"),
        "A<image>": {"...": "Picture", "type": "'image'"},
        "A<sound>": {"type": "'sound'"},
        "Picture": {"data": "string | null"},
    }
    assert _misfits(Text | Image, **blocks) == [
        "A: has a variant 'sound', which ours does not know",
        "A: ours reads a variant text, and it is not published",
        "Image.data: may be null, which ours does not read",
    ]


def test_one_shape_may_stand_for_several_that_have_no_tag() -> None:
    both: dict[str, Definition] = {
        "A": ("Far", "Near"),
        "Far": {"label": "string", "x": "integer"},
        "Near": {"x": "integer"},
    }
    assert _misfits(Point, **both) == []
    assert _misfits(Point, **{**both, "Near": {"label?": "boolean"}}) == [
        "Point.label: may be boolean, which ours does not read",
        "Point.x: may be absent, and ours requires it",
    ]


def test_a_definition_that_is_gone_is_found() -> None:
    assert _misfits(Point, B={"x": "integer"}) == ["A: ours stands for it, and it is not published"]
