"""verifiers: its agent, interception server and trace, with a light program in its local runtime.

Its own harnesses start a Python with the packages of OpenAI and MCP for each rollout, thirty times
the CPU; this compares what remains with the lightest possible program.
"""

import asyncio
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.load import agent_program
from bench.load.meter import arguments, measure
from bench.load.workload import MODEL_CALLS, TASK

_home = TemporaryDirectory()  # verifiers keeps its files below the home directory
os.environ["HOME"] = _home.name

from verifiers.v1.agent import Agent  # noqa: E402
from verifiers.v1.clients import EvalClientConfig, ModelContext  # noqa: E402
from verifiers.v1.configs.agent import AgentConfig  # noqa: E402
from verifiers.v1.configs.harness import HarnessConfig  # noqa: E402
from verifiers.v1.harness import Harness  # noqa: E402
from verifiers.v1.runtimes import ProgramResult, Runtime, SubprocessConfig  # noqa: E402
from verifiers.v1.task import Task, TaskData  # noqa: E402
from verifiers.v1.trace import Trace  # noqa: E402

__all__ = ["LoadHarness"]  # verifiers finds a harness by the name of a module

PROGRAM = str(Path(agent_program.__file__))


class LoadHarness(Harness[HarnessConfig]):  # type: ignore[misc]
    APPENDS_SYSTEM_PROMPT = True
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        return await runtime.run_program(
            [sys.executable, "-I", "-S", PROGRAM, endpoint, secret], {}
        )


def is_complete(trace: Trace) -> bool:
    return bool(trace.ok) and trace.num_turns == MODEL_CALLS


async def main(engine: str, n: int, batches: int) -> None:
    config = AgentConfig(
        harness=HarnessConfig(id="__main__"),
        runtime=SubprocessConfig(),
        model="stub",
        client=EvalClientConfig(base_url=f"{engine}/v1", api_key_var="LOAD_KEY"),
    )
    async with Agent(config) as agent:

        async def batch(count: int) -> int:
            tasks = [Task(TaskData(idx=i, prompt=TASK)) for i in range(count)]
            traces = await asyncio.gather(*(agent.run(task) for task in tasks))
            return sum(not is_complete(trace) for trace in traces)

        await measure(batch, engine, n, batches)


if __name__ == "__main__":
    engine, n, batches, _ = arguments()
    asyncio.run(main(engine, n, batches))
