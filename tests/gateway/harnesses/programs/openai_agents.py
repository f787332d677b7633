"""An agent on openai-agents, by Responses."""

import subprocess
import sys

from agents import Agent, Runner, function_tool


@function_tool
def bash(command: str) -> str:
    """Run a command."""
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    return done.stdout


agent = Agent(name="agent", instructions="Use the shell.", tools=[bash], model="policy")
print(Runner.run_sync(agent, sys.argv[1]).final_output)
