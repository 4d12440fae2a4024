"""Submission of runs: what may be submitted, and the one transaction that keeps it.

INV-M1  What is refused leaves one row in the audit log, and nothing else; who comes too often is refused before that.
INV-M2  Secrets (vault), snapshot (sealed page), row and audit row of a run are one transaction: there is never one without the others.
INV-M3  `secrets` is the one carrier: it is in no hash, no snapshot and no row. A name that looks like a secret's anywhere else is refused.
INV-M4  A key of a workspace names one run for ever: the same request again is that run, another one a `Conflict`. Concurrent
        ones are told apart by the unique index, and by the order within a group.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

import msgspec

from legation.agents.catalogue.entries import KNOWN, CatalogueEntry
from legation.approvals.policy.rules import PolicySet
from legation.clock import Clock, new_id
from legation.errors import Conflict, InvalidParams, LegationError, NotFound, TooLarge
from legation.runs.lists import notice_of, resume_run, view_of_new
from legation.runs.run import SQL, SUBMISSION, TOPIC, NewRun, Run, RunCaps, added_row
from legation.runs.templates import StoredTemplate, digest_of, find_template
from legation.secret import Secret, looks_secret
from legation.store.audit import record_each, records_insertion
from legation.store.database.transaction import (
    Dangling,
    Database,
    Duplicate,
    Overtaken,
    Queries,
    Statement,
    Transaction,
    conditional,
    only,
    with_insertions,
)
from legation.store.secrets.sealer import is_plain
from legation.store.secrets.vault import (
    MAX_PAGE,
    ContentStore,
    FirstPage,
    SealedBundle,
    Vault,
    bundles_insertion,
)
from legation.tasks import Groups
from legation.wire.api.runs import (
    FolderPlace,
    GitPlace,
    McpSecrets,
    RunSecrets,
    RunSpec,
    RunSubmission,
    RunView,
)
from legation.wire.api.sessions import LocalMcp, RemoteMcp
from legation.wire.principal import Principal

MOST_AT_ONCE: Final = 64  # runs that are added by one transaction: some milliseconds of work
GROUPS_AT_ONCE: Final = (
    2  # transactions that add runs of a workspace: one is made while the database does another
)
READY_AT_ONCE: Final = 10  # runs of a batch that are sealed before others have their turn: a millisecond
MOST_VARIABLES: Final = 64  # A-ENV-14, this one and the next three
VARIABLE_BYTES: Final = 4096
VARIABLES_BYTES: Final = 65536
RESERVED: Final = "LEGATION_"
# What a loader, a shell or an interpreter obeys before its program begins, and what agents read their own rules by: whoever may
# set these runs code unasked, or has the agent ask no more.
_STEERS: Final = re.compile(
    r"(LD|DYLD|XDG|GEMINI_CLI)_.*|CLAUDE_(CONFIG_DIR|ENV_FILE|CODE_SHELL.*)|OPENCODE_(CONFIG|PERMISSION).*|CODEX_HOME|AMP_SETTINGS.*"
    r"|GIT_(EXEC_PATH|SSH.*|CONFIG.*|.*ASKPASS|EXTERNAL_DIFF|PAGER|EDITOR)|PATH|HOME|TMPDIR|SHELL|IFS|ENV|BASH_ENV|PROMPT_COMMAND|PS4"
    r"|NODE_OPTIONS|NODE_PATH|PYTHON(PATH|STARTUP|HOME)|PERL5(OPT|LIB)|RUBYOPT"
)
PROVIDER: Final = "sandbox"

_LISTS: Final = Queries("run_lists")
_REPOSITORY: Final = re.compile(
    r"(https?|ssh|git)://[^/]|file:///|([A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:[^:]"
)
_REF: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+@-]*", re.ASCII)
_PLACEHOLDER: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*\}\}")
# Of a submission that is made of a template: all else is the template's.
_BESIDE_TEMPLATE: Final = frozenset(
    {"template", "variables", "secrets", "priority", "idempotency_key", "cleanup"}
)
_OF_SPEC: Final = tuple(name for name in RunSubmission.__struct_fields__ if name in RunSpec.__struct_fields__)

# Variables that agents read their keys from, by the provider whose they are.
PROVIDERS: Final[Mapping[str, str]] = {
    "ANTHROPIC_API_KEY": "anthropic",
    "OPENAI_API_KEY": "openai",
    "GEMINI_API_KEY": "google",
    "AMP_API_KEY": "amp",
}

FindAgent: TypeAlias = Callable[[str], Awaitable[CatalogueEntry]]


class Submitted(msgspec.Struct, frozen=True):
    """`created` is false where the key was used before, for the same; else `view` is the run as it is in the queue."""

    run_id: str
    created: bool
    view: RunView | None = None


class _Ready(msgspec.Struct, frozen=True):
    """A submission that was found good, sealed."""

    by: Principal
    run: NewRun
    page: FirstPage
    bundle: SealedBundle | None


class RunSubmitter:
    """The way in for runs, of one server. Submissions of a workspace that come at once are kept by one transaction."""

    def __init__(
        self,
        database: Database,
        vault: Vault,
        content: ContentStore,
        clock: Clock,
        *,
        caps: RunCaps,
        find_agent: FindAgent,
        policies: Callable[[], PolicySet],
    ) -> None:
        self._database = database
        self._vault = vault
        self._content = content
        self._clock = clock
        self._caps = caps
        self._find_agent = find_agent
        self._policies = policies
        self._groups = Groups("legation-runs", self._add_together, MOST_AT_ONCE, GROUPS_AT_ONCE)

    async def submit(self, by: Principal, given: RunSubmission, key: str | None = None) -> Submitted:
        """Keep a run, or find the one that its key names."""
        ready = await self._ready(by, given, key, {})
        return await self._groups.add(by.workspace, ready)

    async def submit_each(
        self, by: Principal, given: Sequence[RunSubmission | LegationError]
    ) -> list[Submitted | LegationError]:
        """Keep many; of each what became of it. What could not be read is an error already."""
        templates: dict[str, StoredTemplate] = {}
        fates: list[_Ready | Submitted | LegationError] = []
        for number, each in enumerate(given, 1):
            try:
                fates.append(
                    each if isinstance(each, LegationError) else await self._ready(by, each, None, templates)
                )
            except LegationError as error:
                fates.append(error.with_traceback(None))  # which would keep all of the batch
            if number % READY_AT_ONCE == 0:
                await asyncio.sleep(0)
        # One that repeats the key of another comes behind it: two groups are kept at once.
        ready, again, keys = list[_Ready](), list[_Ready](), set[str]()
        for fate in fates:
            if isinstance(fate, _Ready):
                key = fate.run.idempotency_key
                (again if key in keys else ready).append(fate)
                keys |= set() if key is None else {key}
        kept: dict[str, Submitted | Exception] = {}
        for some in (ready, again):
            added = await self._groups.add_each(by.workspace, some)
            kept |= {each.run.id: fate for each, fate in zip(some, added, strict=True)}
        found: list[Submitted | LegationError] = []
        for fate in fates:
            outcome = kept[fate.run.id] if isinstance(fate, _Ready) else fate
            if not isinstance(outcome, Submitted | LegationError):
                raise outcome
            found.append(outcome)
        return found

    async def resume(self, by: Principal, run: Run, secrets: RunSecrets | None) -> None:
        """Have a failed run go on. Its secrets went with its end, so they come anew, as with a submission."""
        pages = await self._content.read(by.workspace, run.id, SUBMISSION)
        if not pages:
            raise NotFound("cannot resume the run: what was submitted is deleted; submit it anew")
        spec = msgspec.json.decode(pages[0].plain, type=RunSpec)
        bundle = bundle_of(await self._entry(spec.agent), spec, secrets)
        sealed = self._vault.sealed(by.workspace, run.id, bundle) if bundle else None
        await self._database.transact(resume_run, by, run, sealed, now_ms=self._clock.now_ms())
        self._database.notify(TOPIC)

    async def refuse(self, by: Principal, errors: Sequence[LegationError]) -> None:
        """Write down that submissions were refused, and for which reasons."""
        rows = [(by, "runs", {"code": error.code.value.partition("/")[2]}) for error in errors]
        await self._database.transact(record_each, "run.refused", rows, self._clock.now_ms())

    async def _ready(
        self, by: Principal, given: RunSubmission, key: str | None, templates: dict[str, StoredTemplate]
    ) -> _Ready:
        """`templates` are those that were found for others of its batch."""
        check_names(given)
        template, spec = await self._spec(by.workspace, given, templates)
        entry = await self._entry(spec.agent)
        if template is not None or given.variables:
            check_names(spec)  # once more: it holds by now what was not looked at
        check_spec(spec, self._caps)
        self._check_policy(spec.policy, entry.name)
        bundle = bundle_of(entry, spec, given.secrets)
        plain = msgspec.json.encode(spec)
        if len(plain) > MAX_PAGE:
            raise TooLarge(f"cannot take a run of more than {MAX_PAGE} bytes: put files into its workspace")
        now = self._clock.now_ms()
        run_id = new_id("run", now_ms=now)
        sealed = self._vault.sealed(by.workspace, run_id, bundle) if bundle else None
        run = NewRun(
            id=run_id,
            workspace=by.workspace,
            creator_kind=by.kind,
            creator=by.id,
            creator_user=by.user,
            agent=entry.name,
            provider=PROVIDER,
            caps=msgspec.structs.replace(self._caps, policy=spec.policy),
            request_hash=request_hash(given, spec, template),
            priority=given.priority,
            idempotency_key=_key_of(given.idempotency_key, key),
            template_id=template.id if template else None,
            template_hash=template.hash if template else None,
            secret_id=sealed.id if sealed else None,
        )
        return _Ready(by, run, self._content.first_page(by.workspace, run_id, SUBMISSION, plain), sealed)

    def _check_policy(self, name: str | None, agent: str) -> None:
        in_force = self._policies()
        found = None if name is None else in_force.named(name)
        if name is not None and (found is None or not found.covers(agent)):
            there = ", ".join(dict.fromkeys(each.name for each in in_force.policies if each.covers(agent)))
            raise InvalidParams(
                f"cannot run {agent} under that policy: name one in force ({there}), or one that `legation policy starters` lists",
                {"path": "$.policy"},
            )

    async def _entry(self, name: str) -> CatalogueEntry:
        return _known().get(name) or await self._find_agent(name)

    async def _spec(
        self, workspace: str, given: RunSubmission, templates: dict[str, StoredTemplate]
    ) -> tuple[StoredTemplate | None, RunSpec]:
        if given.template is None:
            return None, filled(inline_spec(given), given.variables)
        own = [name for name in RunSubmission.__struct_fields__ if name not in _BESIDE_TEMPLATE]
        if doubled := [name for name in own if getattr(given, name) is not None]:
            raise InvalidParams(
                f"cannot make a run of a template and of {', '.join(doubled)}; leave out one or the other"
            )
        template = templates.get(given.template)
        if template is None:
            template = await find_template(self._database, self._content, workspace, given.template)
            templates[given.template] = template
        spec = filled(template.spec, given.variables, whole=True)
        if given.cleanup is not None:
            spec = msgspec.structs.replace(spec, cleanup=given.cleanup)
        return template, spec

    async def _add_together(self, workspace: str, ready: list[_Ready]) -> list[Submitted | Exception]:
        outcomes = await self._database.transact(_add_each, workspace, ready, now_ms=self._clock.now_ms())
        if any(isinstance(each, Submitted) and each.created for each in outcomes):
            self._database.notify(TOPIC)
        return outcomes


@cache
def _known() -> Mapping[str, CatalogueEntry]:
    return {name: each for each in reversed(KNOWN) for name in (*each.aliases, each.name)}


# Safe under read committed: rows have new random ids; a key that another used meanwhile breaks the unique index, and then all of
# it is done again, and finds that one.
@conditional
def _add_each(
    workspace: str, ready: Sequence[_Ready], *, now_ms: int
) -> Transaction[list[Submitted | Exception]]:
    keys = sorted({each.run.idempotency_key for each in ready if each.run.idempotency_key is not None})
    known: dict[str, tuple[str, str]] = {}
    if keys:
        rows = yield _LISTS.by_keys(workspace=workspace, keys=msgspec.json.encode(keys).decode())
        known = {row["idempotency_key"]: (row["id"], row["request_hash"]) for row in rows}
    outcomes: list[Submitted | Exception] = []
    fresh: list[_Ready] = []
    for each in ready:
        run = each.run
        found = known.get(run.idempotency_key) if run.idempotency_key is not None else None
        if found is None:
            fresh.append(each)
            outcomes.append(Submitted(run.id, created=True))
            if run.idempotency_key is not None:
                known[run.idempotency_key] = run.id, run.request_hash
        elif found[1] == run.request_hash:
            outcomes.append(Submitted(found[0], created=False))
        else:
            outcomes.append(
                Conflict(
                    "cannot submit this with that idempotency key: it was used for another run; take another key"
                )
            )
    if not fresh:
        return outcomes
    try:
        # INV-M2, and one way to the database and back.
        seen = only((yield with_insertions(_LISTS.worker_seen(), _insertions(fresh, now_ms))))
    except Duplicate:
        raise Overtaken("cannot submit a run: another with that key was faster; try again") from None
    except Dangling:
        raise NotFound("cannot submit a run there: there is no such workspace; create it first") from None
    notice = notice_of(seen["at"] if seen else None, now_ms=now_ms)
    views = {each.run.id: view_of_new(each.run, notice, now_ms=now_ms) for each in fresh}
    return [
        Submitted(each.run_id, created=True, view=views[each.run_id])
        if isinstance(each, Submitted) and each.created
        else each
        for each in outcomes
    ]


def _insertions(fresh: Sequence[_Ready], now_ms: int) -> Iterator[Statement]:
    yield bundles_insertion([each.bundle for each in fresh if each.bundle is not None])
    yield from ContentStore.first_insertions([each.page for each in fresh])
    yield SQL.each("add_run", [added_row(each.run, now_ms=now_ms) for each in fresh])
    changes = [(each.by, each.run.id, _details(each.run)) for each in fresh]
    yield records_insertion("run.submitted", changes, now_ms)


def _details(run: NewRun) -> dict[str, str | int | bool | None]:
    return {"agent": run.agent if is_plain(run.agent) else None, "template": run.template_id}


def request_hash(given: RunSubmission, spec: RunSpec, template: StoredTemplate | None) -> str:
    """Hash what is to be done, and no secret: whoever submits again with a renewed key means the same run."""
    meant = {
        "run": spec,
        "template": template.hash if template else None,
        "variables": given.variables,
        "priority": given.priority,
    }
    return digest_of(meant)


def _key_of(inside: str | None, header: str | None) -> str | None:
    """Digest a key: somebody has typed it."""
    if inside is not None and header is not None and inside != header:
        raise InvalidParams("cannot take two idempotency keys: give it as a header or in the body")
    key = inside if inside is not None else header
    return None if key is None else hashlib.sha256(key.encode()).hexdigest()


# What is submitted.


def inline_spec(given: RunSubmission) -> RunSpec:
    if given.agent is None:
        raise InvalidParams("cannot submit a run without an agent; name one, or a template")
    if (given.prompt is None) == (given.prompts is None):
        raise InvalidParams("cannot submit a run without a prompt; give `prompt`, or several as `prompts`")
    chosen = {name: value for name in _OF_SPEC if (value := getattr(given, name)) is not None}
    return RunSpec(**{"prompts": [given.prompt], **chosen})


def filled(spec: RunSpec, variables: Mapping[str, str], *, whole: bool = False) -> RunSpec:
    """Fill `{{name}}` in prompts and in the workspace. `whole`: it is a template's, so none may stay open."""
    if not (variables or whole):
        return spec
    used: set[str] = set()

    def fill(text: str) -> str:
        def value(found: re.Match[str]) -> str:
            used.add(found[1])
            return variables.get(found[1], found[0])

        return _PLACEHOLDER.sub(value, text)

    place = spec.workspace
    if isinstance(place, FolderPlace):
        place = FolderPlace(path=fill(place.path))
    elif isinstance(place, GitPlace):
        place = GitPlace(url=fill(place.url), ref=None if place.ref is None else fill(place.ref))
    made = msgspec.structs.replace(spec, prompts=[fill(each) for each in spec.prompts], workspace=place)
    if missing := sorted(used - variables.keys()):
        raise InvalidParams(f"cannot fill {', '.join(missing)}: give each a value in `variables`")
    if unused := sorted(variables.keys() - used):
        raise InvalidParams(
            f"cannot use the variables {', '.join(unused)}: nothing names them; leave them out"
        )
    return made


def check_names(given: RunSubmission | RunSpec) -> None:
    """INV-M3: refuse what looks like a secret outside of `secrets`, by name and path."""
    for path, name in _secret_names(given, "$"):
        raise InvalidParams(
            f"cannot take {name} at {path}: it looks like a secret; put secrets into `secrets`, where they are sealed",
            {"name": name, "path": path},
        )


def _secret_names(value: object, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, msgspec.Struct):
        for member, name, secret, default in _members(type(value)):
            each = getattr(value, member)
            if each is not None and each is not default:
                yield from _named_secret(each, f"{path}.{name}", name, secret=secret)
    elif isinstance(value, dict):
        for name, each in value.items():
            if each is not None:
                yield from _named_secret(each, f"{path}.{name}", str(name), secret=looks_secret(str(name)))
    elif isinstance(value, str):
        if path.endswith(".url"):
            yield from _secrets_in_address(value, path)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _secret_names(each, f"{path}[{number}]")


def _named_secret(value: object, path: str, name: str, *, secret: bool) -> Iterator[tuple[str, str]]:
    if secret and not isinstance(value, dict | msgspec.Struct):
        yield path, name
    yield from _secret_names(value, path)


@cache
def _members(kind: type[msgspec.Struct]) -> Sequence[tuple[str, str, bool, object]]:
    """List the members of a shape, with their names in JSON, which of those look secret, and what they are where nothing is said;
    without the one carrier."""
    carrier = "secrets" if kind is RunSubmission else None
    return [
        (each.name, each.encode_name, looks_secret(each.encode_name), each.default)
        for each in msgspec.structs.fields(kind)
        if each.name != carrier
    ]


def _secrets_in_address(text: str, path: str) -> Iterator[tuple[str, str]]:
    try:
        parts = urlsplit(text)
        named = [name for name, _ in parse_qsl(parts.query)]
    except ValueError:
        raise InvalidParams(f"cannot read the address at {path}; write it as https://host/path") from None
    if parts.password is not None or (parts.scheme in ("http", "https") and parts.username is not None):
        yield path, "a password"
    yield from ((path, name) for name in named if looks_secret(name))


def check_spec(spec: RunSpec, caps: RunCaps) -> None:
    """A-ENV-14, and the caps of the installation."""
    variables = spec.environment.env_vars
    sizes = [len(value.encode()) for value in variables.values()]
    if (
        len(variables) > MOST_VARIABLES
        or sum(sizes) > VARIABLES_BYTES
        or max(sizes, default=0) > VARIABLE_BYTES
    ):
        raise InvalidParams(
            f"cannot take these envVars: at most {MOST_VARIABLES} of at most {VARIABLE_BYTES} bytes each and "
            f"{VARIABLES_BYTES} together; put files into the workspace"
        )
    for name, value in variables.items():
        if name.startswith(RESERVED):
            raise InvalidParams(
                f"cannot set {name}: names that begin with {RESERVED} are Legation's; choose another"
            )
        if _STEERS.fullmatch(name):
            raise InvalidParams(
                f"cannot set {name}: it decides which code runs, or what the agent asks about; choose another, or set it in the task"
            )
        if "\0" in value:
            raise InvalidParams(f"cannot set {name}: no variable can hold a NUL; leave it out")
    if spec.environment.packages:
        raise InvalidParams(
            "cannot install packages for a run here: no sandbox of this installation does that; leave them out, or have the agent do it"
        )
    if spec.environment.networking == "limited":
        raise InvalidParams(
            "cannot limit the network of a run here: no sandbox of this installation does that; leave networking out, or say open"
        )
    if isinstance(spec.workspace, GitPlace):
        _check_repository(spec.workspace)
    if spec.timeouts.run is not None and spec.timeouts.run > caps.run_seconds:
        raise InvalidParams(
            f"cannot run for {spec.timeouts.run:g} s: the most here is {caps.run_seconds:g} s"
        )


def _check_repository(place: GitPlace) -> None:
    if not _REPOSITORY.match(place.url):
        raise InvalidParams(
            "cannot clone from there: write https://host/path, ssh://host/path, host:path, or file:///path of a folder that is served",
            {"path": "$.workspace.url"},
        )
    if place.ref is not None and not _REF.fullmatch(place.ref):
        raise InvalidParams(
            "cannot check out that ref: give a branch, a tag or a commit", {"path": "$.workspace.ref"}
        )


def bundle_of(entry: CatalogueEntry, spec: RunSpec, secrets: RunSecrets | None) -> dict[str, Secret]:
    """Secrets by the names that the worker knows: variables of the agent, `mcp:<server>:<header or variable>`, `skill:<name>`."""
    given = secrets or RunSecrets()
    bundle = _provider_key(entry, given)
    for each in given.mcp_servers:
        server = spec.mcp_servers.get(each.name)
        _must_fit(each, server)
        for name, value in (*each.headers.items(), *each.env.items()):
            place = f"mcp:{each.name}:{name}"
            bundle[place] = Secret(value, place)
    if given.skills and (isinstance(spec.workspace, FolderPlace) or spec.cleanup.retain):
        raise InvalidParams(
            "cannot put a secret skill into a folder that stays: give the run a workspace that is empty or a clone, and do not "
            "retain it"
        )
    for skill in given.skills:
        place = f"skill:{skill.name}"
        bundle[place] = Secret(skill.text, place)
    return bundle


def _provider_key(entry: CatalogueEntry, given: RunSecrets) -> dict[str, Secret]:
    offered = {name: key for name in _PROVIDER_NAMES if (key := getattr(given, name)) is not None}
    wanted = providers_of(entry)
    if not wanted:
        if offered:
            raise InvalidParams(
                f"cannot take a key for {entry.name}, which needs none; leave out {', '.join(offered)}"
            )
        return {}
    choice = " or ".join(f"secrets.{name}.apiKey" for name in wanted)
    if not offered:
        raise InvalidParams(
            f"cannot run {entry.name} without a key: send {choice} with every run; a sign-in is never used for runs"
        )
    if len(offered) > 1 or not offered.keys() <= wanted.keys():
        raise InvalidParams(
            f"cannot take {', '.join(offered)} for {entry.name}: send exactly one key, as {choice}"
        )
    ((provider, key),) = offered.items()
    variable = wanted[provider]
    return {variable: Secret(key.api_key, variable)}


_PROVIDER_NAMES: Final = (*sorted(set(PROVIDERS.values())), "custom")


def providers_of(entry: CatalogueEntry) -> dict[str, str]:
    """Variables that an agent takes its key from, by provider; none where it needs no key."""
    if entry.origin == "custom":
        own = [name for name in entry.credentials if entry.is_key(name)]
        return {"custom": own[0]} if own else {}
    if not entry.needs_sign_in:
        return {}
    return {PROVIDERS[name]: name for name in entry.credentials if name in PROVIDERS}


def _must_fit(given: McpSecrets, server: LocalMcp | RemoteMcp | None) -> None:
    if server is None:
        raise InvalidParams(
            f"cannot take secrets for the MCP server {given.name}: there is none of that name in mcpServers"
        )
    if isinstance(server, RemoteMcp) and given.url not in (None, server.url):
        raise InvalidParams(f"cannot take secrets for another address than {given.name} has in mcpServers")
    if given.env if isinstance(server, RemoteMcp) else given.headers:
        kind = "headers" if isinstance(server, RemoteMcp) else "env"
        raise InvalidParams(
            f"cannot take these secrets for the MCP server {given.name}: it takes {kind} alone"
        )
