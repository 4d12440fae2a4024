# An agent that greets, makes sessions and does nothing: as small as a process gets. See rival.py.
while read -r line; do
  id=${line#*\"id\":}
  id=${id%%[,\}]*}
  case $line in
    *'"method":"initialize"'*) result='{"protocolVersion":1,"agentCapabilities":{}}' ;;
    *'"method":"session/new"'*) result='{"sessionId":"idle"}' ;;
    *) continue ;;
  esac
  echo "{\"jsonrpc\":\"2.0\",\"id\":$id,\"result\":$result}"
done
