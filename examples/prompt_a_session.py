"""One prompt to an agent on a server, its turn read as it happens. Runs without a key: `python examples/prompt_a_session.py`."""

from legation.client import Legation, Spawn
from legation.wire.universal.shapes import ItemDelta, ItemEvent, Turn

# A server for this program alone; `Legation.find()` would take the one that `legation up` started.
with Legation.start(Spawn(log="silent")) as server:
    session = server.sessions.create("rehearsal", title="an example")

    # Ends with the turn. A connection that is cut on the way is made again, and the message is sent once.
    for event in session.turn("#!rehearse\nsay hello\nplan one; two"):
        match event.data:
            case ItemDelta(delta=words):
                print("it says:", words)
            case ItemEvent(item=item) if event.type == "item.completed":
                print(f"{item.kind} of {item.role}")
            case Turn(phase="ended"):
                print("the turn ended as event", event.sequence)

    print("recorded:", session.recorded().page().items[0].type)
    session.terminate()
    print("status:", session.info().status)
