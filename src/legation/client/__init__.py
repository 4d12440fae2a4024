"""The client of Legation's HTTP API, sync and async. Nothing heavy is imported before a connection is made."""

from legation.client.connection import AsyncLegation, Legation
from legation.client.request import Spawn, Timeouts

__all__ = ["AsyncLegation", "Legation", "Spawn", "Timeouts"]
