"""The client of Legation's HTTP API, sync and async. Nothing heavy is imported before a connection is made."""

from legation.client.async_connection import AsyncLegation
from legation.client.connection import Legation
from legation.client.spawn import Spawn
from legation.client.timeouts import Timeouts

__all__ = ["AsyncLegation", "Legation", "Spawn", "Timeouts"]
