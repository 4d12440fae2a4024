"""INV-C1, by the names of modes and options alone: in which of them an agent asks."""

import unicodedata
from typing import Any, ClassVar

import msgspec
import pytest

from legation.agents.driver import AskingModes
from legation.agents.modes import Offers, asks, must_stay_asking, put_into_asking, unasking_mode
from legation.errors import Forbidden
from legation.wire.acp.updates import (
    BooleanOption,
    ConfigOption,
    SelectChoice,
    SelectOption,
    SessionMode,
    SessionModeState,
)


@pytest.mark.parametrize(
    "mode",
    [
        *("auto", "autoEdit", "auto-edit", "accept-edits", "YOLO", "bypassPermissions", "full-access"),
        *("\uff59olo", "yo\u200blo", "YOLO mode", "Auto-approve everything", "bypass_approvals"),
    ],
)
def test_modes_that_do_not_ask_are_known_by_name(mode: str) -> None:
    assert not asks(mode)
    assert asks(mode, AskingModes(asking=(mode,)))


@pytest.mark.parametrize(
    "mode", ["default", "plan", "read-only", "ask", "build", "code", "Code mode", "mode"]
)
def test_any_other_mode_asks_unless_the_catalogue_says_otherwise(mode: str) -> None:
    assert asks(mode)
    assert not asks(mode, AskingModes(unasking=(mode.upper(),)))


async def test_a_switch_that_turns_asking_off_is_turned_back_and_names_count_as_people_see_them() -> None:
    class Told:
        offers = Offers(
            SessionModeState(
                current_mode_id="m1",
                available_modes=(
                    SessionMode(id="m1", name="Auto approve"),
                    SessionMode(id="m2", name="Plan"),
                    SessionMode(id="m3", name="Careful"),
                ),
            ),
            (BooleanOption(id="yolo", name="YOLO", current_value=True),),
        )
        told: ClassVar[list[object]] = []

        async def set_mode(self, mode: str) -> None:
            self.told.append(mode)

        async def set_option(self, option: str, value: str | bool) -> None:
            self.told.append((option, value))

    session = Told()
    assert unasking_mode(session.offers, AskingModes()) == "m1"
    await put_into_asking(session, AskingModes())
    assert session.told == ["m3", ("yolo", False)]


async def test_approvals_that_are_an_option_of_their_own_are_a_mode_and_no_other_option_is() -> None:
    def option(name: str, value: str, *others: str, category: str | None = None) -> SelectOption:
        choices = tuple(SelectChoice(name=each, value=each) for each in (value, *others))
        return SelectOption(id=name, name=name, current_value=value, options=choices, category=category)

    class Told:
        offers = Offers(
            SessionModeState(
                current_mode_id="yolo",
                available_modes=(
                    SessionMode(id="yolo", name="YOLO"),
                    SessionMode(id="default", name="Default"),
                ),
            ),
            (
                option("mode", "yolo", "default", category="mode"),
                option("second", "yolo", "default", category="mode"),
                option("approval_policy", "never", "on-request", category="other"),
                option("model", "auto", "large", category="model"),
                option("theme", "auto", "dark"),
            ),
        )
        told: ClassVar[list[object]] = []

        async def set_mode(self, mode: str) -> None:
            self.told.append(mode)

        async def set_option(self, option: str, value: str | bool) -> None:
            self.told.append((option, value))

    session = Told()
    put = await put_into_asking(session, AskingModes())
    default = ("mode", "default"), ("second", "default")
    assert session.told == ["default", *default, ("approval_policy", "on-request")]
    assert [(each.mode, each.into) for each in put] == [("yolo", "default"), ("never", "on-request")]
    with pytest.raises(Forbidden):
        must_stay_asking(session.offers, AskingModes(), "never", "approval_policy")
    must_stay_asking(session.offers, AskingModes(), "auto", "theme")


def test_an_agent_with_very_many_options_is_looked_at_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it names them, in the loop: five hundred of them took nine seconds."""
    count, looked = 200, 0
    normalize = unicodedata.normalize

    def watched(form: Any, text: str) -> str:
        nonlocal looked
        looked += 1
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", watched)
    named = [
        {"id": f"c{n}", "name": f"n{n}", "type": "select", "currentValue": "a", "options": [{"value": "a", "name": "A"}]}
        for n in range(count)
    ]  # fmt: skip
    options = msgspec.convert(
        [*named, {**named[0], "id": "permissions", "currentValue": "yolo"}], tuple[ConfigOption, ...]
    )
    assert unasking_mode(Offers(options=options), AskingModes()) == "yolo"
    assert looked < 4 * count
