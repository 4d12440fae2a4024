"""A host of agents in your own process: `async with create_acp_host() as host`. Each name is loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from legation.errors import LegationError as AcpError
    from legation.host.endpoint import create_host_endpoint
    from legation.host.host import AcpHost
    from legation.host.host import AcpHost as create_acp_host  # noqa: N813
    from legation.host.options import resolve_agent_definition, resolve_host_options
    from legation.host.requests.handlers import derive_client_capabilities
    from legation.host.requests.services import DefaultFs as create_default_fs_handler  # noqa: N813
    from legation.host.requests.services import DefaultTerminals as create_default_terminal_handler  # noqa: N813
    from legation.store.codec import MemoryBackend as create_memory_storage  # noqa: N813
    from legation.store.jsonl import JsonlBackend as create_jsonl_storage  # noqa: N813
    from legation.wire.event_types import normalize_session_update

__all__ = [
    "AcpError",
    "AcpHost",
    "create_acp_host",
    "create_default_fs_handler",
    "create_default_terminal_handler",
    "create_host_endpoint",
    "create_jsonl_storage",
    "create_memory_storage",
    "derive_client_capabilities",
    "normalize_session_update",
    "resolve_agent_definition",
    "resolve_host_options",
]

_PLACES = {
    "AcpError": "legation.errors:LegationError",
    "AcpHost": "legation.host.host:AcpHost",
    "create_acp_host": "legation.host.host:AcpHost",
    "create_default_fs_handler": "legation.host.requests.services:DefaultFs",
    "create_default_terminal_handler": "legation.host.requests.services:DefaultTerminals",
    "create_host_endpoint": "legation.host.endpoint:HostEndpoint",
    "create_jsonl_storage": "legation.store.jsonl:JsonlBackend",
    "create_memory_storage": "legation.store.codec:MemoryBackend",
    "derive_client_capabilities": "legation.host.requests.handlers:derive_client_capabilities",
    "normalize_session_update": "legation.wire.event_types:normalize_session_update",
    "resolve_agent_definition": "legation.host.options:resolve_agent_definition",
    "resolve_host_options": "legation.host.options:resolve_host_options",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(module), attribute)
