"""ATIF documents: accepted by the `atif` package and by Harbor's own classes, and nothing lost."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory

from prorl_service.exports import atif
from prorl_service.exports.sources import records
from prorl_service.exports.transcript import ExportRecord, Transcriber
from prorl_service.schemas import Rollout
from prorl_service.tokens.chat import ChatFormat
from tests.exports.made_rollouts import HOSTILE, SCRIPTS, Made

pytestmark = pytest.mark.processes

HARBOR = Path(__file__).parents[2] / ".venv-harbor" / "bin" / "python"

WAYS = ("tokens", "tasks alone", "nothing")
"""What is known beside the rollouts: a tokenizer, their tasks, or neither."""


def documents(made: Made, way: str, chat: ChatFormat) -> dict[str, atif.Document]:
    transcriber = Transcriber(chat if way == "tokens" else None)
    found = records([str(made.journal)])
    if way == "nothing":
        found = (ExportRecord(record.rollout) for record in found)
    return {
        name: document for record in found for name, document in atif.documents(record, transcriber)
    }


@pytest.fixture(scope="module", params=WAYS)
def known(
    request: pytest.FixtureRequest, made: Made, model_chat: ChatFormat
) -> dict[str, atif.Document]:
    return documents(made, request.param, model_chat)


def of(name: str, made: Made, documents: dict[str, atif.Document]) -> atif.Document:
    return documents[f"{made.of(name)[0].rollout_id}.json"]


def test_every_document_is_valid(known: dict[str, atif.Document]) -> None:
    assert len(known) == 14
    for name, document in known.items():
        read = Trajectory.model_validate_json(json.dumps(document))
        assert f"{read.trajectory_id}.json" == name
        assert read.to_json_dict() == document


@pytest.mark.skipif(not HARBOR.exists(), reason="needs scripts/setup-harbor")
def test_harbors_own_classes_accept_every_document(
    known: dict[str, atif.Document], tmp_path: Path
) -> None:
    """Uses a process of its own: Harbor has an environment of its own."""
    (tmp_path / "documents.json").write_text(json.dumps(list(known.values())))
    program = (
        "import json, sys\n"
        "from harbor.models.trajectories import Trajectory\n"
        "for one in json.load(open(sys.argv[1])):\n"
        "    assert Trajectory.model_validate(one).to_json_dict() == one\n"
        "print('valid')\n"
    )
    command = [str(HARBOR), "-c", program, str(tmp_path / "documents.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "valid\n", done.stderr


def rebuilt(documents: list[atif.Document]) -> list[dict[str, list[Any]]]:
    """Prompts, ids, logprobs and versions of segments, from their documents alone."""
    segments = []
    for document in documents:
        own = [step["metrics"] for step in document["steps"] if "metrics" in step]
        ids, logprobs, versions = list[int](), list[float](), list[int]()
        for metrics in own:
            context = metrics["extra"].get("context_token_ids", [])
            ids += context + metrics["completion_token_ids"]
            logprobs += [0.0] * len(context) + metrics["logprobs"]
            versions += [-1] * len(context) + metrics["extra"]["policy_versions"]
        prompt = own[0]["prompt_token_ids"]
        assert own[0]["prompt_tokens"] == len(prompt)
        segments.append({"prompt": prompt, "ids": ids, "logprobs": logprobs, "versions": versions})
    return segments


def test_segments_can_be_rebuilt_token_for_token_from_documents(
    known: dict[str, atif.Document], made: Made
) -> None:
    for rollout in made.rollouts:
        if rollout.trajectory is None or not rollout.trajectory.turns:
            continue
        names = [f"{rollout.rollout_id}.json"]
        while (after := known[names[-1]].get("continued_trajectory_ref")) is not None:
            names.append(after)
        assert rebuilt([known[name] for name in names]) == [
            {
                "prompt": one.prompt_ids,
                "ids": one.response_ids,
                "logprobs": one.logprobs,
                "versions": one.policy_versions,
            }
            for one in rollout.trajectory.segments
        ]


def test_results_are_in_the_step_of_their_calls_whole_and_as_the_tool_gave_them(
    known: dict[str, atif.Document], made: Made
) -> None:
    [hostile] = [step for step in of("hostile", made, known)["steps"] if "tool_calls" in step]
    [result] = hostile["observation"]["results"]
    assert result["content"] == HOSTILE
    [step] = [step for step in of("two calls", made, known)["steps"] if "tool_calls" in step]
    called = [call["tool_call_id"] for call in step["tool_calls"]]
    assert [one["source_call_id"] for one in step["observation"]["results"]] == called
    assert [one["content"] for one in step["observation"]["results"]] == ["12", "30"]
    broken = of("broken call", made, known)["steps"]
    [answer] = [
        step["observation"]["results"] for step in broken if "format_error" in step.get("extra", {})
    ]
    assert answer[0]["content"].startswith("Format error: ")


def test_messages_before_a_later_segment_are_marked_as_copied(
    made: Made, model_chat: ChatFormat
) -> None:
    found = documents(made, "tokens", model_chat)
    first = of("forgetful", made, found)
    second = found[first["continued_trajectory_ref"]]
    assert [step.get("is_copied_context", False) for step in second["steps"]] == [True, True, False]
    assert not any(step.get("is_copied_context") for step in first["steps"])
    assert "continued_trajectory_ref" not in second


def test_a_document_names_what_is_unknown(made: Made, model_chat: ChatFormat) -> None:
    whole = of("two calls", made, documents(made, "tokens", model_chat))
    assert "notes" not in whole
    assert whole["steps"][2]["reasoning_content"] == "I had better look."
    assert whole["agent"]["tool_definitions"][0]["function"]["name"] == "bash"
    alone = of("two calls", made, documents(made, "nothing", model_chat))
    assert atif.UNKNOWN_PROMPT in alone["notes"]
    assert atif.NOT_READ in alone["notes"]
    assert alone["steps"][0]["source"] == "agent"
    tasks = of("two calls", made, documents(made, "tasks alone", model_chat))
    assert [step["source"] for step in tasks["steps"]] == ["user", "agent", "agent"]
    assert atif.TASK_ALONE in tasks["notes"]


def test_a_failed_rollout_is_a_document_with_its_error(made: Made) -> None:
    [failed, _] = made.of("failing")
    assert isinstance(failed, Rollout)
    [(_, document)] = atif.documents(ExportRecord(failed), Transcriber())
    assert "this agent always fails" in document["steps"][-1]["message"]
    assert document["extra"]["error"]["blame"] == "agent"
    assert set(SCRIPTS) >= {"failing"}
