HELLO='{"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},'
HELLO+=' "serverInfo": {"name": "notes", "version": "1"}}'
TOOLS='{"tools": [{"name": "NAME", "description": "Writes the answer.",'
TOOLS+=' "inputSchema": {"type": "object"}}]}'
answer() { echo "{\"jsonrpc\": \"2.0\", \"id\": $id, $1}"; }
while IFS= read -r line; do
    id=$(sed -n 's/.*"id":\([0-9]*\).*/\1/p' <<< "$line")
    case $line in
    *'"initialize"'*) answer "\"result\": $HELLO";;
    *'"tools/list"'*) answer "\"result\": $TOOLS";;
    *'"tools/call"'*) echo 42 > answer.txt
        text="{\"type\": \"text\", \"text\": \"$GREETING from $PWD\"}"
        answer "\"result\": {\"content\": [$text]}";;
    *'"id":'*) answer '"error": {"code": -32601, "message": "no such method"}';;
    esac
done
