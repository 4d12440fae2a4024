"""Words of a client, found among what agents offer."""

import pytest

from legation.agents.modes import Offers, asks, current_mode
from legation.errors import CapabilityUnsupported, Forbidden, InvalidParams
from legation.server.sessions.options import Wanted, choose, left_in
from legation.server.sessions.record import Details
from legation.wire.acp.updates import SelectChoice, SelectOption, SessionMode, SessionModeState
from legation.wire.universal.shapes import Metadata


class Agent:
    """One that agrees to everything, and says what it was told."""

    def __init__(self, offers: Offers) -> None:
        self.offers = offers
        self.told: list[tuple[str, ...]] = []

    async def set_mode(self, mode: str) -> None:
        self.told.append(("mode", mode))
        self.offers = self.offers.in_mode(mode)

    async def set_option(self, option: str, value: str | bool) -> None:
        self.told.append((option, str(value)))


def option(name: str, category: str, *values: str) -> SelectOption:
    choices = tuple(SelectChoice(name=value.title(), value=value) for value in values)
    return SelectOption(id=name, name=name, current_value=values[0], options=choices, category=category)


def with_modes(*modes: str) -> Agent:
    available = tuple(SessionMode(id=mode, name=mode.title()) for mode in modes)
    return Agent(Offers(SessionModeState(current_mode_id=modes[0], available_modes=available)))


CODEX = ("read-only", "auto", "full-access")
CLAUDE = ("default", "acceptEdits", "plan", "auto")


@pytest.mark.parametrize(
    ("modes", "asked", "told"),
    [
        (CLAUDE, "plan", [("mode", "plan")]),
        (CLAUDE, "build", []),
        (CLAUDE, "Default", []),
        (CODEX, "plan", []),  # it begins in what is closest
        (CODEX, "build", []),
        (("plan", "build"), "build", [("mode", "build")]),
        (("ask", "read-only"), "plan", [("mode", "read-only")]),
        (("ask", "docs"), "DOCS", [("mode", "docs")]),
        (CLAUDE, "custom", []),  # as its own configuration has it
        (("plan", "custom"), "custom", [("mode", "custom")]),
    ],
)
async def test_a_mode_by_its_name(modes: tuple[str, ...], asked: str, told: list[tuple[str, ...]]) -> None:
    agent = with_modes(*modes)
    await choose(agent, Wanted(mode=asked))
    assert agent.told == told


async def test_build_is_the_mode_that_the_agent_began_in() -> None:
    agent = with_modes("ask", "plan")
    await choose(agent, Wanted(mode="plan", first_mode="ask"))
    await choose(agent, Wanted(mode="build", first_mode="ask"))
    assert current_mode(agent.offers) == "ask"


@pytest.mark.parametrize("mode", ["acceptEdits", "auto", "full-access", "bypassPermissions", "YOLO"])
async def test_a_mode_that_does_not_ask_is_never_set(mode: str) -> None:
    agent = with_modes("ask", mode)
    with pytest.raises(Forbidden):
        await choose(agent, Wanted(mode=mode))
    assert agent.told == []
    assert not asks(mode)


async def test_an_agent_without_modes_builds_and_cannot_plan() -> None:
    agent = Agent(Offers())
    await choose(agent, Wanted(mode="build"))
    with pytest.raises(InvalidParams):
        await choose(agent, Wanted(mode="plan"))
    with pytest.raises(CapabilityUnsupported):
        await choose(agent, Wanted(model="m"))
    assert agent.told == []


async def test_groups_of_models_are_looked_into() -> None:
    groups = (SelectChoice(name="Big", group="big", options=(SelectChoice(name="B", value="big/b"),)),)
    models = SelectOption(id="m", name="m", current_value="", options=groups, category="model")
    agent = Agent(Offers(None, (models, option("e", "thought_level", "low", "high"))))
    await choose(agent, Wanted(model="b", variant="high"))
    assert agent.told == [("m", "big/b"), ("e", "high")]


async def test_nothing_is_set_where_a_part_is_not_offered() -> None:
    agent = Agent(Offers(None, (option("model", "model", "a", "b"), option("mode", "mode", "x", "y"))))
    for wanted in (Wanted(mode="none", model="b"), Wanted(mode="y", variant="high")):
        with pytest.raises((InvalidParams, CapabilityUnsupported)):
            await choose(agent, wanted)
    assert agent.told == []


@pytest.mark.parametrize("mode", ["acceptEdits", "bypassPermissions", "full-access"])
async def test_who_wants_a_mode_without_asking_hears_what_to_use_also_where_the_agent_names_none(
    mode: str,
) -> None:
    with pytest.raises(Forbidden, match="permissionMode"):
        await choose(with_modes("default", "plan"), Wanted(mode=mode))


@pytest.mark.parametrize(
    ("was", "modes", "now", "then"),
    [
        ("plan", CLAUDE, "default", "build"),
        ("build", CLAUDE, "plan", "plan"),
        ("build", ("default", "plan", "docs"), "docs", "docs"),
        ("Docs", ("default", "plan", "docs"), "docs", "Docs"),  # in the client's own words
        ("plan", CLAUDE, "acceptEdits", "plan"),  # it would not ask
        ("plan", CODEX, "read-only", "plan"),
    ],
)
def test_a_mode_that_an_agent_goes_to_by_itself_is_the_sessions(
    was: str, modes: tuple[str, ...], now: str, then: str
) -> None:
    given = Metadata("claude", was, None, "default")
    details = Details(
        agent="claude", given=given, created_at=0, updated_at=0, agent_mode=was, first_mode=modes[0]
    )
    assert left_in(details, with_modes(*modes).offers.in_mode(now)).agent_mode == then
    assert left_in(details, Offers()) == details
