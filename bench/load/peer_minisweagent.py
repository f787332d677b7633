"""mini-swe-agent: its agent and local environment, one thread per rollout.

With the option `litellm` its model is LiteLLM's, otherwise a thin one of ours, the leanest
possible. A reply without a call ends the rollout; mini-swe-agent itself would ask for another.
"""

import asyncio
import http.client
import json
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from bench.load.meter import arguments, measure
from bench.load.workload import MODEL_CALLS, SESSION_HEADER, SYSTEM, TASK

os.environ["MSWEA_SILENT_STARTUP"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import Submitted
from minisweagent.models.litellm_model import LitellmModel
from minisweagent.models.utils.actions_toolcall import (
    BASH_TOOL,
    format_toolcall_observation_messages,
    parse_toolcall_actions,
)

SUBMITTED = "Submitted"


def submitted(text: str) -> Submitted:
    extra = {"exit_status": SUBMITTED, "submission": text}
    return Submitted({"role": "exit", "content": text, "extra": extra})


class ThinModel:
    """The standard library's HTTP client and JSON, one connection per rollout."""

    def __init__(self, engine: str, session_id: str) -> None:
        self.config = SimpleNamespace()
        self._http = http.client.HTTPConnection(urlsplit(engine).netloc)
        self._headers = {SESSION_HEADER: session_id, "Content-Type": "application/json"}

    def query(self, messages: list[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        sent = [{k: v for k, v in message.items() if k != "extra"} for message in messages]
        body = json.dumps({"model": "stub", "messages": sent, "tools": [BASH_TOOL]})
        self._http.request("POST", "/v1/chat/completions", body, self._headers)
        message: dict[str, Any] = json.load(self._http.getresponse())["choices"][0]["message"]
        if not message.get("tool_calls"):
            raise submitted(message["content"])
        calls = [
            SimpleNamespace(id=call["id"], function=SimpleNamespace(**call["function"]))
            for call in message["tool_calls"]
        ]
        actions = parse_toolcall_actions(calls, format_error_template="{{ error }}")
        return {**message, "extra": {"actions": actions, "cost": 0.0}}

    def format_message(self, **kwargs: Any) -> dict[str, Any]:
        return kwargs

    def format_observation_messages(
        self, message: dict[str, Any], outputs: list[dict[str, Any]], template_vars: Any = None
    ) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = format_toolcall_observation_messages(
            actions=message["extra"]["actions"],
            outputs=outputs,
            observation_template="{{ output.output }}",
            template_vars=template_vars,
        )
        return messages

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return {}

    def serialize(self) -> dict[str, Any]:
        return {}


class EndingLitellmModel(LitellmModel):  # type: ignore[misc]
    def _parse_actions(self, response: Any) -> Any:
        message = response.choices[0].message
        if not message.tool_calls:
            raise submitted(message.content)
        return super()._parse_actions(response)


def litellm_model(engine: str, session_id: str) -> LitellmModel:
    options = {
        "api_base": f"{engine}/v1",
        "api_key": "none",
        "extra_headers": {SESSION_HEADER: session_id},
    }
    return EndingLitellmModel(
        model_name="openai/stub", model_kwargs=options, cost_tracking="ignore_errors"
    )


def rollout(model: Any) -> bool:
    agent = DefaultAgent(
        model,
        LocalEnvironment(),
        system_template=SYSTEM,
        instance_template=TASK,
        cost_limit=0.0,
    )
    status = agent.run()["exit_status"]
    return bool(status == SUBMITTED and agent.n_calls == MODEL_CALLS)


async def main(engine: str, n: int, batches: int, options: list[str]) -> None:
    make = litellm_model if options == ["litellm"] else ThinModel
    ids = count()
    with ThreadPoolExecutor(n) as threads:
        loop = asyncio.get_running_loop()

        async def batch(size: int) -> int:
            models = [make(engine, str(next(ids))) for _ in range(size)]
            work = [loop.run_in_executor(threads, rollout, model) for model in models]
            results = await asyncio.gather(*work, return_exceptions=True)
            return sum(result is not True for result in results)

        await measure(batch, engine, n, batches)


if __name__ == "__main__":
    asyncio.run(main(*arguments()))
