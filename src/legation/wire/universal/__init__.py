"""A session's log as the event schemas of seed 002: `projector` for sandbox-agent 0.1.11, `messages` for its first form.

Projections are made when read: nothing of them is stored. See docs/universal-events.md.
"""
