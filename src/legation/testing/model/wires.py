"""All the wires there are, on one address: each knows its own by their paths."""

from __future__ import annotations

from legation.testing.model.anthropic import AnthropicWire
from legation.testing.model.gemini import GeminiWire
from legation.testing.model.openai_chat import OpenAiChatWire
from legation.testing.model.openai_responses import OpenAiResponsesWire
from legation.testing.model.wire import Wire


def every_wire(models: tuple[str, ...] = ("scripted-model",)) -> tuple[Wire, ...]:
    """`models` are the names that they list. The order matters for the lists alone: the pickiest comes first."""
    return AnthropicWire(models), GeminiWire(models), OpenAiChatWire(models), OpenAiResponsesWire(models)
