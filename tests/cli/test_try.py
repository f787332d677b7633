"""`prorl try`, as its users run it."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from prorl_service import local
from prorl_service.schemas import Rollout, RolloutState
from prorl_service.testing import StubApi
from tests.agents.dialogue.shop import answers, whole_task
from tests.cli.called import called
from tests.cli.try_process import (
    COMMAND,
    MATH,
    STYLE,
    TIMEOUT_S,
    arguments,
    bash,
    done,
    on_terminal,
    running,
    until,
)
from tests.programs import ran
from tests.testing.guess_agent import NUMBER

pytestmark = pytest.mark.processes

GUESS = "my_agents.py:Guess"
TIMES = re.compile(r" {13}(\d+ tokens|bash, \d)")


def saved(file: Path) -> list[Rollout]:
    return [Rollout.model_validate_json(line) for line in file.read_text().splitlines()]


def test_a_rollout_is_shown_turn_by_turn_with_its_verdict(tmp_path: Path) -> None:
    thought = "<think>\nMultiply.\n</think>\n\nI compute it.\n"
    replies = [thought + bash("echo $((17*3))"), "<tool_call>{no", r"It is \boxed{51}."]
    command = arguments(tmp_path, "math", MATH, replies, "--json", "saved.jsonl")
    tried = done(command, tmp_path)
    assert (tried.returncode, tried.stderr) == (0, "")
    shown = [line for line in tried.stdout.splitlines() if not TIMES.match(line)]
    assert shown[shown.index("RUN") : shown.index("EVAL")] == [
        "RUN",
        "turn 1",
        "    thinks | Multiply.",
        "      says | I compute it.",
        "     calls | bash  command: echo $((17*3))",
        "    output | 51",
        "turn 2",
        "      says | <tool_call>{no",
        "     error | format error: <tool_call> and </tool_call> do not pair up",
        "turn 3",
        r"      says | It is \boxed{51}.",
    ]
    assert len([line for line in tried.stdout.splitlines() if TIMES.match(line)]) == 6
    assert "done: finished after 3 turns" in shown
    assert "    reward | 1" in shown
    assert "           | answered  1" in shown
    [rollout] = saved(tmp_path / "saved.jsonl")
    assert (rollout.state, rollout.reward) == (RolloutState.DONE, 1.0)
    assert rollout.trajectory is not None
    assert rollout.trajectory.turns[1].format_error is not None
    again = done([*command, "--replies", "saved.jsonl"], tmp_path)
    assert "done: finished after 3 turns" in again.stdout


def test_turns_are_shown_while_the_rollout_runs(tmp_path: Path) -> None:
    go = tmp_path / "go"
    waits = bash(f"until [ -e {go} ]; do sleep 0.05; done; echo released")
    command = arguments(tmp_path, "math", MATH, [waits, r"\boxed{51}"])
    with running(command, tmp_path) as process:
        until(process, "calls | bash")
        assert process.poll() is None
        go.touch()
        until(process, "output | released")
        until(process, "done: finished")
        assert process.wait(TIMEOUT_S) == 0


def test_messages_of_an_agent_without_tools_are_shown(tmp_path: Path) -> None:
    tried = done(arguments(tmp_path, GUESS, NUMBER, ["50", "60", "70"]), tmp_path)
    assert "given | <|im_start|>user\n           | higher<|im_end|>" in tried.stdout
    assert "1 scripted replies were not used" in tried.stdout
    assert "reward | 0.5" in tried.stdout


def test_rewards_of_turns_follow_the_verdict(tmp_path: Path) -> None:
    tried = done(arguments(tmp_path, "my_agents.py:Warmer", NUMBER, ["50", "60"]), tmp_path)
    assert "    reward | 0.5\n" in tried.stdout
    assert "     of it | -0.25 in turn 1, 0.75 in turn 2\n" in tried.stdout


def test_several_attempts_end_in_a_table_and_one_failure_is_the_exit_code(tmp_path: Path) -> None:
    options = ("-n", "3", "--json", "saved.jsonl")
    command = arguments(tmp_path, "my_agents.py:Picky", NUMBER, ["50", "60"], *options)
    tried = done(command, tmp_path)
    assert tried.returncode == 1
    lines = tried.stdout.splitlines()
    head = next(n for n, line in enumerate(lines) if line.startswith("attempt"))
    rows = [line.split() for line in lines[head + 1 : head + 4]]
    assert [row[:4] for row in rows] == [
        ["0", "done", "0.5", "2"],
        ["1", "failed", "1", "3"],
        ["2", "done", "0.5", "2"],
    ]
    assert "blame agent: ValueError" in lines[head + 2]
    assert lines[-1] == "reward 0.5 to 0.5, mean 0.5, of 2 rollouts"
    assert "[1] failed in RUN, blame agent" in lines
    assert [one.index for one in saved(tmp_path / "saved.jsonl")] == [0, 1, 2]
    assert tried.stdout.count("Guess.<|im_end|>") == 1  # the prompt is that of all


def test_a_traceback_begins_in_the_authors_own_code(tmp_path: Path) -> None:
    command = arguments(tmp_path, "my_agents.py:Picky", NUMBER, ["50"], "-n", "2")
    tried = done(command, tmp_path)
    frames = [line for line in tried.stderr.splitlines() if ' |   File "' in line]
    assert [frame.rpartition(", in ")[2] for frame in frames] == ["run", "helper"]
    assert r"ValueError: of the author's own: \x1b[2J" in tried.stderr
    assert "\x1b" not in tried.stderr + tried.stdout


@pytest.mark.parametrize(
    ("agent", "problem", "hint"),
    [
        ("my_agents.py", "agent 'my_agents.py' names no class", "write it as"),
        ("my_agents.py:Gues", "my_agents has no Gues", "Guess, Picky"),
        ("nowhere.py:Guess", "there is no file", ""),
        ("nobody", "no agent 'nobody'", "there are code, dialogue, harbor"),
        ("broken.py:Guess", "broken.py, line 2: SyntaxError: '(' was never closed", ""),
        ("my_agents.py:Unready", "Unready.prompt raised KeyError: 'nothing'", ""),
    ],
)
@pytest.mark.sampled(3)
def test_a_broken_agent_is_one_line(agent: str, problem: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("\nclass Guess(\n")
    tried = done(arguments(tmp_path, agent, NUMBER, ["60"]), tmp_path)
    assert tried.returncode == 2
    lines = tried.stderr.splitlines()
    [line] = [line for line in lines if line.startswith("prorl: ")]
    assert problem in line
    assert hint in "".join(lines[lines.index(line) + 1 :])
    assert ("raised | Traceback" in tried.stderr) == ("raised" in problem)


@pytest.mark.parametrize(
    ("task", "problem", "hint"),
    [
        (
            {**MATH, "data": {"anwser": 1}},
            "task try: data.answer: Field required; data.anwser: Extra inputs are not permitted",
            ["  did you mean answer?"],
        ),
        (
            {**MATH, "data": {"answer": 51}},
            "task try: data.answer: Input should be a valid string",
            ["  `data` of the agent 'math': docs/reference/task_data.md"],
        ),
        (
            {"groups": [{"group_id": "g", "n": 2, "task": {**MATH, "task_id": "t"}, "limit": {}}]},
            "--task task.json: limit: Extra inputs are not permitted",
            ["  did you mean limits?"],
        ),
        (
            {**MATH, "image": "debian:12"},
            "task try: image: the process sandbox has no images, so 'debian:12' cannot be used",
            [],
        ),
    ],
)
def test_a_task_that_the_agent_does_not_take_is_one_line(
    task: object, problem: str, hint: list[str], tmp_path: Path
) -> None:
    tried = done(arguments(tmp_path, "math", task, ["51"]), tmp_path)
    assert tried.returncode == 2
    assert tried.stderr.splitlines() == [f"prorl: {problem}", *hint]


QUESTION = json.dumps(MATH)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--task", "{}"], "give either --engine or --replies"),
        (["--task", "{}", "--engine", "http://a", "--replies", "b"], "give either --engine"),
        (["--task", "{", "--replies", "b"], "--task is not JSON: Expecting property name"),
        (["--task", "none.json", "--replies", "b"], "--task none.json: No such file"),
        (["--task", "list.json", "--replies", "b"], "--task list.json is not a JSON object"),
        (["--task", "latin.json", "--replies", "b"], "--task latin.json: 'utf-8' codec can't"),
        (["--task", "{}", "--replies", "b"], "--task: task.messages: Field required"),
        (["--task", "{}", "--replies", "b", "--id", "a"], "--id chooses from a JSONL file"),
        (
            ["--task", '{"task": {}, "limits": {"max_turns": 0}}', "--replies", "b"],
            "--task: task.messages: Field required; limits.max_turns: Input should be",
        ),
        (["--task", '{"taks": 1}', "--replies", "b"], "--task: task.messages: Field required; ta"),
        (["--task", QUESTION, "--replies", "c"], "replies in c: No such file or directory"),
        (["--task", QUESTION, "--engine", "localhost"], "--engine: is not an engine's URL"),
        (["--task", "{}", "--replies", "b", "--top-p", "2"], "--top-p: Input should be"),
        (["--task", "{}", "--replies", "b", "--json", "no/file"], "--json no/file: cannot write"),
        (["--replies", "b"], "give either --task, or --from with --turns"),
        (["--from", "g.0", "--replies", "b"], "give either --task, or --from with --turns"),
    ],
)
def test_invalid_options_are_one_line(
    options: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").write_text("A reply.")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "latin.json").write_bytes(b'"\xe9"')
    monkeypatch.chdir(tmp_path)
    refused = called("try", "math", *options)
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[0].startswith(f"prorl: {problem}")


def test_an_unreachable_engine_is_one_line(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{local.free_port()}"
    tried = done([*COMMAND, "math", "--task", json.dumps(MATH), "--engine", url], tmp_path)
    assert tried.returncode == 2
    assert tried.stderr.splitlines() == [
        f"prorl: {url} does not answer /health",
        "  is the inference engine running and reachable from the service?",
    ]


def test_a_task_comes_from_standard_input_and_rollouts_go_to_standard_output(
    tmp_path: Path,
) -> None:
    group = {"group_id": "g", "task": NUMBER, "n": 8, "limits": {"max_turns": 1}}
    arguments(tmp_path, GUESS, NUMBER, ["50", "60"])
    given = ["--task", "-", "--replies", "replies.txt", "--json", "-", "--temperature", "0.5"]
    tried = done([*COMMAND, GUESS, *given], tmp_path, stdin=json.dumps(group))
    assert tried.returncode == 0
    rollout = Rollout.model_validate_json(tried.stdout)
    assert rollout.trajectory is not None
    assert rollout.trajectory.finish_reason == "max_turns"  # the group's limit
    assert rollout.trajectory.sampling.temperature == 0.5
    assert "done: max_turns after 1 turn" in tried.stderr


def test_a_row_of_a_data_set_is_tried_with_its_replies_as_its_solution_has_them(
    tmp_path: Path,
) -> None:
    rows = [
        {**MATH, "task_id": "m1", "solution": "x"},
        {"task": {**MATH, "task_id": "m2", "data": {"answer": "4"}}, "solution": "y"},
    ]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    calls = [{"function": {"name": "bash", "arguments": {"command": "echo $((2 * 2))"}}}]
    replies = [{"tool_calls": calls}, r"\boxed{4}"]
    (tmp_path / "replies.jsonl").write_text("\n".join(map(json.dumps, replies)))
    command = [*COMMAND, "math", "--task", "tasks.jsonl", "--replies", "replies.jsonl"]
    command += ["--sandbox", "process"]
    chosen = done([*command, "--id", "m2"], tmp_path)
    assert "output | 4" in chosen.stdout
    assert "reward | 1" in chosen.stdout
    assert "task m1" in done(command, tmp_path).stdout
    assert done([*command, "--id", "m3"], tmp_path).stderr.splitlines() == [
        "prorl: --task tasks.jsonl has no task 'm3'"
    ]


HOSTILE = r"""
printf '\033[2J\033]0;owned\007\033[8mhidden\033[0m \342\200\256 reversed\n'
printf 'done: finished after 9 turns\nEVAL\n    reward | 1\n\r[red]markup[/red]\n'
printf '%0500dDONE: at the edge\n' 0
head -c 60000 /dev/zero | tr '\0' 'x'
"""


def hostile(tmp_path: Path) -> list[str]:
    reply = "\x1b[31mred\x1b[0m \x9b2J \u202edone: finished after 7 turns\nEVAL\n" + bash(HOSTILE)
    return arguments(tmp_path, "math", MATH, [reply, "[bold]\\boxed{1}[/bold]"])


def check_harmless(written: str) -> None:
    """No line of the program's own is forged, and no character is one of control."""
    plain = STYLE.sub("", written)
    assert not any(ord(one) < 32 and one not in "\n\t" for one in plain)
    assert not set("\x7f\x9b\u202e\u2066") & set(plain)
    own = [line for line in plain.splitlines() if line[:1] not in ("", " ")]
    assert own[1:] == ["INIT", "RUN", "turn 1", "turn 2", "EVAL", "done: finished after 2 turns"]
    for shown in (r"\x1b[2J", r"\x1b]0;owned\x07", r"\u202e", "[red]markup[/red]", "[bold]"):
        assert shown in plain


def test_hostile_text_is_shown_and_not_obeyed(tmp_path: Path) -> None:
    tried = done(hostile(tmp_path), tmp_path)
    assert "\x1b" not in tried.stdout
    check_harmless(tried.stdout)
    assert "characters left out; --full shows them" in tried.stdout


def test_hostile_text_is_harmless_on_a_terminal_too(tmp_path: Path) -> None:
    """Also where lines are as long as to go on at the terminal's edge."""
    written = on_terminal(hostile(tmp_path), tmp_path)
    assert STYLE.search(written)
    check_harmless(written)
    assert max(map(len, STYLE.sub("", written).splitlines())) <= 80


def test_no_color_is_honoured_on_a_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in on_terminal(hostile(tmp_path), tmp_path, NO_COLOR="1")


def test_output_is_folded_unless_full_is_set(tmp_path: Path) -> None:
    command = arguments(tmp_path, "math", MATH, [bash("seq 1000"), r"\boxed{51}"])
    folded = done(command, tmp_path).stdout
    assert "           | [... 980 lines left out; --full shows them ...]" in folded
    assert "           | 500\n" not in folded
    assert "           | 500\n" in done([*command, "--full"], tmp_path).stdout


def sleepers(marker: str) -> list[str]:
    return ran("pgrep", "-f", f"sleep {marker}").stdout.split()


@pytest.mark.parametrize("sandbox", ["process", "bubblewrap"])
def test_an_interrupt_ends_rollouts_sandboxes_and_process(sandbox: str, tmp_path: Path) -> None:
    marker = f"4{'17' if sandbox == 'process' else '18'}7.25"
    replies = [bash("echo first"), bash(f"sleep {marker} & sleep {marker}")]
    options = ("--sandbox", sandbox, "--json", "saved.jsonl", "-n", "2")
    with running(arguments(tmp_path, "math", MATH, replies, *options), tmp_path) as process:
        for _ in (0, 1):
            until(process, marker)
        process.send_signal(signal.SIGINT)
        _, problems = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == -signal.SIGINT
    assert problems == "prorl: ending the rollouts; a second signal does not wait\n"
    assert sleepers(marker) == []
    assert not list(Path("/tmp").glob(f"prorl-tmp-{process.pid}-*"))
    rollouts = saved(tmp_path / "saved.jsonl")
    assert [one.state for one in rollouts] == [RolloutState.CANCELLED] * 2
    assert rollouts[0].trajectory is not None
    assert rollouts[0].trajectory.turns[0].tool_calls[0].output == "first"


def test_a_second_interrupt_ends_even_an_agent_that_blocks_the_loop(tmp_path: Path) -> None:
    with running(arguments(tmp_path, "my_agents.py:Busy", NUMBER, ["50"]), tmp_path) as process:
        until(process, "tokens, ")
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        assert "a second signal does not wait" in process.stderr.readline()
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_S) == -signal.SIGINT


def test_it_ends_when_its_reader_is_gone(tmp_path: Path) -> None:
    replies = [bash("echo more; sleep 0.1")] * 500
    command = arguments(tmp_path, "math", MATH, replies, "--max-turns", "500")
    with running(command, tmp_path) as process:
        until(process, "turn 2")
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(TIMEOUT_S) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.fixture(scope="module")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("try") / "engine.log"
    with local.engine(tiny_model, log=log) as process:
        yield process.url


def test_a_real_engine_replies(engine: str, tmp_path: Path) -> None:
    options = ("--max-turns", "2", "--max-tokens-per-turn", "20", "--seed", "1")
    given = ["--task", json.dumps(MATH), "--engine", engine, "--json", "saved.jsonl", "-n", "2"]
    tried = done([*COMMAND, "math", *given, *options], tmp_path)
    assert (tried.returncode, tried.stderr) == (0, "")
    assert "[1] turn 2" in tried.stdout
    rollouts = saved(tmp_path / "saved.jsonl")
    assert all(one.state is RolloutState.DONE for one in rollouts)
    for one in rollouts:
        assert one.trajectory is not None
        assert all(0 < turn.stop - turn.start <= 20 for turn in one.trajectory.turns)
    check = [one.trajectory.turns[0].text for one in rollouts if one.trajectory is not None]
    assert len(set(check)) == 2  # siblings sample apart


def test_a_program_takes_the_place_of_the_agents_loop(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("raise SystemExit('no model needed')\n")
    tried = done([*arguments(tmp_path, "math", MATH, ["42"]), "--harness", "agent.py"], tmp_path)
    assert tried.returncode == 1
    assert "never asked the policy" in tried.stdout + tried.stderr


@pytest.mark.parametrize(
    ("harness", "problem"),
    [("nope", "there is no harness 'nope'"), ("gone.py", "--harness gone.py: ")],
)
def test_an_unknown_program_is_one_line(harness: str, problem: str, tmp_path: Path) -> None:
    tried = done([*arguments(tmp_path, "math", MATH, ["42"]), "--harness", harness], tmp_path)
    assert tried.returncode == 2
    assert problem in tried.stderr
    assert "Traceback" not in tried.stderr


def test_a_person_plays_the_policy_and_talks_with_a_user(tmp_path: Path) -> None:
    typed = "\nWhich order?\nlook_up " + json.dumps({"table": "orders", "id": "17"})
    with StubApi(answers).in_thread() as user:
        of_user = ["--user-url", f"{user.url}/v1", "--user-model", "person"]
        options = [*of_user, "--json", "saved.jsonl"]
        task = whole_task(changes={}).model_dump_json()
        command = [*COMMAND, "dialogue", "--task", task, "--replies", "-", *options]
        tried = done(command, tmp_path, stdin=f"{typed}\nDone.\n")
        [rollout] = saved(tmp_path / "saved.jsonl")
        ended = done(command, tmp_path, stdin="Which order?\n")
    assert tried.returncode == 0, tried.stderr
    assert "tools: look_up, change, remove" in tried.stderr
    shown = [line for line in tried.stderr.splitlines() if line.startswith(("user", "tool: "))]
    assert shown == [
        "user: I want tea instead of milk.",
        "user: Order 17.",
        'tool: {"item": "milk", "count": 2, "paid": false}',
    ]
    assert (rollout.reward, rollout.trajectory and rollout.trajectory.policy) == (1.0, "person")
    assert ended.returncode == 1
    assert "no more replies were typed" in ended.stdout


def test_standard_input_is_read_once(tmp_path: Path) -> None:
    refused = done([*COMMAND, "math", "--task", "-", "--replies", "-"], tmp_path, stdin="{}")
    assert refused.returncode == 2
    assert refused.stderr.startswith("prorl: --task - and --replies - both read standard input")
