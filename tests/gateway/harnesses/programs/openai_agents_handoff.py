"""An agent on openai-agents that hands over to another, whose instructions tell the time."""

import subprocess
import sys
from itertools import count

from agents import Agent, Runner, function_tool

ticks = count()


@function_tool
def bash(command: str) -> str:
    """Run a command."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return done.stdout


def instructions(context: object, agent: object) -> str:
    return f"Solve it. It is tick {next(ticks)}."


solver = Agent(name="solver", instructions=instructions, tools=[bash], model="policy")
triage = Agent(name="triage", instructions="Hand over.", handoffs=[solver], model="policy")
print(Runner.run_sync(triage, sys.argv[1]).final_output)
