"""`prorl check`, as its users run it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prorl_service import local
from prorl_service.inference.reference_engine.tiny import build_tiny_model
from prorl_service.schemas import Rollout
from tests.cli.called import printed
from tests.programs import prorl

pytestmark = pytest.mark.processes

AGENT = """
from typing import ClassVar

from pydantic import BaseModel

from prorl_service.agents.base import AgentHandler, Prompt, Verdict
from prorl_service.schemas import FinishReason


class LedgerData(BaseModel):
    answer: str


class Ledger(AgentHandler):
    name: ClassVar[str] = "ledger"
    sandbox_stages = frozenset()
    data_model = LedgerData

    def __init__(self, task):
        super().__init__(task)
        self.data = LedgerData.model_validate(task.data)

    def prompt(self):
        return Prompt(self.task.messages)

    async def init(self, rollout):
        pass

    async def run(self, rollout):
        await rollout.sample(rollout.prompt_ids)
        return FinishReason.FINISHED

    async def eval(self, rollout):
        return Verdict(float(self.data.answer in rollout.answer))


class Knowing(Ledger):
    name = "knowing"

    def solved_by(self, given):
        return [f"It is {self.data.answer}."]
"""


def checked(directory: Path, *arguments: object, code: int = 0) -> list[str]:
    """Returns the lines that it prints."""
    (directory / "my_agents.py").write_text(AGENT)
    done = prorl("check", *arguments, cwd=directory)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines() or done.stderr.splitlines()


def task(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "task_id": f"q{number:02}",
        "agent": "ledger",
        "messages": [{"role": "user", "content": "How much?"}],
        "data": {"answer": str(number)},
        **fields,
    }


def lines_of(directory: Path, rows: Sequence[object]) -> Path:
    file = directory / "tasks.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


OWN = ("--agent", "my_agents.py:Ledger")


def test_bad_rows_are_named_by_line_task_and_field(tmp_path: Path) -> None:
    rows = [task(0), task(1, messages=[]), task(2, data={}), task(3, data={"answer": 3}), "text"]
    file = lines_of(tmp_path, rows)
    with file.open("a") as more:
        more.write("\n{oops\n")
    assert checked(tmp_path, file, *OWN, code=1) == [
        "5 rows cannot be trained on:",
        "  line 2, task q01: messages: List should have at least 1 item after validation, not 0",
        "  line 3, task q02: data.answer: Field required",
        "  line 4, task q03: data.answer: Input should be a valid string",
        "  line 5: it is not an object",
        "  line 7: it is not JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)",
        "`data` of the agent 'ledger' has answer; `prorl check --agent my_agents:Ledger --schema` "
        "and `GET /v1/agents` have its schema",
    ]
    named = ("--agent", "my_agents:Ledger", "--schema")
    assert json.loads("\n".join(checked(tmp_path, *named)))["required"] == ["answer"]


def test_rows_of_one_id_or_of_another_agent_are_bad_and_all_are_named_in_their_order(
    tmp_path: Path,
) -> None:
    rows = [
        task(1, solution="It is 2."),
        task(2, agent="legder"),
        task(1, data={"answer": "3"}),
        task(4, agent=None),
    ]
    assert checked(tmp_path, lines_of(tmp_path, rows), *OWN, code=1) == [
        "3 rows cannot be trained on:",
        "  line 1, task q01: the solution gets 0, not 1",
        "  line 2, task q02: agent: 'legder'; --agent is 'ledger'",
        "  line 3, task q01: task_id: line 1 has it too",
    ]


def test_solutions_must_get_the_full_reward_and_empty_attempts_less(tmp_path: Path) -> None:
    rows = [
        task(10, solution="It is 10."),
        task(11, solution=["It is 12."]),
        task(12),
        task(13, solution={"text": "13"}),
        task(14, data={"answer": ""}, solution=[{"role": "assistant", "content": "So."}]),
    ]
    bad = checked(tmp_path, lines_of(tmp_path, rows), *OWN, code=1)
    assert bad[:2] == [
        "3 rows cannot be trained on:",
        "  line 2, task q11: the solution gets 0, not 1",
    ]
    assert bad[2] == "  line 4, task q13: solution: text: Extra inputs are not permitted"
    assert bad[3] == "  line 5, task q14: an empty attempt gets 1"
    assert checked(tmp_path, lines_of(tmp_path, rows), *OWN, "--rows-only") == ["5 tasks can run"]


def test_an_agent_may_know_its_solutions_itself(tmp_path: Path) -> None:
    file = lines_of(tmp_path, [task(number, agent="knowing") for number in range(20, 24)])
    knowing = ("--agent", "my_agents.py:Knowing", "--json", tmp_path / "good.jsonl")
    assert checked(tmp_path, file, *knowing) == [
        "4 tasks can run; 4 with a solution that gets the full reward"
    ]
    lines = (tmp_path / "good.jsonl").read_text().splitlines()
    saved = [Rollout.model_validate_json(line) for line in lines]
    assert [one.reward for one in saved] == [1.0] * 4
    refused = checked(tmp_path, file, *knowing, "--rows-only", code=2)
    assert refused[0] == "prorl: --json saves solutions, and none is run"


def test_our_agents_run_what_their_data_sets_call_a_solution(tmp_path: Path) -> None:
    sums = task(30, agent="math", data={"answer": "42"})
    tests = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    program = "print(sum(map(int, input().split())))\n"
    code = task(31, agent="code", data={"tests": tests}, solution=program)
    wrong = task(32, agent="code", data={"tests": tests}, solution="print(4)\n")
    isolated = ("--sandbox", "bubblewrap")
    assert checked(tmp_path, lines_of(tmp_path, [sums, code, wrong]), *isolated, code=1) == [
        "1 row cannot be trained on:",
        "  line 3, task q32: the solution gets 0, not 1",
    ]


def test_prompts_are_measured_with_the_model(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "model")
    long = [{"role": "user", "content": "how much " * 30_000}]
    file = lines_of(tmp_path, [task(40), task(41, messages=long)])
    bad = checked(tmp_path, file, *OWN, "--model", tmp_path / "model", code=1)
    assert bad[1].startswith("  line 2, task q41: messages: the prompt has ")
    assert checked(tmp_path, file, *OWN) == ["2 tasks can run"]


def test_rows_of_trainers_are_read_too(tmp_path: Path) -> None:
    fields = {"agent": None, "data": {"answer": 7}, "image": None}
    prompt = [{"role": "user", "content": "How much?"}]
    of_verl = {"prompt": prompt, "prorl": json.dumps({"task_id": "q50", **fields})}
    of_trl = {"prompt": [{**prompt[0], "prorl": json.dumps({"task_id": "q51", **fields})}]}
    said = "data.answer: Input should be a valid string"
    (tmp_path / "tasks.json").write_text(json.dumps([of_verl, of_trl]))
    bad = checked(tmp_path, "tasks.json", *OWN, code=1)
    assert bad[1:3] == [f"  row 1, task q50: {said}", f"  row 2, task q51: {said}"]
    pq.write_table(pa.Table.from_pylist([of_verl]), tmp_path / "tasks.parquet")
    assert checked(tmp_path, "tasks.parquet", *OWN, code=1)[1] == f"  row 1, task q50: {said}"


def test_a_service_checks_the_rows_with_its_own_agents(tmp_path: Path) -> None:
    build_tiny_model(tmp_path / "model")
    (tmp_path / "my_agents.py").write_text(AGENT)
    file = lines_of(tmp_path, [task(60), task(61, data={}), task(62, agent="stranger"), task(60)])
    own = ["--agent", f"{tmp_path}/my_agents.py:Ledger", "--sandbox", "process"]
    with (
        local.engine(tmp_path / "model", log=tmp_path / "engine.log") as engine,
        local.service([engine.url], log=tmp_path / "service.log", options=own) as service,
    ):
        bad = checked(tmp_path, file, "--url", service.url, code=1)
        assert "nothing was submitted yet" in printed("list", "--url", service.url)
    assert bad[1:4] == [
        "  line 2, task q61: data.answer: Field required",
        "  line 3, task q62: agent: no agent 'stranger'",
        "  line 4, task q60: task_id: line 1 has it too",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "prorl: name a file with tasks"),
        (["nowhere.jsonl"], "prorl: nowhere.jsonl: No such file or directory"),
        (["--schema"], "prorl: --schema needs --agent"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], said: str, tmp_path: Path) -> None:
    assert checked(tmp_path, *arguments, code=2)[0] == said
