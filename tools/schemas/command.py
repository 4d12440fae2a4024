"""The publishers that are watched, and the two things that are done with a publisher's schema: `extract` and `check`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from legation.errors import InvalidParams, NotFound
from legation.wire.acp import methods, rpc, updates
from tools.schemas import acp, amp, claude, codex, opencode
from tools.schemas.fitting import Fitted, Published, fit
from tools.schemas.inventory import Inventory, changes, committed, written
from tools.schemas.places import Places

# The publishers that are watched: where each is found, how it is read, and what to do where it is absent.


@dataclass(frozen=True, slots=True)
class Extractor:
    """`package` is what npm calls it."""

    name: str
    package: str
    find: Callable[[Places], Path | None]
    extract: Callable[[Path], Awaitable[Inventory]]

    @property
    def remedy(self) -> str:
        return f"install {self.package} with npm and name the folder with --in"


EXTRACTORS: Final = {
    each.name: each
    for each in (
        Extractor("acp", acp.PACKAGE, acp.find, acp.extract),
        Extractor("acp-unstable", acp.PACKAGE, acp.find, acp.extract_unstable),
        Extractor("amp", "@ampcode/cli", amp.find, amp.extract),
        Extractor("claude", claude.PACKAGE, claude.find, claude.extract),
        Extractor("codex", "@openai/codex", codex.find, codex.extract),
        Extractor("codex-experimental", "@openai/codex", codex.find, codex.extract_experimental),
        Extractor("opencode", "opencode-ai", opencode.find, opencode.extract),
    )
}


def extractor(name: str) -> Extractor:
    try:
        return EXTRACTORS[name]
    except KeyError:
        raise InvalidParams(
            f"cannot read the schema of {name!r}: it is not one of {', '.join(EXTRACTORS)}; name one of those"
        ) from None


# Which of our ACP types stands for which published one.


# Types that are reached from these are not named: they are compared where they stand.
OURS: Final[tuple[tuple[object, str], ...]] = (
    (methods.InitializeRequest, "InitializeRequest"),
    (methods.InitializeResponse, "InitializeResponse"),
    (methods.AuthenticateRequest, "AuthenticateRequest"),
    (methods.NewSessionRequest, "NewSessionRequest"),
    (methods.NewSessionResponse, "NewSessionResponse"),
    (methods.LoadSessionRequest, "LoadSessionRequest"),
    (methods.SessionSetup, "LoadSessionResponse"),
    (methods.ResumeSessionRequest, "ResumeSessionRequest"),
    (methods.SessionSetup, "ResumeSessionResponse"),
    (methods.ListSessionsRequest, "ListSessionsRequest"),
    (methods.ListSessionsResponse, "ListSessionsResponse"),
    (methods.SessionRequest, "CloseSessionRequest"),
    (methods.SessionRequest, "DeleteSessionRequest"),
    (methods.SessionRequest, "CancelNotification"),
    (methods.SessionNotification, "SessionNotification"),
    (methods.SetModeRequest, "SetSessionModeRequest"),
    (methods.SetConfigOptionRequest, "SetSessionConfigOptionRequest"),
    (methods.SetConfigOptionResponse, "SetSessionConfigOptionResponse"),
    (methods.PromptRequest, "PromptRequest"),
    (methods.PromptResponse, "PromptResponse"),
    (updates.SessionUpdate, "SessionUpdate"),
    (methods.RequestPermissionRequest, "RequestPermissionRequest"),
    (methods.RequestPermissionResponse, "RequestPermissionResponse"),
    (methods.CreateElicitationRequest, "CreateElicitationRequest"),
    (methods.CreateElicitationResponse, "CreateElicitationResponse"),
    (methods.CompleteElicitationNotification, "CompleteElicitationNotification"),
    (methods.ReadTextFileRequest, "ReadTextFileRequest"),
    (methods.ReadTextFileResponse, "ReadTextFileResponse"),
    (methods.WriteTextFileRequest, "WriteTextFileRequest"),
    (methods.CreateTerminalRequest, "CreateTerminalRequest"),
    (methods.CreateTerminalResponse, "CreateTerminalResponse"),
    (methods.TerminalRequest, "TerminalOutputRequest"),
    (methods.TerminalRequest, "WaitForTerminalExitRequest"),
    (methods.TerminalRequest, "KillTerminalRequest"),
    (methods.TerminalRequest, "ReleaseTerminalRequest"),
    (methods.TerminalOutputResponse, "TerminalOutputResponse"),
    (methods.TerminalExitStatus, "WaitForTerminalExitResponse"),
    (rpc.CancelRequestNotification, "CancelRequestNotification"),
    (rpc.RpcError, "Error"),
)


# What we read and a published schema does not have, and why: by its place, or in all its words where a place has more.
KNOWN: Final = {
    "PromptResponse.usage": "in the unstable schema only, and agents send it",
    **{
        f"SessionUpdate: ours reads a variant {tag}, and it is not published": "in the unstable schema only"
        for tag in ("plan_update", "plan_removed")
    },
    "SessionSetup.models": "an older form, which agents still send",
    "NewSessionResponse.models": "an older form, which agents still send",
}


def acp_fitted(inventory: Inventory) -> Fitted:
    found = fit(OURS, Published(inventory))
    return replace(
        found, misfits=tuple(each for each in found.misfits if not {each.where, str(each)} & KNOWN.keys())
    )


# `extract` and `check`.


@dataclass(frozen=True, slots=True)
class Report:
    """What is to be said of one publisher; `drifted` where somebody has to look at it."""

    lines: tuple[str, ...]
    drifted: bool = False


async def extract(name: str | None, places: Places, out: Path) -> list[Report]:
    """Without a name all of them; one that is not here keeps the inventory that there is. `out` is a folder."""
    found = []
    for each in _chosen(name):
        program = each.find(places)
        if program is None:
            found.append(_absent(each, named=name is not None))
            continue
        inventory = await each.extract(program)
        (out / f"{each.name}.json").write_bytes(written(inventory))
        count = len(inventory.definitions)
        found.append(Report((f"{each.name} {inventory.version}: written, {count} definitions",)))
    return found


async def check(name: str | None, places: Places) -> list[Report]:
    found = []
    for each in _chosen(name):
        program = each.find(places)
        if program is None:
            found.append(_absent(each, named=name is not None))
        else:
            found.append(compared(committed(each.name), await each.extract(program)))
    return found


def compared(before: Inventory, after: Inventory) -> Report:
    found = [str(each) for each in changes(before, after)]
    if after.agent == "acp":
        found += [f"Legation's {each}" for each in acp_fitted(after).misfits]
    versions = after.version if after.version == before.version else f"{before.version} and {after.version}"
    head = f"{after.agent} {versions}: {f'{len(found)} differences' if found else 'no difference'}"
    return Report((head, *(f"  {each}" for each in found)), drifted=bool(found))


def _chosen(name: str | None) -> Iterable[Extractor]:
    return EXTRACTORS.values() if name is None else (extractor(name),)


def _absent(each: Extractor, *, named: bool) -> Report:
    if named:
        raise NotFound(f"cannot find the program or package of {each.name} on this machine; {each.remedy}")
    kept = committed(each.name).version
    return Report((f"{each.name}: not on this machine, so the inventory of {kept} stands; {each.remedy}",))
