from __future__ import annotations

from tools.schemas.amp import help_types
from tools.schemas.inventory import definitions

HELP = """Thing CLI

Usage: thing [options] [command]

Commands:

  login                         Log in to Thing
  threads                       [alias: t, thread] Manage threads, which is a matter that takes more than
                                one line to say
    new                         [alias: n] Create a new thread
  add-a-rather-long-command-name
                                Its words stand below

Options:

  -m, --mode <value>
      Set the mode (low, high); see --other
  -x, --execute [message]
      Execute
  --no-color
      Plain

Environment variables:

  AMP_API_KEY                  The key
  AMP_URL                      Where (default:
                               HERE  or there)

Settings reference:

  amp.mcpServers
      Servers
"""


def test_help_comes_down_to_names() -> None:
    assert definitions(help_types(HELP)) == {
        "commands": {
            "add-a-rather-long-command-name": "none",
            "login": "none",
            "threads": "'t' | 'thread'",
            "threads new": "'n'",
        },
        "options": {"--no-color": "none", "-m, --mode": "value", "-x, --execute": "none | value"},
        "settings": "'amp.mcpServers'",
        "variables": ("'AMP_API_KEY'", "'AMP_URL'"),
    }
