"""Start a server, connect to it, be refused politely. Runs without a key: `python examples/connect.py`."""

from legation.client import Legation, Spawn
from legation.errors import Forbidden

# A server for this program alone; `Legation.find()` would take the one that `legation up` started.
with Legation.start(Spawn(log="silent")) as owner:
    print("ready:", owner.ready().ready)
    reader = owner.tokens.create("a reader", scopes=["read"])

    # Any other program, with the address and a token.
    with Legation.connect(owner.url, reader.secret) as legation:
        print("scopes:", legation.me().scopes)
        for stream in legation.streams.list():
            print("stream:", stream.name, stream.head)
        try:
            legation.users.create("Mallory")
        except Forbidden as error:
            print(f"{error.code}: {error}")
