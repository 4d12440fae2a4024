"""The agents that Legation knows by name."""

from __future__ import annotations

import sys
from typing import Final

from legation.agents.catalogue.entry import NOT_A_KEY, Direct, Entry, Packaged, SignIn, Way

# A port on which nothing listens: an agent that is only asked what it offers must reach nobody.
_NOWHERE: Final = "http://127.0.0.1:9"

_CLAUDE: Final = "node_modules/@anthropic-ai/claude-code-linux-{cpu}{musl}/claude"
_OPENCODE: Final = Packaged("node_modules/opencode-linux-{cpu}{baseline}{musl}/bin/opencode", "opencode")
_CODEX: Final = Packaged(
    "node_modules/@openai/codex-linux-{cpu}/vendor/{machine}-unknown-linux-musl/bin/codex", "codex"
)
_CODEX_ACP: Final = Packaged("node_modules/@zed-industries/codex-acp-linux-{cpu}/bin/codex-acp", "codex-acp")
_GEMINI: Final = Packaged("node_modules/@google/gemini-cli/bundle/gemini.js", "gemini", node=20)
_CLAUDE_ENV: Final = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}

KNOWN: Final = (
    Entry(
        name="claude",
        title="Claude Code",
        ways=(
            Way(
                "acp",
                Packaged(
                    "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js",
                    "claude-agent-acp",
                    node=22,
                    helpers={"CLAUDE_CODE_EXECUTABLE": (_CLAUDE, "claude")},
                ),
                env=_CLAUDE_ENV,
            ),
        ),
        credentials=(
            "ANTHROPIC_API_KEY",
            "CLAUDE_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
        ),
        synonyms={"CLAUDE_API_KEY": "ANTHROPIC_API_KEY"},
        sign_in=SignIn(
            program=Packaged(_CLAUDE, "claude"), args=("auth", "login"), files=(".claude/.credentials.json",)
        ),
        placeholders={"ANTHROPIC_API_KEY": NOT_A_KEY, "ANTHROPIC_BASE_URL": _NOWHERE},
    ),
    Entry(
        name="codex",
        title="Codex",
        ways=(Way("codex", _CODEX, ("app-server",)),),
        credentials=("OPENAI_API_KEY", "CODEX_API_KEY"),
        sign_in=SignIn(program=_CODEX, args=("login",), files=(".codex/auth.json",)),
        placeholders={"OPENAI_API_KEY": NOT_A_KEY, "OPENAI_BASE_URL": f"{_NOWHERE}/v1"},
    ),
    Entry(
        name="opencode",
        title="OpenCode",
        ways=(
            Way(
                "acp",
                _OPENCODE,
                ("acp",),
                {
                    "OPENCODE_DISABLE_AUTOUPDATE": "1",
                    "OPENCODE_DISABLE_SHARE": "1",
                    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                },
            ),
        ),
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
        credentials=("AMP_API_KEY",),
        lacks=(
            "Amp does not speak ACP: its agent runs on Amp's own server, and a driver for that is not part of this"
            " Legation; use another agent"
        ),
    ),
    Entry(
        name="gemini",
        title="Gemini",
        ways=(Way("acp", _GEMINI, ("--acp",)),),
        credentials=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
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
        ways=(
            Way(
                "acp",
                Packaged(
                    "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js",
                    "claude-agent-acp",
                    node=22,
                    helpers={"CLAUDE_CODE_EXECUTABLE": (_CLAUDE, "claude")},
                ),
                env=_CLAUDE_ENV,
            ),
        ),
        credentials=(
            "ANTHROPIC_API_KEY",
            "CLAUDE_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
        ),
        synonyms={"CLAUDE_API_KEY": "ANTHROPIC_API_KEY"},
        sign_in=SignIn(
            program=Packaged(_CLAUDE, "claude"), args=("auth", "login"), files=(".claude/.credentials.json",)
        ),
        placeholders={"ANTHROPIC_API_KEY": NOT_A_KEY, "ANTHROPIC_BASE_URL": _NOWHERE},
        shares="claude",
    ),
    Entry(
        name="codex-acp",
        title="Codex by ACP",
        ways=(Way("acp", _CODEX_ACP),),
        credentials=("OPENAI_API_KEY", "CODEX_API_KEY"),
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
        ways=(
            Way(
                "acp",
                _OPENCODE,
                ("acp",),
                {
                    "OPENCODE_DISABLE_AUTOUPDATE": "1",
                    "OPENCODE_DISABLE_SHARE": "1",
                    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                },
            ),
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
        ways=(Way("acp", Direct((sys.executable, "-m", "legation.agents.rehearsal"))),),
        aliases=("mock",),
        needs_sign_in=False,
        origin="built in",
    ),
)
