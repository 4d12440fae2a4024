"""Steps that only say something: every kind of session update that ACP v1 has."""

from legation.agents.rehearsal.connection import RpcError
from legation.agents.rehearsal.script import Args, StepSpec
from legation.agents.rehearsal.sessions import MODELS, MODES, timestamp
from legation.agents.rehearsal.turn import Turn, TurnStoppedError, chunk, new_id, text_block

STOP_REASONS = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")
SEVERITIES = ("info", "warning", "error")
ONE_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CONTENTS: dict[str, dict[str, object]] = {
    "image": {"type": "image", "data": ONE_PIXEL, "mimeType": "image/png"},
    "audio": {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
    "resource_link": {"type": "resource_link", "name": "README.md", "uri": "file:///README.md"},
    "resource": {"type": "resource", "resource": {"uri": "file:///note.txt", "text": "a note"}},
}


def say(turn: Turn, args: Args) -> None:
    turn.say(args["TEXT"])


def think(turn: Turn, args: Args) -> None:
    turn.think(args["TEXT"])


def user(turn: Turn, args: Args) -> None:
    turn.update(chunk("user_message_chunk", args["TEXT"]))


def echo(turn: Turn, _: Args) -> None:
    turn.message(turn.text)


def recall(turn: Turn, _: Args) -> None:
    turn.message(f"prompts before this one: {turn.session.record.prompts - 1}")


def content(turn: Turn, args: Args) -> None:
    update = {"sessionUpdate": "agent_message_chunk", "content": CONTENTS[args["KIND"]]}
    turn.update({**update, "messageId": new_id("msg")})


def plan(turn: Turn, args: Args) -> None:
    entries = [entry.strip() for entry in args["ITEMS"].split(";")]
    turn.plan = [{"content": entry, "status": "pending"} for entry in entries if entry]
    turn.show_plan()


def plan_done(turn: Turn, args: Args) -> None:
    for number, entry in enumerate(turn.plan, 1):
        if number == int(args["N"]):
            entry["status"] = "completed"
    turn.show_plan()


def named_plan(turn: Turn, args: Args) -> None:
    """Not stable yet in ACP: a client that knows it takes it as its own plan."""
    entries = [
        {"content": entry.strip(), "priority": "medium", "status": "pending"}
        for entry in args["ITEMS"].split(";")
        if entry.strip()
    ]
    plan = {"type": "items", "planId": args["NAME"], "entries": entries}
    turn.update({"sessionUpdate": "plan_update", "plan": plan})


def plan_removed(turn: Turn, args: Args) -> None:
    turn.update({"sessionUpdate": "plan_removed", "planId": args["NAME"]})


def usage(turn: Turn, args: Args) -> None:
    update = {"sessionUpdate": "usage_update", "used": int(args["USED"]), "size": int(args["SIZE"])}
    cost = {"cost": {"amount": float(args["COST"]), "currency": "USD"}} if "COST" in args else {}
    turn.update({**update, **cost})


def mode(turn: Turn, args: Args) -> None:
    turn.session.record.mode = args["ID"]
    turn.session.save()
    turn.update({"sessionUpdate": "current_mode_update", "currentModeId": args["ID"]})


def model(turn: Turn, args: Args) -> None:
    turn.session.record.model = args["ID"]
    turn.session.save()
    boolean = turn.offers("session", "configOptions", "boolean")
    options = turn.session.record.options(boolean=boolean)
    turn.update({"sessionUpdate": "config_option_update", "configOptions": options})


def commands(turn: Turn, args: Args) -> None:
    names = [name.strip() for name in args["NAMES"].split(",")]
    available = [{"name": name, "description": f"Rehearses {name}"} for name in names if name]
    turn.update({"sessionUpdate": "available_commands_update", "availableCommands": available})


def title(turn: Turn, args: Args) -> None:
    turn.session.record.title = args["TITLE"]
    turn.session.save()
    update = {"sessionUpdate": "session_info_update", "title": args["TITLE"]}
    turn.update({**update, "updatedAt": timestamp(turn.session.record.updated_ns)})


def notice(turn: Turn, args: Args) -> None:
    if args.get("!") or turn.offers("session", "notices"):
        update = {"sessionUpdate": "notice", "severity": args["SEVERITY"], "title": args["TITLE"]}
        turn.update(update, keep=False)  # live matters are no history
    else:
        turn.say(args["TITLE"])


def compact(turn: Turn, args: Args) -> None:
    if not (args.get("!") or turn.offers("session", "compaction")):
        return turn.say(args["TEXT"])
    compaction = {"compactionId": new_id("compaction")}
    update = {"sessionUpdate": "compaction_update", **compaction}
    block = text_block(args["TEXT"])
    turn.update({**update, "status": "in_progress"})
    turn.update({"sessionUpdate": "compaction_summary_chunk", **compaction, "content": block})
    return turn.update({**update, "status": "completed", "summary": [block]})


def refuse(turn: Turn, args: Args) -> None:
    if "TEXT" in args:
        turn.say(args["TEXT"])
    raise TurnStoppedError("refusal")


def stop(_: Turn, args: Args) -> None:
    raise TurnStoppedError(args["REASON"])


def error(_: Turn, args: Args) -> None:
    raise RpcError(int(args["CODE"]), args["MESSAGE"])


TALK = (
    StepSpec("say", "TEXT", "Streams TEXT as a message of the agent.", say),
    StepSpec("think", "TEXT", "Streams TEXT as a thought.", think),
    StepSpec("user", "TEXT", "Sends TEXT as if it were a message of the user.", user),
    StepSpec("echo", "", "Says the text of the prompt, script and all.", echo),
    StepSpec("recall", "", "Says how many prompts this session had before.", recall),
    StepSpec(
        "content", "KIND", "A message with content that is no text.", content, {"KIND": tuple(CONTENTS)}
    ),
    StepSpec("plan", "ITEMS", "Shows a plan: entries with `;` between them.", plan),
    StepSpec("plan-done", "N", "Marks the Nth entry of the plan as completed.", plan_done),
    StepSpec("named-plan", "NAME ITEMS", "Shows a plan that has a name beside the others.", named_plan),
    StepSpec("plan-removed", "NAME", "Says that the plan of that name is no longer followed.", plan_removed),
    StepSpec("usage", "USED SIZE [COST]", "Reports tokens used, the window's size, dollars.", usage),
    StepSpec("mode", "ID", "Changes the mode and says so.", mode, {"ID": tuple(MODES)}),
    StepSpec("model", "ID", "Changes the model option and says so.", model, {"ID": tuple(MODELS)}),
    StepSpec("commands", "NAMES", "Offers slash commands: names with `,` between them.", commands),
    StepSpec("title", "TITLE", "Names the session.", title),
    StepSpec(
        "notice",
        "SEVERITY TITLE",
        "A notice to the user; a message where the client takes no notices.",
        notice,
        {"SEVERITY": SEVERITIES},
        forced="sends it all the same, with any severity",
    ),
    StepSpec(
        "compact",
        "TEXT",
        "Compacts its context to TEXT; a message where the client takes no compaction.",
        compact,
        forced="sends it all the same",
    ),
    StepSpec("refuse", "[TEXT]", "Ends the turn with stop reason `refusal`.", refuse),
    StepSpec(
        "stop",
        "REASON",
        "Ends the turn with that stop reason.",
        stop,
        {"REASON": STOP_REASONS},
        forced="takes any word for a reason",
    ),
    StepSpec("error", "CODE MESSAGE", "Answers the prompt with a JSON-RPC error.", error),
)
