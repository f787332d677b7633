"""MCP servers that Harbor tasks bring: they run in the sandbox, and their tools are offered."""

import json
from pathlib import Path

import pytest

from prorl_service.agents.harbor.directory.reading import TaskDirectory
from prorl_service.agents.registry import AgentRegistry
from prorl_service.client.harness import with_harness
from prorl_service.errors import TaskError
from prorl_service.schemas import Blame
from prorl_service.testing import play
from prorl_service.testing.replies import call
from tests.agents.harbor.directories import LIMITS, directory, played
from tests.parts import error_of

pytestmark = pytest.mark.processes

SERVER = Path(__file__).with_name("notes_server.sh").read_text()


def toml(script: str = SERVER, name: str = "write_answer") -> str:
    arguments = json.dumps(["-c", script.replace("NAME", name)])
    return (
        '[environment.env]\nGREETING = "hello"\n[[environment.mcp_servers]]\nname = "notes"\n'
        f'transport = "stdio"\ncommand = "bash"\nargs = {arguments}\n'
    )


async def test_a_tasks_server_runs_in_its_sandbox_and_its_tools_are_called(tmp_path: Path) -> None:
    ended = await played(directory(tmp_path, toml=toml()), call("write_answer"))
    assert ended.reward == 1.0
    assert ended.outputs[0] == "hello from /app"
    assert "Writes the answer." in ended.prompts[0]


async def test_a_server_that_the_policy_ends_answers_with_that(tmp_path: Path) -> None:
    kill = call("bash", command="pkill -f 'no such [m]ethod'; sleep 0.5; echo 42 > answer.txt")
    ended = await played(directory(tmp_path, toml=toml()), kill, call("write_answer"))
    assert ended.reward == 1.0
    [answer] = ended.turns[1].tool_calls
    assert answer.is_error
    assert answer.output.startswith("write_answer failed: ")


@pytest.mark.parametrize(
    ("script", "said"),
    [("echo no database >&2; exit 3", "no database"), ("echo hello", "nothing")],
)
async def test_a_command_that_is_no_server_fails_the_task(
    tmp_path: Path, script: str, said: str
) -> None:
    ended = await played(directory(tmp_path, toml=toml(script)))
    assert error_of(ended.rollout).blame is Blame.TASK
    assert "MCP server 'notes' of the task" in error_of(ended.rollout).message
    assert said in error_of(ended.rollout).message


async def test_a_tool_with_a_name_of_the_agents_own_is_refused(tmp_path: Path) -> None:
    ended = await played(directory(tmp_path, toml=toml(name="bash")))
    assert "several tools have the same name: bash" in error_of(ended.rollout).message


async def test_a_harness_does_not_run_a_task_with_servers(tmp_path: Path) -> None:
    task = with_harness(directory(tmp_path, toml=toml()).task(), "pi")
    ended = await play(AgentRegistry()["harness"], task, ["Done."], limits=LIMITS)
    assert "harnesses cannot use the task's MCP servers" in error_of(ended.rollout).message


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('name = "web"\nurl = "http://web:8000/sse"', r"mcp_servers\.web\.transport = 'sse'"),
        ('name = "web"\ntransport = "stdio"', "needs a command"),
    ],
)
def test_servers_that_are_not_in_the_sandbox_are_refused_by_name(
    tmp_path: Path, table: str, problem: str
) -> None:
    with pytest.raises(TaskError, match=problem):
        directory(tmp_path, toml=f"[[environment.mcp_servers]]\n{table}\n")


def test_a_verifier_has_no_servers(tmp_path: Path) -> None:
    table = '[verifier.environment]\n[[verifier.environment.mcp_servers]]\nname = "n"\n'
    with pytest.raises(TaskError, match="a verifier calls no tools"):
        directory(tmp_path, toml=table + 'transport = "stdio"\ncommand = "true"\n')


def test_servers_travel_with_the_task(tmp_path: Path) -> None:
    read: TaskDirectory = directory(tmp_path, toml=toml("true"))
    assert read.task().data["mcp"] == [{"name": "notes", "command": ["bash", "-c", "true"]}]
