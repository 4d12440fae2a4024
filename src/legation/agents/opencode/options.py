"""Options of a session: agents as modes, models, and the variants of the model.

INV-O14 No agent is offered that does not ask before everything (INV-O1): what it may do without asking, a rule of its
        own settings, would meet no policy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from legation.agents.opencode.messages import (
    Config,
    OfferedAgent,
    OpenCodeModel,
    OpenCodeSessionInfo,
    PermissionRule,
    Providers,
)
from legation.agents.opencode.server import ServerApi
from legation.errors import InvalidParams
from legation.wire.acp.updates import ConfigOption, SelectChoice, SelectOption, SessionMode, SessionModeState

BUILD: Final = "build"
DEFAULT: Final = (
    "default"  # our name of the mode that OpenCode calls build; and of a model as it is without a variant
)
MODEL: Final = "model"
VARIANT: Final = "variant"
# What may be free: it touches nothing, or (a folder) is asked for besides the tool that does.
_FREE: Final = frozenset(
    ("todowrite", "todoread", "question", "plan_exit", "plan_enter", "external_directory")
)


def asks(rules: tuple[PermissionRule, ...]) -> bool:
    """Tell whether the rules end with asking, or refusing, and what follows that allows nothing but the harmless."""
    general = [
        at
        for at, rule in enumerate(rules)
        if rule.permission == "*" and rule.pattern == "*" and rule.action != "allow"
    ]
    if not general:
        return False
    return not any(
        rule.action == "allow" and rule.permission not in _FREE for rule in rules[general[-1] + 1 :]
    )


@dataclass(frozen=True, slots=True)
class OpenCodeOptions:
    """`model` is `provider/model`, or None where OpenCode chooses; `variant` is None for none."""

    agents: tuple[OfferedAgent, ...]
    providers: Providers
    agent: str = BUILD
    model: str | None = None
    variant: str | None = None

    @classmethod
    def of(
        cls,
        agents: tuple[OfferedAgent, ...],
        providers: Providers,
        config: Config,
        info: OpenCodeSessionInfo | None,
    ) -> OpenCodeOptions:
        offered = tuple(each for each in agents if each.mode != "subagent" and not each.hidden)
        made = cls(offered, providers, model=config.model or _first(providers))
        if info is not None and info.agent in {each.name for each in made._asking}:
            made = replace(made, agent=info.agent or BUILD)
        if info is not None and info.model is not None:
            model = f"{info.model.provider_id}/{info.model.id}"
            variant = info.model.variant
            if made.find(model) is not None:
                made = replace(made, model=model, variant=None if variant == DEFAULT else variant)
        return made

    @property
    def build_asks(self) -> bool:
        return all(asks(each.permission) for each in self.agents if each.name == BUILD)

    @property
    def modes(self) -> SessionModeState:
        modes = [
            SessionMode(
                id=_mode(each.name), name=each.name.replace("-", " ").title(), description=each.description
            )
            for each in self._asking
        ]
        return SessionModeState(current_mode_id=_mode(self.agent), available_modes=tuple(modes))

    @property
    def options(self) -> tuple[ConfigOption, ...]:
        options: list[ConfigOption] = []
        if self.model is not None:
            options.append(self._models())
            found = self.find(self.model)
            if found is not None and found.variants:
                options.append(self._variants(found))
        return tuple(options)

    @property
    def context(self) -> int:
        """Tokens that the model takes; 0 where nobody knows."""
        found = self.find(self.model) if self.model else None
        return int(found.limit.context) if found else 0

    def in_mode(self, mode: str) -> OpenCodeOptions:
        for each in self._asking:
            if _mode(each.name) == mode:
                return replace(self, agent=each.name)
        known = ", ".join(_mode(each.name) for each in self._asking)
        raise InvalidParams(f"cannot choose mode {mode!r}: OpenCode offers {known}")

    def with_option(self, option: str, value: str | bool) -> OpenCodeOptions:
        if option == MODEL and isinstance(value, str) and self.find(value) is not None:
            return replace(self, model=value, variant=None)
        if option == VARIANT and isinstance(value, str) and self.model is not None:
            found = self.find(self.model)
            if value == DEFAULT or (found is not None and value in (found.variants or {})):
                return replace(self, variant=None if value == DEFAULT else value)
        raise InvalidParams(f"cannot set {option!r} to that: OpenCode does not offer it; look at the options")

    def find(self, name: str) -> OpenCodeModel | None:
        provider, _, model = name.partition("/")
        for each in self.providers.providers:
            if each.id == provider:
                return each.models.get(model)
        return None

    def body(self) -> dict[str, object]:
        """Members of a prompt that say it."""
        body: dict[str, object] = {"agent": self.agent}
        if self.model is not None:
            provider, _, model = self.model.partition("/")
            body["model"] = {"providerID": provider, "modelID": model}
        if self.variant is not None:
            body["variant"] = self.variant
        return body

    @property
    def _asking(self) -> tuple[OfferedAgent, ...]:
        """Build first: it is where a session begins. It is there in a trusted folder that lets it act unasked, too."""
        kept = [each for each in self.agents if each.name == BUILD or asks(each.permission)]
        return tuple(sorted(kept, key=lambda each: each.name != BUILD))

    def _models(self) -> SelectOption:
        choices = [
            SelectChoice(value=f"{provider.id}/{name}", name=f"{provider.name}/{model.name}")
            for provider in self.providers.providers
            for name, model in provider.models.items()
        ]
        return SelectOption(
            id=MODEL, name="Model", category="model", current_value=self.model or "", options=tuple(choices)
        )

    def _variants(self, model: OpenCodeModel) -> SelectOption:
        names = (DEFAULT, *(model.variants or {}))
        return SelectOption(
            id=VARIANT,
            name="Variant",
            category="thought_level",
            current_value=self.variant or DEFAULT,
            options=tuple(SelectChoice(value=name, name=name) for name in names),
        )


async def offered(api: ServerApi, info: OpenCodeSessionInfo) -> OpenCodeOptions:
    """Ask what there is to choose in the folder of a session, and what was chosen when it was left."""
    where = info.directory
    agents = await api.get("/agent", tuple[OfferedAgent, ...], directory=where)
    providers = await api.get("/config/providers", Providers, directory=where)
    config = await api.get("/config", Config, directory=where)
    return OpenCodeOptions.of(agents, providers, config, info)


def _mode(agent: str) -> str:
    return DEFAULT if agent == BUILD else agent


def _first(providers: Providers) -> str | None:
    for each in providers.providers:
        model = providers.default.get(each.id) or next(iter(each.models), None)
        if model is not None:
            return f"{each.id}/{model}"
    return None
