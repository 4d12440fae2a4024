"""The rehearsal agent: a real ACP agent in its own process, with no key and no network.

It imports the standard library only, so that it starts at once and shares no code with the
client side that it is used to test. Run it with `python -m legation.agents.rehearsal`.
"""
