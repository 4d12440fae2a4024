"""Whether an agent works here: it is started, greeted and ended, in a clean place and within bounds."""

from __future__ import annotations

from typing import Literal

import msgspec

from legation.agents.catalogue.catalogue import Catalogue
from legation.agents.catalogue.probe import ANSWER_LIMIT, probe
from legation.errors import LegationError
from legation.proc import Launcher

Verdict = Literal["ok", "absent", "broken"]


class Health(msgspec.Struct, frozen=True):
    """`absent` is what is not on this machine, or cannot be run by this Legation: no fault of anybody's."""

    agent: str
    verdict: Verdict
    says: str
    next: str = ""
    seconds: float | None = None


async def examine(
    catalogue: Catalogue, name: str, *, launcher: Launcher | None = None, timeout: float = ANSWER_LIMIT
) -> Health:
    agent, entry = catalogue.agent(name), catalogue.entry(name)
    install = f"legation agents install {agent.name}"
    if agent.how is None:
        advice = install if entry.origin == "known" else ""
        return Health(agent.name, "absent", agent.problem or "", advice)
    try:
        start = catalogue.start(agent.name)
        found = await probe(
            agent.name, start, entry.stand_ins, session=False, launcher=launcher, timeout=timeout
        )
    except LegationError as error:
        advice = f"legation agents verify {agent.name}" if agent.how == "installed" else ""
        return Health(agent.name, "broken", error.message, advice)
    version = agent.version or found.version or ""
    says = f"{agent.how} {version}".rstrip() + f", answers in {found.seconds:.1f} s, ACP {found.protocol}"
    if agent.outdated:
        return Health(agent.name, "ok", f"{says}; {agent.wanted} is locked", install, found.seconds)
    return Health(agent.name, "ok", says, _next(catalogue, agent.name, agent.sign_in), found.seconds)


def _next(catalogue: Catalogue, name: str, sign_in: str) -> str:
    if sign_in != "signed out" or catalogue.entry(name).sign_in is None:
        return ""
    return f"legation agents login {name}"
