"""Runs over HTTP: camelCase. A submission's `secrets` is the one member that may hold any."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from legation.wire.api.approvals import Value
from legation.wire.api.sessions import LocalMcp, Name, RemoteMcp, Skills, Where
from legation.wire.api.shape import RequestBody, ResponseBody

# The names that seed 004's successor has; runs/states.py projects ours to them.
RunStatus = Literal[
    "queued",
    "claiming",
    "provisioning",
    "session_created",
    "dispatched",
    "provider_running",
    "provider_idle",
    "provider_rescheduled",
    "cancelling",
    "capturing_outputs",
    "cleaning_up",
    "succeeded",
    "failed",
    "timed_out",
    "cancelled",
    "cleanup_failed",
    "pending_delete",
    "deleted",
]
Liveness = Literal["working", "waiting-on-you", "waiting-on-provider", "idle", "looping", "hung"]
Priority = Literal["low", "normal", "high"]
PromptText = Annotated[str, Meta(min_length=1, max_length=4 * 1024 * 1024)]
Seconds = Annotated[float, Meta(gt=0, le=30 * 86400)]
VariableName = Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]{0,127}$(?!\n)")]
SecretText = Annotated[str, Meta(min_length=6, max_length=16 * 1024)]
SkillText = Annotated[str, Meta(min_length=1, max_length=256 * 1024)]
HeaderName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]{1,40}$(?!\n)")]
TemplateName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,30}$(?!\n)")]
RunKey = Annotated[str, Meta(pattern=r"^[!-~]{1,255}$(?!\n)")]


def _null() -> msgspec.Raw:
    return msgspec.Raw(b"null")  # in a union with None, msgspec would read no JSON into it


class EmptyPlace(RequestBody, tag_field="type", tag="empty", kw_only=True):
    """A new folder with nothing in it."""


class FolderPlace(RequestBody, tag_field="type", tag="folder", kw_only=True):
    """A folder of the machine that runs it, in which the agent works as it is."""

    path: Where


class GitPlace(RequestBody, tag_field="type", tag="git", kw_only=True):
    """A clone, for this run alone. `ref`: a branch, tag or commit; else what the repository has checked out."""

    url: Where
    ref: Name | None = None


class RunTimeouts(RequestBody, kw_only=True):
    """`run`: of all of it, its waits included."""

    run: Seconds | None = None
    idle: Seconds | None = None


class RunEnvironment(RequestBody, kw_only=True):
    """`packages` and a `networking` that is limited take a sandbox that can see to it: without one they are refused, never passed over."""

    env_vars: Mapping[VariableName, Annotated[str, Meta(max_length=4096)]] = {}
    packages: Mapping[Literal["apt", "cargo", "gem", "go", "npm", "pip"], list[Name]] = {}
    networking: Literal["limited", "open"] | None = None


class RunCleanup(RequestBody, kw_only=True):
    """`retain`: the folder that was made for the run stays; its secrets never do. Without it, as the installation says."""

    retain: bool | None = None


class RunSpec(RequestBody, kw_only=True):
    """What is to be done. It holds no secret: sealed as it is with the run, and the body of a template."""

    agent: Name
    prompts: Annotated[list[PromptText], Meta(min_length=1, max_length=64)]
    model: Name | None = None
    workspace: EmptyPlace | FolderPlace | GitPlace = EmptyPlace()
    policy: Name | None = None
    timeouts: RunTimeouts = RunTimeouts()
    mcp_servers: Mapping[Name, LocalMcp | RemoteMcp] = {}
    skills: Skills | None = None
    environment: RunEnvironment = RunEnvironment()
    cleanup: RunCleanup = RunCleanup()


class ProviderKey(RequestBody, kw_only=True):
    api_key: SecretText

    def __repr__(self) -> str:
        return "<ProviderKey>"


class McpSecrets(RequestBody, kw_only=True):
    """Headers of a remote server, or variables of a local one, by the name that it has in `mcpServers`. A `url` must be the one there."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,32}$(?!\n)")]
    url: Where | None = None
    headers: Mapping[HeaderName, SecretText] = {}
    env: Mapping[VariableName, SecretText] = {}

    def __repr__(self) -> str:
        return f"<McpSecrets {self.name}>"


class SkillSecret(RequestBody, kw_only=True):
    """A skill that nobody else is to read: the text of its `SKILL.md`."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}$(?!\n)")]
    text: SkillText

    def __repr__(self) -> str:
        return f"<SkillSecret {self.name}>"


class RunSecrets(RequestBody, kw_only=True):
    """The one member of a submission that holds secrets: the key of the provider that the agent uses (`custom` for an agent of the
    owner's own), what MCP servers are shown, and skills that are secret. Kept sealed for the life of the run, and in nothing else."""

    anthropic: ProviderKey | None = None
    openai: ProviderKey | None = None
    google: ProviderKey | None = None
    amp: ProviderKey | None = None
    custom: ProviderKey | None = None
    mcp_servers: Annotated[tuple[McpSecrets, ...], Meta(max_length=64)] = ()
    skills: Annotated[tuple[SkillSecret, ...], Meta(max_length=32)] = ()

    def __repr__(self) -> str:
        return "<RunSecrets>"


class RunSubmission(RequestBody, kw_only=True):
    """A run to be made: of a `template` (its id or hash), or of what stands here. `variables` fill `{{name}}` in prompts and in the
    workspace. With a key, what is submitted again is the same run; the header `Idempotency-Key` says the same."""

    template: Name | None = None
    agent: Name | None = None
    prompt: PromptText | None = None
    prompts: Annotated[list[PromptText], Meta(min_length=1, max_length=64)] | None = None
    model: Name | None = None
    workspace: EmptyPlace | FolderPlace | GitPlace | None = None
    policy: Name | None = None
    timeouts: RunTimeouts | None = None
    mcp_servers: Mapping[Name, LocalMcp | RemoteMcp] | None = None
    skills: Skills | None = None
    environment: RunEnvironment | None = None
    cleanup: RunCleanup | None = None
    variables: Mapping[Name, Annotated[str, Meta(max_length=1024 * 1024)]] = {}
    secrets: RunSecrets | None = None
    priority: Priority = "normal"
    idempotency_key: RunKey | None = None


class RunBatch(RequestBody, kw_only=True):
    """Submissions, each as `POST /v1/runs` takes it, and each accepted or refused by itself."""

    runs: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=1000)]


class NewTemplate(RequestBody, kw_only=True):
    name: TemplateName
    run: RunSpec


class RunResume(RequestBody, kw_only=True):
    """Secrets of a run that goes on: those that it had went with its end."""

    secrets: RunSecrets | None = None


class RunMessage(RequestBody, kw_only=True):
    """Something further to say to the agent of a run: its next turn, when the one that runs has ended."""

    message: PromptText


class RunView(ResponseBody, kw_only=True):
    """`state` is Legation's own, `status` its name in antpath's successor. Times are milliseconds since the epoch."""

    id: str
    state: str
    status: RunStatus
    agent: str
    provider: str
    priority: Priority
    attempt: int
    created_at: int
    creator: str
    creator_user: str | None = None
    template: str | None = None
    template_hash: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    deadline_at: int | None = None
    waits_for: str | None = None  # an approval
    waits_on: Literal["supervisor", "person"] | None = (
        None  # who is to answer it, of one that is read by itself
    )
    resume_at: int | None = None
    cancel_requested_at: int | None = None
    cleanup: str = "not_started"
    error_class: str | None = None
    error_code: str | None = None
    error_reason: str | None = None
    liveness: Liveness | None = None  # of one that is read by itself
    notice: str | None = None  # why nothing happens, where Legation knows: no worker is there
    title: str | None = (
        None  # the first line of what was prompted, of one that is read by itself, and in lists with `details`
    )
    cost_usd: float | None = None  # in lists with `details`, where the agent tells it


class BatchedRun(ResponseBody, kw_only=True):
    """Fate of one submission of a batch: the run, or the problem. `created` is false for one that was there already."""

    run: RunView | None = None
    created: bool = False
    problem: Mapping[str, Value] | None = None


class RunsBatched(ResponseBody, kw_only=True):
    """In the order in which they were sent."""

    results: list[BatchedRun]


class RunLease(ResponseBody, kw_only=True):
    owner: str
    expires_at: int


class RunAttempt(ResponseBody, kw_only=True):
    """One start of the agent. From `handed_at` on the prompt may have been with it."""

    number: int
    machine: str
    created_at: int
    handed_at: int | None = None
    ended_at: int | None = None
    error_class: str | None = None
    error_code: str | None = None


class RunUsage(ResponseBody, kw_only=True):
    """What the agent told, over all attempts; null is not told."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None


class RunCleanupStep(ResponseBody, kw_only=True):
    """Something that was made for the run (`runner`, `folder`), or its `secrets`, and whether it is gone."""

    kind: str
    name: str
    state: str
    tries: int = 0
    at: int | None = None
    error_code: str | None = None
    error_reason: str | None = None


class RunDetails(ResponseBody, kw_only=True):
    """What a run was submitted as and what became of it. `lease`: the worker that has it in its hands at this moment; `machine`:
    where it works. `submission` is null where its content is deleted; it never holds a secret."""

    id: str
    submission: RunSpec | None
    machine: str | None
    lease: RunLease | None
    attempts: list[RunAttempt]
    usage: RunUsage
    cleanup: list[RunCleanupStep]


class RunEventView(ResponseBody, kw_only=True):
    """`payload` is the event as it was reported; null where only the metadata was asked for."""

    seq: int
    attempt: int
    type: str
    at: int
    bytes: int
    payload: msgspec.Raw = msgspec.field(default_factory=_null)


class RunFile(ResponseBody, kw_only=True):
    """A file that a run changed; of a `binary` one the patch has nothing."""

    path: str
    status: str
    added: int = 0
    removed: int = 0
    binary: bool = False


class RunChanges(ResponseBody, kw_only=True):
    """What the newest attempt of a run changed in its folder, as its runner reported it when it ended. `git apply` takes the patch; `incomplete`
    says in words what it does not have. `attempt` is null where none was reported yet."""

    attempt: int | None = None
    files: tuple[RunFile, ...] = ()
    patch: str = ""
    incomplete: str | None = None


class TemplateView(ResponseBody, kw_only=True):
    """`run` is null in lists."""

    id: str
    name: str
    hash: str
    created_at: int
    creator: str
    run: msgspec.Raw = msgspec.field(default_factory=_null)
