"""What may be submitted: names that look like secrets, hashes that are the same everywhere."""

import hashlib

import msgspec
import pytest

from legation.runs.submit import check_names, request_hash
from legation.runs.templates import template_hash
from legation.secret import looks_secret
from legation.wire.api.runs import (
    EmptyPlace,
    GitPlace,
    NewTemplate,
    ProviderKey,
    RunCleanup,
    RunEnvironment,
    RunSecrets,
    RunSpec,
    RunSubmission,
    RunTimeouts,
)
from legation.wire.api.sessions import LocalMcp

# A-SEC-11, and what people call such things besides.
SECRET = (
    *("providerApiKey", "anthropicApiKey", "apiKey", "accessToken", "refreshToken", "password", "mcpCredentials", "credentials"),
    *("API_KEY", "apikey", "X-Api-Key", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "GITHUB_TOKEN", "authToken", "Authorization"),
    *("client_secret", "clientSecret", "DB_PASSWORD", "passwd", "passphrase", "private-key", "Cookie", "bearer", "token", "sessionToken"),
)  # fmt: skip
PLAIN = (
    *("CI", "PATH", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "keyboard", "monkey", "author", "SECRETARY", "cookies_enabled", "path"),
    *("passwordless", "KEYS", "LOG_LEVEL", "tokenizer", "bearing", "apikeyless"),
)  # fmt: skip


@pytest.mark.parametrize("name", SECRET)
def test_a_name_of_a_secret_is_known(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", PLAIN)
def test_another_name_is_let_pass(name: str) -> None:
    assert not looks_secret(name)


def test_a_prompt_may_speak_of_keys() -> None:
    check_names(RunSpec(agent="claude", prompts=['Rotate the apiKey: "password": "x"']))


SPEC = RunSpec(
    agent="rehearsal", prompts=["fix {{it}}"], environment=RunEnvironment(env_vars={"B": "2", "A": "1"})
)


SAID = '{"name":"t","run":{"agent":"rehearsal","environment":{"envVars":{"A":"1","B":"2"}},"prompts":["fix {{it}}"],"workspace":{"type":"empty"}}}'
HASH = hashlib.sha256(SAID.encode()).hexdigest()


def test_a_template_has_the_same_hash_in_every_process_and_release() -> None:
    """Whoever keeps one in code compares it with what is here: a change of this text is a change for them."""
    again = RunSpec(
        agent="rehearsal", prompts=["fix {{it}}"], environment=RunEnvironment(env_vars={"A": "1", "B": "2"})
    )
    assert template_hash(NewTemplate(name="t", run=SPEC)) == template_hash(NewTemplate(name="t", run=again))
    assert template_hash(NewTemplate(name="t", run=SPEC)) == HASH
    assert template_hash(NewTemplate(name="u", run=SPEC)) != HASH


def test_no_secret_is_in_the_hash_of_a_request() -> None:
    given = RunSubmission(agent="rehearsal", prompt="x")
    keyed = RunSubmission(
        agent="rehearsal", prompt="x", secrets=RunSecrets(custom=ProviderKey(api_key="a-secret"))
    )
    assert request_hash(given, SPEC, None) == request_hash(keyed, SPEC, None)
    assert request_hash(
        RunSubmission(agent="rehearsal", prompt="x", priority="high"), SPEC, None
    ) != request_hash(given, SPEC, None)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "workspace": EmptyPlace(),
            "timeouts": RunTimeouts(),
            "mcp_servers": {},
            "environment": RunEnvironment(),
        },
        {"workspace": GitPlace(url="https://host.example/x"), "timeouts": RunTimeouts(run=5), "model": "m"},
        {"mcp_servers": {"s": LocalMcp(command="x", args=("a",))}, "cleanup": RunCleanup(retain=True)},
    ],
)
def test_a_request_has_the_hash_that_earlier_releases_gave_it(more: dict[str, object]) -> None:
    spec = RunSpec(agent="rehearsal", prompts=["a", ""], **more)  # type: ignore[arg-type]
    said: dict[str, object] = {"run": spec, "template": None, "variables": {}, "priority": "normal"}
    plain = msgspec.json.encode(without_open(msgspec.to_builtins(said)), order="sorted")
    found = request_hash(RunSubmission(agent="rehearsal", prompt="a"), spec, None)
    assert found == hashlib.sha256(plain).hexdigest()


def without_open(value: object) -> object:
    """As it was written first: everything in builtins, what is None or empty left out."""
    if isinstance(value, dict):
        said = {name: without_open(each) for name, each in value.items()}
        return {name: each for name, each in said.items() if each not in (None, {}, [])}
    return [without_open(each) for each in value] if isinstance(value, list | tuple) else value
