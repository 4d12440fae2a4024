"""`python -m legation.agents.rehearsal`: an ACP agent on stdin and stdout."""

import argparse
import dataclasses
import os
import sys
from pathlib import Path

from legation.agents.rehearsal.agent import RehearsalAgent, Scenario, ScenarioError, load
from legation.agents.rehearsal.turn import SessionStore

STUBBORN_LIMIT = 3600.0  # an agent told to outstay its client goes in the end


def run(kind: type[RehearsalAgent]) -> int:
    options = _options()
    try:
        scenario = _scenario(options)
        state = options.state or _default_state()
    except ScenarioError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    agent = kind(SessionStore(state), scenario, executes=options.execute)
    agent.connection.run()
    if agent.ignores_eof.is_set():
        agent.connection.serve(STUBBORN_LIMIT)
    agent.stop()
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="rehearsal", description="A scripted ACP agent on stdin and stdout."
    )
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="play these steps for plain prompts")
    parser.add_argument("--state", type=Path, metavar="DIR", help="where sessions are kept")
    parser.add_argument("--pace", type=float, metavar="SECONDS", help="wait between pieces of text")
    parser.add_argument("--require-auth", action="store_true", help="insist on authenticate")
    parser.add_argument(
        "--execute",
        action="store_true",
        help="run commands, and leave the working folder where a step says so",
    )
    parser.add_argument("--early", action="store_true", help="send updates before session/new is answered")
    return parser.parse_args()


def _scenario(options: argparse.Namespace) -> Scenario:
    scenario = load(options.scenario) if options.scenario else Scenario()
    return dataclasses.replace(
        scenario,
        pace=scenario.pace if options.pace is None else options.pace,
        require_auth=scenario.require_auth or options.require_auth,
        early=scenario.early or options.early,
    )


def _default_state() -> Path:
    home = os.environ.get("HOME")
    if not home:
        raise ScenarioError("cannot tell where to keep sessions: set HOME, or give --state DIR")
    return Path(home) / ".rehearsal"


if __name__ == "__main__":
    sys.exit(run(RehearsalAgent))
