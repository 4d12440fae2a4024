"""What a session can be set to: modes, config options, slash commands."""

from typing import Final, TypeAlias

from legation.wire.acp.content import Unread
from legation.wire.acp.shape import Shape

ConfigCategory: TypeAlias = str
CONFIG_CATEGORIES = ("mode", "model", "model_config", "thought_level", "other")
VARIANT_CATEGORIES: Final = (
    "thought_level",
    "model_config",
    "variant",
)  # of what makes variants of a model, the surest first


class SessionMode(Shape):
    id: str
    name: str
    description: str | None = None


class SessionModeState(Shape):
    current_mode_id: str
    available_modes: tuple[SessionMode, ...]


class SelectChoice(Shape):
    """A value to choose, or a named group of them: a group has `group` and `options`, a value has `value`."""

    name: str
    value: str | None = None
    description: str | None = None
    group: str | None = None
    options: tuple["SelectChoice", ...] = ()


class SelectOption(Shape, tag="select", tag_field="type"):
    id: str
    name: str
    current_value: str
    options: tuple[SelectChoice, ...]
    description: str | None = None
    category: ConfigCategory | None = None


class BooleanOption(Shape, tag="boolean", tag_field="type"):
    id: str
    name: str
    current_value: bool
    description: str | None = None
    category: ConfigCategory | None = None


ConfigOption: TypeAlias = SelectOption | BooleanOption | Unread


class CommandInput(Shape):
    hint: str


class AvailableCommand(Shape):
    name: str
    description: str
    input: CommandInput | None = None
