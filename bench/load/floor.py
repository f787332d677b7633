"""The floor: the least that a program on asyncio can do for this load, and nothing more.

aiohttp, one bash per rollout over pipes, ids and logprobs kept. No isolation, no budgets, no error
handling, no template, no tokenizer, no server. On asyncio's own loop: uvloop is no faster here.
"""

import asyncio
import json
from array import array
from asyncio.subprocess import PIPE, Process
from itertools import count
from typing import Any

import aiohttp
import orjson

from bench.load.meter import arguments, measure
from bench.load.workload import MESSAGES, MODEL_CALLS, SESSION_HEADER, TOOL, is_output

MARK = b"\x1e"


async def run_command(shell: Process, command: str) -> str:
    assert shell.stdin
    assert shell.stdout
    shell.stdin.write(f"{command}\nprintf '\\036'\n".encode())
    output = await shell.stdout.readuntil(MARK)
    return output[:-1].decode()


async def rollout(http: aiohttp.ClientSession, session_id: str) -> bool:
    shell = await asyncio.create_subprocess_exec(
        "bash", "--norc", "--noprofile", stdin=PIPE, stdout=PIPE, stderr=asyncio.subprocess.STDOUT
    )
    messages: list[dict[str, Any]] = [*MESSAGES]
    ids, logprobs, calls, complete = array("i"), array("f"), 0, True
    while True:
        body = {"model": "stub", "messages": messages, "tools": [TOOL], "logprobs": True}
        async with http.post(
            "/v1/chat/completions",
            data=orjson.dumps(body),
            headers={SESSION_HEADER: session_id, "Content-Type": "application/json"},
        ) as answer:
            choice = orjson.loads(await answer.read())["choices"][0]
        calls += 1
        ids.extend(choice["token_ids"])
        logprobs.extend([entry["logprob"] for entry in choice["logprobs"]["content"]])
        messages.append(choice["message"])
        if not choice["message"].get("tool_calls"):
            break
        (call,) = choice["message"]["tool_calls"]
        output = await run_command(shell, json.loads(call["function"]["arguments"])["command"])
        complete = complete and is_output(output)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})
    assert shell.stdin
    shell.stdin.close()
    await shell.wait()
    return complete and calls == MODEL_CALLS and len(ids) == len(logprobs)


async def main(engine: str, n: int, batches: int) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(engine, connector=connector) as http:
        ids = count()

        async def batch(size: int) -> int:
            rollouts = [rollout(http, str(next(ids))) for _ in range(size)]
            return (await asyncio.gather(*rollouts)).count(False)

        await measure(batch, engine, n, batches)


if __name__ == "__main__":
    engine, n, batches, _ = arguments()
    asyncio.run(main(engine, n, batches))
