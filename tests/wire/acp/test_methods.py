import json

import msgspec
import pytest

from legation.wire.acp.methods import (
    CreateElicitationRequest,
    InitializeResponse,
    McpServer,
    NewSessionRequest,
    NewSessionResponse,
    PromptResponse,
    RequestPermissionRequest,
    RequestPermissionResponse,
    SelectedOutcome,
    SessionNotification,
)
from legation.wire.acp.rpc import Envelope, ErrorCode, RpcError


def test_an_absent_capability_is_not_supported_and_an_empty_object_is() -> None:
    answer = msgspec.json.decode(
        b'{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{},"list":null}}}',
        type=InitializeResponse,
    )
    offered = answer.agent_capabilities.session_capabilities
    assert offered.resume is not None
    assert offered.list is None
    assert offered.close is None
    assert not answer.agent_capabilities.load_session


def test_a_new_session_names_required_lists_even_when_empty() -> None:
    request = NewSessionRequest(cwd="/w", mcp_servers=(McpServer.stdio("fs", "fs-server"),))
    server = {"name": "fs", "command": "fs-server", "args": [], "env": []}
    assert json.loads(msgspec.json.encode(request)) == {"cwd": "/w", "mcpServers": [server]}


def test_an_http_server_says_its_type() -> None:
    server = McpServer.http("gh", "https://example.test/mcp", {"Authorization": "x"})
    assert json.loads(msgspec.json.encode(server)) == {
        "name": "gh",
        "type": "http",
        "url": "https://example.test/mcp",
        "headers": [{"name": "Authorization", "value": "x"}],
    }


def test_older_models_in_a_new_session_are_kept() -> None:
    raw = b'{"sessionId":"s","models":{"currentModelId":"x"}}'
    answer = msgspec.json.decode(raw, type=NewSessionResponse)
    assert (answer.session_id, answer.models) == ("s", {"currentModelId": "x"})


def test_a_permission_request_and_its_answer() -> None:
    raw = b'{"sessionId":"s","toolCall":{"toolCallId":"c","title":null},"options":[%s]}' % (
        b'{"optionId":"y","name":"Yes","kind":"allow_once"}'
    )
    request = msgspec.json.decode(raw, type=RequestPermissionRequest)
    assert request.options[0].kind == "allow_once"
    answer = RequestPermissionResponse(outcome=SelectedOutcome(option_id="y"))
    assert msgspec.json.encode(answer) == b'{"outcome":{"outcome":"selected","optionId":"y"}}'
    assert msgspec.json.decode(msgspec.json.encode(answer), type=RequestPermissionResponse) == answer


def test_a_new_stop_reason_is_kept() -> None:
    assert msgspec.json.decode(b'{"stopReason":"_tired"}', type=PromptResponse).stop_reason == "_tired"


def test_an_unknown_elicitation_mode_is_kept() -> None:
    raw = b'{"mode":"_hum","message":"m","sessionId":"s"}'
    assert msgspec.json.decode(raw, type=CreateElicitationRequest).mode == "_hum"


def test_an_update_stays_as_sent_inside_its_notification() -> None:
    raw = b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{ "a" : 1.0 }}}'
    envelope = msgspec.json.decode(raw, type=Envelope)
    assert envelope.id is msgspec.UNSET
    assert isinstance(envelope.params, msgspec.Raw)
    notification = msgspec.json.decode(envelope.params, type=SessionNotification)
    assert bytes(notification.update) == b'{ "a" : 1.0 }'


@pytest.mark.parametrize("id_text", [b"null", b"7", b'"x"'])
def test_an_id_may_be_null_number_or_string(id_text: bytes) -> None:
    envelope = msgspec.json.decode(b'{"id":%s,"result":null}' % id_text, type=Envelope)
    assert json.dumps(envelope.id).encode() == id_text
    assert isinstance(envelope.result, msgspec.Raw)


def test_an_error_may_have_any_code() -> None:
    assert msgspec.json.decode(b'{"code":-1,"message":"m"}', type=RpcError).data is msgspec.UNSET
    assert msgspec.json.encode(RpcError(code=ErrorCode.AUTH_REQUIRED, message="m")) == (
        b'{"code":-32000,"message":"m"}'
    )
