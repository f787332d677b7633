"""The offline science questions: right answers score, wrong ones do not, documents are found."""

from pathlib import Path

import pytest

from prorl_service.agents.registry import AgentRegistry
from prorl_service.errors import InvalidRequest
from prorl_service.rewards.stem import normal_text, score_choice, score_value
from recipes.math_code.corpus import Corpus, read_documents
from recipes.math_code.offline import stem
from recipes.math_code.offline.stem import OfflineQuestion
from recipes.math_code.prepare import Options, prepare
from recipes.math_code.rows import read_rows

QUESTIONS = stem.questions()
CHOICES = [one for one in QUESTIONS if one.options]
SHORT = [one for one in QUESTIONS if not one.options]
LOOK_UP = [one for one in QUESTIONS if one.document]


def scored(answer: str, question: OfflineQuestion) -> float:
    """Scores a short answer as the agent does without a judge."""
    if normal_text(answer) == normal_text(question.answer):
        return 1.0
    return score_value(answer, question.answer)


def test_half_are_multiple_choice_and_a_third_need_a_document() -> None:
    assert len({one.id for one in QUESTIONS}) == len(QUESTIONS) == 24
    assert (len(CHOICES), len(SHORT), len(LOOK_UP)) == (12, 12, 8)
    assert sum(bool(one.options) for one in LOOK_UP) == 4


@pytest.mark.parametrize("question", CHOICES, ids=lambda one: one.id)
def test_only_the_right_option_scores(question: OfflineQuestion) -> None:
    for letter, text in question.options.items():
        for said in (letter, text, f"({letter}) {text}"):
            score = score_choice(f"\\boxed{{{said}}}", question.answer, question.options, None)
            assert score == float(letter == question.answer), said


@pytest.mark.parametrize("question", SHORT, ids=lambda one: one.id)
def test_short_answers_score_in_all_their_forms_and_near_misses_do_not(
    question: OfflineQuestion,
) -> None:
    assert question.right
    assert question.wrong
    assert {answer: scored(answer, question) for answer in (question.answer, *question.right)} == (
        dict.fromkeys((question.answer, *question.right), 1.0)
    )
    assert {answer: scored(answer, question) for answer in question.wrong} == (
        dict.fromkeys(question.wrong, 0.0)
    )


@pytest.mark.parametrize("question", LOOK_UP, ids=lambda one: one.id)
def test_a_search_for_a_question_finds_its_document(question: OfflineQuestion) -> None:
    found = Corpus(read_documents(stem.CORPUS)).search(question.question, 3)
    assert question.document in [document.id for document in found]


def test_each_fact_to_look_up_is_in_one_document_only() -> None:
    documents = {one.id: one.text.casefold() for one in read_documents(stem.CORPUS)}
    facts = {
        "corvane-metal": "indium",
        "moth-food": "bluefern",
        "osmere-air": "nitrogen",
        "velm-catalyst": "cerium",
        "orrin-depth": "312 m",
        "osmere-orbits": "19.5 days",
        "harl-month": "1.7 m",
        "goby-pigment": "orrinine",
    }
    told = {
        id_: [name for name, text in documents.items() if fact in text]
        for id_, fact in facts.items()
    }
    assert told == {one.id: [one.document] for one in LOOK_UP}


@pytest.mark.processes
async def test_the_questions_are_prepared_with_their_documents(tmp_path: Path) -> None:
    manifest = await prepare(Options("offline_stem", tmp_path, workers=1))
    assert (manifest.problems, manifest.rejected) == (24, {})
    rows = read_rows(tmp_path / "rows.jsonl")
    assert rows == stem.problems()
    for row in rows:
        task = row.task({"mcp": ["corpus"]})
        assert AgentRegistry()[task.agent](task).prompt().messages[-1].content == row.question
    assert list(read_documents(tmp_path / "corpus")) == list(read_documents(stem.CORPUS))
    assert rows[0].question.endswith("\nC. It doubles.\nD. It grows fourfold.")


async def test_the_questions_cannot_be_read_from_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="split: offline_stem comes with this repository"):
        await prepare(Options("offline_stem", tmp_path / "out", split="train"))
    assert not (tmp_path / "out").exists()
