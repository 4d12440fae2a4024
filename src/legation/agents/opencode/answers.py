"""What the server answers when it is asked what there is to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from legation.agents.opencode.shape import Native


class Rule(Native):
    permission: str
    pattern: str
    action: str


class AgentInfo(Native):
    """`mode` is primary, subagent or all."""

    name: str
    mode: str
    permission: tuple[Rule, ...]
    description: str | None = None
    hidden: bool | None = None


class ModelLimit(Native):
    context: float


class ModelInfo(Native):
    id: str
    name: str
    limit: ModelLimit
    variants: Mapping[str, Any] | None = None


class ProviderInfo(Native):
    id: str
    name: str
    models: Mapping[str, ModelInfo]


class Providers(Native):
    """`default` is the model of each provider that it would choose by itself."""

    providers: tuple[ProviderInfo, ...]
    default: Mapping[str, str]


class Config(Native):
    """GET /config: of all that it has, the model that was chosen."""

    model: str | None = None


class Health(Native):
    version: str
