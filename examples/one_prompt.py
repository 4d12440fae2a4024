"""Start an agent, open a session, watch it, prompt it. Runs without a key: `python examples/one_prompt.py`."""

import asyncio
import sys

from legation.host import AcpHost
from legation.host.options import AgentDefinition, HostOptions
from legation.wire.acp.updates import Text
from legation.wire.events import Event


def show(event: Event) -> None:
    print(event.seq, event.type)


async def main() -> None:
    async with AcpHost(HostOptions(restart="on-crash")) as host:
        # Any ACP agent; this one ships with Legation and does what the prompt's script says.
        rehearsal = AgentDefinition(command=sys.executable, args=("-m", "legation.agents.rehearsal"))
        agent = await host.spawn_agent(rehearsal)
        session = await host.create_session(agent.agent_id, cwd=".")

        # From number 0: all that happened, then all that happens.
        host.subscribe(session.session_id, 0, show)

        result = await host.prompt(session.session_id, [Text(text="#!rehearse\nsay hello\nplan one; two")])
        print(result.stop_reason)
        await host.close_session(session.session_id)


asyncio.run(main())
