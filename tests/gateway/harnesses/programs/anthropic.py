"""An agent on Anthropic's SDK, by Messages, streamed."""

import subprocess
import sys
from typing import Any

from anthropic import Anthropic

COMMAND: Any = {"type": "object", "properties": {"command": {"type": "string"}}}

client = Anthropic()
messages: list[Any] = [{"role": "user", "content": sys.argv[1]}]
while True:
    with client.messages.stream(
        model="policy",
        max_tokens=1000,
        messages=messages,
        tools=[{"name": "bash", "input_schema": COMMAND}],
    ) as stream:
        reply = stream.get_final_message()
    messages.append({"role": "assistant", "content": reply.content})
    results: list[Any] = []
    for part in reply.content:
        if part.type == "tool_use":
            command = str(part.input["command"])
            done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
            results.append({"type": "tool_result", "tool_use_id": part.id, "content": done.stdout})
    if not results:
        break
    messages.append({"role": "user", "content": results})
