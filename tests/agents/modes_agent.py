"""An ACP agent with modes, like qwen-code (opens in `auto`) and mistral-vibe (opens in `accept-edits`): in a mode that
asks it asks before it writes `out.txt`, in any other it just writes. What it is and does is set before this text."""

SETTINGS = r"""
OPENS, OFFERS, AS_OPTION, OBEYS, CAN = "auto", ["plan", "default", "auto", "yolo"], False, True, {}
ASKING, LEAVES, FORGETS, LAST = {"default", "plan"}, None, False, "end_turn"
"""

AGENT = r"""
current = OPENS

def opened(**more):
    if AS_OPTION:
        choices = [{"value": each, "name": each.title()} for each in OFFERS]
        return {**more, "configOptions": [{"id": "mode", "name": "Mode", "category": "mode", "type": "select",
                                           "currentValue": current, "options": choices}]}
    modes = [{"id": each, "name": each.title()} for each in OFFERS]
    return {**more, "modes": {"currentModeId": current, "availableModes": modes}}

def say(what, **members):
    send(method="session/update", params={"sessionId": "s1", "update": {"sessionUpdate": what, **members}})

def write():
    path = os.path.join(cwd, "out.txt")
    call = {"toolCallId": "w1", "title": "Write out.txt", "kind": "edit", "locations": [{"path": path}],
            "rawInput": {"path": path, "content": "hello"}}
    say("tool_call", status="pending", **call)
    if current in ASKING:
        send(id=77, method="session/request_permission",
             params={"sessionId": "s1", "toolCall": call, "options": OPTIONS})
        outcome = answer(77)["result"]["outcome"]
        if outcome.get("optionId") != "allow_once":
            say("tool_call_update", toolCallId="w1", status="failed")
            return
    with open(path, "w") as file:
        file.write("hello")
    say("tool_call_update", toolCallId="w1", status="completed")

while True:
    message = read()
    method, number, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "initialize":
        send(id=number, result={"protocolVersion": 1, "agentCapabilities": CAN})
    elif method in ("session/new", "session/load", "session/resume"):
        cwd = params["cwd"]
        if method != "session/new":
            current = OPENS
        send(id=number, result={} if FORGETS and method != "session/new" else opened(sessionId="s1"))
    elif method == "session/set_mode" and OBEYS:
        current = params["modeId"]
        send(id=number, result={})
    elif method == "session/set_config_option" and OBEYS:
        current = params["value"]
        send(id=number, result=opened())
    elif method == "session/prompt":
        if LEAVES:
            current, LEAVES = LEAVES, None
            say("current_mode_update", currentModeId=current)
        write()
        update("in mode " + current)
        done(number, LAST)
    elif number is not None and "method" in message:
        send(id=number, error={"code": -32601, "message": "no"})
"""


def moody(**settings: object) -> str:
    """The text of one that is like qwen-code, but for what is given."""
    given = "".join(f"{name.upper()} = {value!r}\n" for name, value in settings.items())
    return SETTINGS + given + AGENT


QWEN = moody()
VIBE = moody(opens="accept-edits", offers=["default", "plan", "accept-edits", "auto-approve"], as_option=True)
