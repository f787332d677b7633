"""An agent as verifiers runs one: a program of the standard library, started for each rollout.

`python agent_program.py ENDPOINT SECRET`. The lightest that can be written: one connection, one
persistent bash.
"""

import http.client
import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.load.workload import MESSAGES, TOOL


def main(endpoint: str, secret: str) -> None:
    url = urlsplit(endpoint)
    connection = http.client.HTTPConnection(url.netloc)
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert shell.stdin
    assert shell.stdout
    messages = list(MESSAGES)
    while True:
        body = json.dumps({"model": "stub", "messages": messages, "tools": [TOOL]})
        connection.request("POST", f"{url.path}/chat/completions", body, headers)
        message = json.load(connection.getresponse())["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            break
        (call,) = message["tool_calls"]
        command = json.loads(call["function"]["arguments"])["command"]
        shell.stdin.write(f"{command}\nprintf '\\036\\n'\n".encode())
        shell.stdin.flush()
        output = b"".join(iter(shell.stdout.readline, b"\x1e\n")).decode()
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    shell.stdin.close()
    shell.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
