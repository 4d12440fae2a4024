"""Entries of the catalogue: what an agent is called, how it is driven, how one signs in to it.

Legation knows some (`KNOWN`). The owner's own have a stanza each in `agents.toml`:

    [agents.mine]
    command = "my-agent --acp"
    args = ["--fast"]            # more arguments, taken as they are
    env = ["MY_API_KEY"]         # variables of Legation's environment that it is given
    title = "My agent"
    asking_modes = ["careful"]   # of its modes, those in which it asks, the best first
    unasking_modes = ["turbo"]   # and those in which it does not: no session stays in one
    fs = false                   # it is not offered to have files read and written for it

That file is read as a whole: either every stanza is good, or one error lists all that is wrong.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from legation.agents.driver import AskingModes, SessionStart
from legation.agents.drivers import DriverName
from legation.errors import ConfigInvalid

NOT_A_KEY: Final = "not-a-key"
_KEY: Final = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Packaged:
    """A program in an installed agent, or of that name on PATH.

    Paths are templates below the version's folder (`TargetMachine.fill`). With `node` it is a script for that version of
    Node or a later one. `helpers` are variables that name another program of the agent, by path and by name.
    """

    inside: str
    on_path: str
    node: int | None = None
    helpers: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Direct:
    """A command line that needs no installation: built in, or the owner's own."""

    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stance:
    """Additions to a way because of the folder. `{folder}` in an argument is its path, as a text of JSON and TOML."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    beginning: SessionStart = field(default_factory=SessionStart)


@dataclass(frozen=True, slots=True)
class Way:
    """`env` is set whenever it starts so: nothing of it updates itself or reports to its maker.

    `untrusted` makes it ignore its own configuration in the folder, `trusted` makes it heed that. `obeys` are files,
    as patterns below the folder or one above it in the same repository, that it acts on whatever it is told: where
    there is one, it is not started in a folder that is not trusted. `executing` are the arguments with which one that
    does what its prompts say, word for word, also runs commands.
    """

    driver: DriverName
    program: Packaged | Direct
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    trusted: Stance = field(default_factory=Stance)
    untrusted: Stance = field(default_factory=Stance)
    obeys: tuple[str, ...] = ()
    executing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSignIn:
    """The agent's own sign-in, in its home: a program with arguments at the terminal, or a method of ACP's.

    `files` lie in the home afterwards.
    """

    files: tuple[str, ...]
    program: Packaged | None = None
    args: tuple[str, ...] = ()
    method: str | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """`credentials` are variables that it takes a key from; `synonyms` those that people set and it does not read, with
    the one that it does. `key_methods` are for an agent that takes the key of a variable only when told so, by ACP's
    `authenticate`. `passes` are variables of ours that it is given: a key without the address that it is for would go elsewhere.

    `placeholders` let it start in a clean home without reaching anything: for the doctor, and to be asked what it
    offers.
    """

    name: str
    title: str
    way: Way
    aliases: tuple[str, ...] = ()
    credentials: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    key_methods: Mapping[str, str] = field(default_factory=dict)
    passes: tuple[str, ...] = ()
    sign_in: AgentSignIn | None = None
    needs_sign_in: bool = True
    placeholders: Mapping[str, str] = field(default_factory=dict)
    origin: Literal["known", "built in", "custom"] = "known"
    modes: AskingModes = field(default_factory=AskingModes)  # where their names do not say whether it asks
    fs: bool = True  # whether it is offered to have files read and written for it; some cannot live with that
    shares: str | None = None  # the agent whose installation it is a part of
    get: str = ""  # of one that the lock has not: what its user does to have it on PATH
    asks_all: bool = False  # about each call of each tool, so that what was not approved was not done; its driver sees to that

    @property
    def package(self) -> str:
        """The name that it is locked and installed by."""
        return self.shares or self.name

    @property
    def stand_ins(self) -> dict[str, str]:
        """The placeholders, and one for every key that the owner's stanza names."""
        keys = [name for name in self.passes if self.is_key(name)]
        return {**dict.fromkeys(keys, NOT_A_KEY), **self.placeholders}

    def is_key(self, credential: str) -> bool:
        """Tell whether its value is a secret: the owner's stanza may name anything."""
        return credential not in self.passes or names_key(credential)


def names_key(variable: str) -> bool:
    """Tell by its name whether a variable holds a secret."""
    return _KEY.search(variable) is not None


# The agents that Legation knows by name.

# A port on which nothing listens: an agent that is only asked what it offers must reach nobody.
_NOWHERE: Final = "http://127.0.0.1:9"

_CLAUDE: Final = Packaged("node_modules/@anthropic-ai/claude-code-linux-{cpu}{musl}/claude", "claude")
_CLAUDE_ACP: Final = Packaged(
    "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js",
    "claude-agent-acp",
    node=22,
    helpers={"CLAUDE_CODE_EXECUTABLE": (_CLAUDE.inside, _CLAUDE.on_path)},
)
_OPENCODE: Final = Packaged("node_modules/opencode-linux-{cpu}{baseline}{musl}/bin/opencode", "opencode")
_CODEX: Final = Packaged(
    "node_modules/@openai/codex-linux-{cpu}/vendor/{machine}-unknown-linux-musl/bin/codex", "codex"
)
_CODEX_ACP: Final = Packaged("node_modules/@zed-industries/codex-acp-linux-{cpu}/bin/codex-acp", "codex-acp")
_GEMINI: Final = Packaged("node_modules/@google/gemini-cli/bundle/gemini.js", "gemini", node=20)
_AMP: Final = Packaged("node_modules/@ampcode/cli-linux-{cpu}/amp", "amp")
_PI: Final = Packaged("node_modules/pi-acp/dist/index.js", "pi-acp", node=20)
_CURSOR: Final = Packaged("bin/cursor-agent", "cursor-agent")
_PLAIN: Final = {"NO_COLOR": "1"}  # what Codex says on its standard error is for a log, not for a terminal
_CLAUDE_ENV: Final = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}

# What an agent is told of a folder that is not trusted. Each was tried on tests/agents/hostile_repository.py.

# Claude Code takes neither settings nor MCP servers of the folder, nor settings of its home: what it may once have been
# allowed to write there would run, or answer in our place. The adapter itself reads the settings there all the
# same, for the mode that a session begins in.
_CLAUDE_ACP_UNTRUSTED: Final = Stance(
    beginning=SessionStart(
        meta={"claudeCode": {"options": {"settingSources": [], "strictMcpConfig": True}}},
        mode="default",
        keeps=("plan",),
    )
)
# Codex heeds a folder's configuration only where its own says that the folder is trusted.
_CODEX_ACP_UNTRUSTED: Final = Stance(args=("-c", 'projects={{folder}={trust_level="untrusted"}}'))
_CODEX_ACP_TRUSTED: Final = Stance(args=("-c", 'projects={{folder}={trust_level="trusted"}}'))
# OpenCode then ignores everything but plug-ins: those it loads a second time, in a way that has no switch.
_OPENCODE_UNTRUSTED: Final = Stance(env={"OPENCODE_DISABLE_PROJECT_CONFIG": "1", "OPENCODE_PURE": "1"})
_GEMINI_UNTRUSTED: Final = Stance(env={"GEMINI_CLI_TRUST_WORKSPACE": "false"})
_GEMINI_TRUSTED: Final = Stance(env={"GEMINI_CLI_TRUST_WORKSPACE": "true"})
# Of itself OpenCode asks about next to nothing, in any of its modes. What touches nothing is free.
_OPENCODE_ASKS: Final = '{"*":"ask","todowrite":"allow","question":"allow"}'
_OPENCODE_OBEYS: Final = (
    "opencode.json",
    "opencode.jsonc",
    ".opencode/opencode.json",
    ".opencode/opencode.jsonc",
    ".opencode/plugin/*",
    ".opencode/plugins/*",
)

_CLAUDE_CODE: Final = CatalogueEntry(
    name="claude",
    title="Claude Code",
    way=Way("claude", _CLAUDE, env=_CLAUDE_ENV),
    credentials=("ANTHROPIC_API_KEY", "CLAUDE_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    synonyms={"CLAUDE_API_KEY": "ANTHROPIC_API_KEY"},
    passes=("ANTHROPIC_BASE_URL",),
    sign_in=AgentSignIn(program=_CLAUDE, args=("auth", "login"), files=(".claude/.credentials.json",)),
    placeholders={"ANTHROPIC_API_KEY": NOT_A_KEY, "ANTHROPIC_BASE_URL": _NOWHERE},
    asks_all=True,
)
_CODEX_APP_SERVER: Final = CatalogueEntry(
    name="codex",
    title="Codex",
    way=Way("codex", _CODEX, ("app-server",), env=_PLAIN),
    credentials=("OPENAI_API_KEY", "CODEX_API_KEY"),
    passes=("OPENAI_BASE_URL",),
    sign_in=AgentSignIn(program=_CODEX, args=("login",), files=(".codex/auth.json",)),
    placeholders={"OPENAI_API_KEY": NOT_A_KEY, "OPENAI_BASE_URL": f"{_NOWHERE}/v1"},
    asks_all=True,
)
_OPENCODE_SERVER: Final = CatalogueEntry(
    name="opencode",
    title="OpenCode",
    way=Way("opencode", _OPENCODE),
    credentials=("OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
    sign_in=AgentSignIn(
        program=_OPENCODE, args=("auth", "login"), files=(".local/share/opencode/auth.json",)
    ),
    placeholders={
        "OPENAI_API_KEY": NOT_A_KEY,
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    },
    asks_all=True,
)
MOCK: Final = "mock"  # programs written for sandbox-agent ask for it; the owner's own may stand in its place
KNOWN: Final = (
    _CLAUDE_CODE,
    _CODEX_APP_SERVER,
    _OPENCODE_SERVER,
    CatalogueEntry(
        name="amp",
        title="Amp",
        way=Way("amp", _AMP, obeys=(".amp/settings.json", ".amp/settings.jsonc", ".amp/plugins")),
        credentials=("AMP_API_KEY", "ANTHROPIC_API_KEY"),  # the second as sandbox-agent has it
        passes=("AMP_URL",),
        sign_in=AgentSignIn(program=_AMP, args=("login",), files=(".local/share/amp/secrets.json",)),
        placeholders={"AMP_API_KEY": NOT_A_KEY, "AMP_URL": _NOWHERE},
    ),
    CatalogueEntry(
        name="gemini",
        title="Gemini",
        way=Way("acp", _GEMINI, ("--acp",), trusted=_GEMINI_TRUSTED, untrusted=_GEMINI_UNTRUSTED),
        credentials=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        passes=("GOOGLE_GEMINI_BASE_URL",),
        # A fault of its own: offered `fs`, it can create no file. Without the offer it writes by itself, and asks.
        fs=False,
        sign_in=AgentSignIn(
            program=_GEMINI,
            files=(".gemini/oauth_creds.json",),
            hint="choose how to sign in, then leave it with /quit",
        ),
        placeholders={"GEMINI_API_KEY": NOT_A_KEY, "GOOGLE_GEMINI_BASE_URL": _NOWHERE},
    ),
    replace(
        _CLAUDE_CODE,
        name="claude-acp",
        title="Claude Code by ACP",
        way=Way("acp", _CLAUDE_ACP, env=_CLAUDE_ENV, untrusted=_CLAUDE_ACP_UNTRUSTED),
        shares="claude",
    ),
    replace(
        _CODEX_APP_SERVER,
        name="codex-acp",
        title="Codex by ACP",
        way=Way("acp", _CODEX_ACP, env=_PLAIN, trusted=_CODEX_ACP_TRUSTED, untrusted=_CODEX_ACP_UNTRUSTED),
        sign_in=AgentSignIn(
            method="chatgpt",
            files=(".codex/auth.json",),
            hint="a browser opens for the sign-in; without one, give OPENAI_API_KEY instead",
        ),
        key_methods={"OPENAI_API_KEY": "openai-api-key", "CODEX_API_KEY": "codex-api-key"},
    ),
    replace(
        _OPENCODE_SERVER,
        name="opencode-acp",
        title="OpenCode by ACP",
        way=Way(
            "acp",
            _OPENCODE,
            ("acp",),
            {
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_SHARE": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_PERMISSION": _OPENCODE_ASKS,
            },
            untrusted=_OPENCODE_UNTRUSTED,
            obeys=_OPENCODE_OBEYS,
        ),
        shares="opencode",
    ),
    # The last two of sandbox-agent's. Neither is locked: Pi brings some 250 packages, Cursor's program is on no registry. What
    # they obey is from their documentation.
    CatalogueEntry(
        name="pi",
        title="Pi",
        way=Way("acp", _PI, obeys=(".pi/settings.json", ".pi/extensions/*", ".pi/hooks/*", ".pi/tools/*")),
        credentials=("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"),
        placeholders={"ANTHROPIC_API_KEY": NOT_A_KEY},
        get="npm install -g pi-acp @mariozechner/pi-coding-agent",
    ),
    CatalogueEntry(
        name="cursor",
        title="Cursor",
        way=Way(
            "acp",
            _CURSOR,
            ("acp",),
            env=_PLAIN,
            obeys=(".cursor/mcp.json", ".cursor/hooks.json", ".cursor/cli.json"),
        ),
        credentials=("CURSOR_API_KEY",),
        sign_in=AgentSignIn(program=_CURSOR, args=("login",), files=(".config/cursor/auth.json",)),
        placeholders={"CURSOR_API_KEY": NOT_A_KEY},
        get="Cursor's own installer, which puts `cursor-agent` on PATH",
    ),
    CatalogueEntry(
        name="rehearsal",
        title="Rehearsal",
        way=Way(
            "acp",
            # -P: it starts in the session's folder, where others write files.
            Direct((sys.executable, "-P", "-m", "legation.agents.rehearsal")),
            executing=("--execute",),
        ),
        needs_sign_in=False,
        origin="built in",
    ),
    CatalogueEntry(
        name=MOCK,
        title="Mock",
        way=Way(
            "acp",
            Direct((sys.executable, "-P", "-m", "legation.agents.rehearsal.mock")),
            executing=("--execute",),
        ),
        needs_sign_in=False,
        origin="built in",
    ),
)


# The owner's own.

CUSTOM_FILE: Final = "agents.toml"
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CUSTOM_KEYS: Final = ("command", "args", "env", "title", "asking_modes", "unasking_modes", "fs")


def read_custom(path: Path, taken: Collection[str]) -> tuple[CatalogueEntry, ...]:
    """Read the owner's stanzas; none where there is no file. `taken` are names that are Legation's own."""
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise ConfigInvalid(f"cannot read {path}: {error.strerror}; correct or remove it") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"cannot read {path}: it is not TOML ({error}); correct it") from None
    stanzas = found.pop("agents", {})
    problems = [f"{key}: unknown; write [agents.NAME]" for key in found]
    if not isinstance(stanzas, dict):
        stanzas, problems = {}, [*problems, "agents: write [agents.NAME]"]
    entries = []
    for name, stanza in stanzas.items():
        wrong = list(_problems(name, stanza, taken))
        problems += wrong
        if not wrong:
            entries.append(_entry(name, stanza))
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ConfigInvalid(f"cannot use {path}; correct this:{lines}", {"problems": problems})
    return tuple(entries)


def _problems(name: str, stanza: Any, taken: Collection[str]) -> Iterator[str]:
    place = f"agents.{name}"
    if not _NAME.fullmatch(name):
        yield f"{place}: a name is small letters, digits, - and _"
    if name in taken:
        yield f"{place}: this name is taken; choose another one"
    if not isinstance(stanza, dict):
        yield f'{place}: write [{place}] and below it command = "..."'
        return
    for key in stanza.keys() - set(_CUSTOM_KEYS):
        yield f"{place}.{key}: unknown; known are {', '.join(_CUSTOM_KEYS)}"
    if not _words(stanza.get("command")):
        yield f'{place}.command: write the program, like command = "my-agent --acp"; check its quotes'
    if not _texts(stanza.get("args", [])):
        yield f'{place}.args: write a list of texts, like args = ["--fast"]'
    names = stanza.get("env", [])
    if not _texts(names) or not all(_VARIABLE.fullmatch(each) for each in names):
        yield f'{place}.env: write names of variables, never values, like env = ["MY_API_KEY"]'
    for key in ("asking_modes", "unasking_modes"):
        if not _texts(stanza.get(key, [])):
            yield f'{place}.{key}: write a list of names of modes, like {key} = ["default"]'
    if not isinstance(stanza.get("fs", True), bool):
        yield f"{place}.fs: write true or false"
    if not isinstance(stanza.get("title", ""), str):
        yield f"{place}.title: write a text"


def _entry(name: str, stanza: dict[str, Any]) -> CatalogueEntry:
    argv = (*_words(stanza["command"]), *stanza.get("args", ()))
    names = tuple(stanza.get("env", ()))
    return CatalogueEntry(
        name=name,
        title=stanza.get("title") or name,
        way=Way("acp", Direct(argv)),
        credentials=names,
        passes=names,
        modes=AskingModes(tuple(stanza.get("asking_modes", ())), tuple(stanza.get("unasking_modes", ()))),
        fs=stanza.get("fs", True),
        needs_sign_in=False,
        origin="custom",
    )


def _words(command: object) -> tuple[str, ...]:
    if not isinstance(command, str) or "\0" in command:
        return ()
    try:
        words = tuple(shlex.split(command))
    except ValueError:
        return ()
    return tuple(str(Path(word).expanduser()) if word.startswith("~/") else word for word in words)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and "\0" not in each for each in value)
