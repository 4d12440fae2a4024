# An agent that takes up its sessions again and says as much as it is told: "say 40" are 40 chunks of one message, with a tool
# call in front; "say 40 long" are chunks of a kilobyte. With the argument `deaf` it does not end with its input, but when it is
# told to. As small as a process gets. See growth.py.
short='the quick brown fox jumps over it, and '
long=$short$short$short$short$short
long=$long$long$long$long$long
tell() {
  printf '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"only","update":%s}}\n' "$1"
}
while IFS= read -r line; do
  id=${line#*\"id\":}
  id=${id%%[,\}]*}
  case $line in
    *'"method":"initialize"'*)
      result='{"protocolVersion":1,"agentCapabilities":{"sessionCapabilities":{"resume":{}}}}' ;;
    *'"method":"session/new"'*) result='{"sessionId":"only"}' ;;
    *'"method":"session/resume"'*) result='{}' ;;
    *'"method":"session/prompt"'*)
      count=${line#*say }
      count=${count%%[!0-9]*}
      words=$short
      case $line in *' long"'*) words=$long ;; esac
      tell '{"sessionUpdate":"tool_call","toolCallId":"call-1","title":"Read a file","kind":"read","status":"pending"}'
      tell '{"sessionUpdate":"tool_call_update","toolCallId":"call-1","status":"completed"}'
      while [ "$count" -gt 0 ]; do
        tell "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"$words\"}}"
        count=$((count - 1))
      done
      result='{"stopReason":"end_turn"}' ;;
    *) continue ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
if [ "$1" = deaf ]; then exec sleep 600; fi
