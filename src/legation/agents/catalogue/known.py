"""The agents that Legation knows by name."""

from __future__ import annotations

import sys
from typing import Final

from legation.agents.beginning import Beginning
from legation.agents.catalogue.entry import NOT_A_KEY, Direct, Entry, Packaged, SignIn, Stance, Way

# A port on which nothing listens: an agent that is only asked what it offers must reach nobody.
_NOWHERE: Final = "http://127.0.0.1:9"

_CLAUDE: Final = "node_modules/@anthropic-ai/claude-code-linux-{cpu}{musl}/claude"
_OPENCODE: Final = Packaged("node_modules/opencode-linux-{cpu}{baseline}{musl}/bin/opencode", "opencode")
_CODEX: Final = Packaged(
    "node_modules/@openai/codex-linux-{cpu}/vendor/{machine}-unknown-linux-musl/bin/codex", "codex"
)
_CODEX_ACP: Final = Packaged("node_modules/@zed-industries/codex-acp-linux-{cpu}/bin/codex-acp", "codex-acp")
_GEMINI: Final = Packaged("node_modules/@google/gemini-cli/bundle/gemini.js", "gemini", node=20)
_AMP: Final = Packaged("node_modules/@ampcode/cli-linux-{cpu}/amp", "amp")
_PLAIN: Final = {"NO_COLOR": "1"}  # what Codex says on its standard error is for a log, not for a terminal
_CLAUDE_ENV: Final = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}

# What an agent is told of a folder that is not trusted. Each was tried on tests/agents/hostile_repository.py.

# Claude Code takes neither settings nor MCP servers of the folder, nor settings of its home: what it may once have been
# allowed to write there would run, or answer in our place. The adapter itself reads the settings there all the
# same, for the mode that a session begins in.
_CLAUDE_ACP_UNTRUSTED: Final = Stance(
    beginning=Beginning(
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

KNOWN: Final = (
    Entry(
        name="claude",
        title="Claude Code",
        way=Way("claude", Packaged(_CLAUDE, "claude"), env=_CLAUDE_ENV),
        credentials=(
            "ANTHROPIC_API_KEY",
            "CLAUDE_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
        ),
        synonyms={"CLAUDE_API_KEY": "ANTHROPIC_API_KEY"},
        passes=("ANTHROPIC_BASE_URL",),
        sign_in=SignIn(
            program=Packaged(_CLAUDE, "claude"), args=("auth", "login"), files=(".claude/.credentials.json",)
        ),
        placeholders={"ANTHROPIC_API_KEY": NOT_A_KEY, "ANTHROPIC_BASE_URL": _NOWHERE},
    ),
    Entry(
        name="codex",
        title="Codex",
        way=Way("codex", _CODEX, ("app-server",), env=_PLAIN),
        credentials=("OPENAI_API_KEY", "CODEX_API_KEY"),
        passes=("OPENAI_BASE_URL",),
        sign_in=SignIn(program=_CODEX, args=("login",), files=(".codex/auth.json",)),
        placeholders={"OPENAI_API_KEY": NOT_A_KEY, "OPENAI_BASE_URL": f"{_NOWHERE}/v1"},
    ),
    Entry(
        name="opencode",
        title="OpenCode",
        way=Way("opencode", _OPENCODE),
        credentials=("OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
        sign_in=SignIn(program=_OPENCODE, args=("auth", "login"), files=(".local/share/opencode/auth.json",)),
        placeholders={
            "OPENAI_API_KEY": NOT_A_KEY,
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
    ),
    Entry(
        name="amp",
        title="Amp",
        way=Way("amp", _AMP, obeys=(".amp/settings.json", ".amp/settings.jsonc", ".amp/plugins")),
        credentials=("AMP_API_KEY",),
        passes=("AMP_URL",),
        sign_in=SignIn(program=_AMP, args=("login",), files=(".local/share/amp/secrets.json",)),
        placeholders={"AMP_API_KEY": NOT_A_KEY, "AMP_URL": _NOWHERE},
    ),
    Entry(
        name="gemini",
        title="Gemini",
        way=Way("acp", _GEMINI, ("--acp",), trusted=_GEMINI_TRUSTED, untrusted=_GEMINI_UNTRUSTED),
        credentials=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        passes=("GOOGLE_GEMINI_BASE_URL",),
        # A fault of its own: offered `fs`, it can create no file. Without the offer it writes by itself, and asks.
        fs=False,
        sign_in=SignIn(
            program=_GEMINI,
            files=(".gemini/oauth_creds.json",),
            hint="choose how to sign in, then leave it with /quit",
        ),
        placeholders={"GEMINI_API_KEY": NOT_A_KEY, "GOOGLE_GEMINI_BASE_URL": _NOWHERE},
    ),
    Entry(
        name="claude-acp",
        title="Claude Code by ACP",
        way=Way(
            "acp",
            Packaged(
                "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js",
                "claude-agent-acp",
                node=22,
                helpers={"CLAUDE_CODE_EXECUTABLE": (_CLAUDE, "claude")},
            ),
            env=_CLAUDE_ENV,
            untrusted=_CLAUDE_ACP_UNTRUSTED,
        ),
        credentials=(
            "ANTHROPIC_API_KEY",
            "CLAUDE_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
        ),
        synonyms={"CLAUDE_API_KEY": "ANTHROPIC_API_KEY"},
        passes=("ANTHROPIC_BASE_URL",),
        sign_in=SignIn(
            program=Packaged(_CLAUDE, "claude"), args=("auth", "login"), files=(".claude/.credentials.json",)
        ),
        placeholders={"ANTHROPIC_API_KEY": NOT_A_KEY, "ANTHROPIC_BASE_URL": _NOWHERE},
        shares="claude",
    ),
    Entry(
        name="codex-acp",
        title="Codex by ACP",
        way=Way("acp", _CODEX_ACP, env=_PLAIN, trusted=_CODEX_ACP_TRUSTED, untrusted=_CODEX_ACP_UNTRUSTED),
        credentials=("OPENAI_API_KEY", "CODEX_API_KEY"),
        passes=("OPENAI_BASE_URL",),
        sign_in=SignIn(
            method="chatgpt",
            files=(".codex/auth.json",),
            hint="a browser opens for the sign-in; without one, give OPENAI_API_KEY instead",
        ),
        key_methods={"OPENAI_API_KEY": "openai-api-key", "CODEX_API_KEY": "codex-api-key"},
        placeholders={"OPENAI_API_KEY": NOT_A_KEY, "OPENAI_BASE_URL": f"{_NOWHERE}/v1"},
    ),
    Entry(
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
        credentials=("OPENAI_API_KEY", "ANTHROPIC_API_KEY"),
        sign_in=SignIn(program=_OPENCODE, args=("auth", "login"), files=(".local/share/opencode/auth.json",)),
        placeholders={
            "OPENAI_API_KEY": NOT_A_KEY,
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
        shares="opencode",
    ),
    Entry(
        name="rehearsal",
        title="Rehearsal",
        way=Way(
            "acp",
            # -P: it starts in the session's folder, where others write files.
            Direct((sys.executable, "-P", "-m", "legation.agents.rehearsal")),
            executing=("--execute",),
        ),
        aliases=("mock",),
        needs_sign_in=False,
        origin="built in",
    ),
)
