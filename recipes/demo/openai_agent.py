"""An agent on OpenAI's SDK, by Chat Completions."""

import json
import subprocess
import sys
from typing import Any

from openai import OpenAI

COMMAND = {"type": "object", "properties": {"command": {"type": "string"}}}
BASH: Any = {"type": "function", "function": {"name": "bash", "parameters": COMMAND}}

client = OpenAI()
messages: list[Any] = [{"role": "user", "content": sys.argv[1]}]
while True:
    answer = client.chat.completions.create(model="policy", messages=messages, tools=[BASH])
    reply = answer.choices[0].message
    messages.append(reply.model_dump(exclude_none=True))
    if not reply.tool_calls:
        break
    for call in reply.tool_calls:
        assert call.type == "function"
        command = json.loads(call.function.arguments)["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": done.stdout})
