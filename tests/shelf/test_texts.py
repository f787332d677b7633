"""A rollout laid out for people: whole, whatever a model, a tool or an agent wrote."""

from collections.abc import Sequence

import pytest

from prorl_service.agents.base import Prompt
from prorl_service.schemas import (
    EngineTimes,
    FinishReason,
    Message,
    Rollout,
    RolloutState,
    Sampling,
    Segment,
    ToolCallRecord,
    Trajectory,
    Turn,
)
from prorl_service.schemas.views import RolloutText
from prorl_service.shelf.rows import row_of
from prorl_service.shelf.texts import NO_MODEL, text_of, tokens_of
from prorl_service.tokens.chat import ChatFormat
from tests.shelf.shelved import submitted

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b]0;title\x07\u202e\x00é\n" * 3
TIMES = EngineTimes(queue_s=0.1, prefill_s=0.2, decode_s=1.1)
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"properties": {}}}}


class Played:
    """A trajectory that is put together turn by turn."""

    def __init__(self, chat: ChatFormat) -> None:
        self._chat = chat
        self._segments: list[tuple[list[int], list[int], list[int]]] = []
        self.turns: list[Turn] = []

    def segment(self, prompt: str) -> None:
        self._segments.append((self._chat.encode(prompt), [], []))

    def given(self, text: str) -> None:
        ids = self._chat.encode(text)
        self._segments[-1][1].extend(ids)
        self._segments[-1][2].extend([0] * len(ids))

    def turn(
        self,
        text: str,
        calls: Sequence[ToolCallRecord] = (),
        format_error: str | None = None,
    ) -> None:
        _, response, mask = self._segments[-1]
        ids = [*self._chat.encode(text), self._chat.end_of_turn_id]
        self.turns.append(
            Turn(
                segment=len(self._segments) - 1,
                start=len(response),
                stop=len(response) + len(ids),
                text=text,
                finish_reason="stop",
                tool_calls=list(calls),
                format_error=format_error,
                model_s=1.5,
                cached_tokens=7,
                times=TIMES,
                backend="e",
            )
        )
        response.extend(ids)
        mask.extend([1] * len(ids))

    def trajectory(self) -> Trajectory:
        segments = [
            Segment(
                prompt_ids=prompt,
                response_ids=response,
                loss_mask=mask,
                logprobs=[-0.5 * one for one in mask],
                policy_versions=[3 if one else -1 for one in mask],
            )
            for prompt, response, mask in self._segments
        ]
        return Trajectory(
            segments=segments,
            turns=self.turns,
            finish_reason=FinishReason.FINISHED,
            sampling=Sampling(),
        )


def laid_out(trajectory: Trajectory, chat: ChatFormat | None) -> RolloutText:
    group = submitted(n=3)
    rollout = Rollout(
        rollout_id="g.1",
        group_id="g",
        task_id="t",
        agent="math",
        index=1,
        state=RolloutState.DONE,
        reward=1.0,
        trajectory=trajectory,
        created_at=1.0,
    )
    row = row_of(rollout, None, run="r", has_content=True)
    prompt = Prompt([Message(role="user", content="Go.")], [BASH])
    return text_of(rollout, group, row, [row], prompt, chat)


@pytest.fixture
def played(chat: ChatFormat) -> Played:
    return Played(chat)


def call(name: str = "bash") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"command": "ls"}}}}\n</tool_call>'


def test_outputs_are_whole_and_untouched(played: Played, chat: ChatFormat) -> None:
    output = HOSTILE + "x" * 5_000_000
    played.segment("Go.")
    played.turn(call(), [ToolCallRecord(name="bash", output=output, duration_s=2.5)])
    played.given("The results.")
    played.turn(HOSTILE)
    text = RolloutText.model_validate_json(laid_out(played.trajectory(), chat).model_dump_json())
    first, last = text.turns
    assert first.tool_calls[0].output == output
    assert last.raw == HOSTILE
    assert (first.model_s, first.tool_s, first.cached_tokens) == (1.5, 2.5, 7)
    assert first.times == TIMES
    assert (first.oldest_policy_version, first.newest_policy_version) == (3, 3)


def test_results_of_tools_account_for_what_was_given(played: Played, chat: ChatFormat) -> None:
    played.segment("Go.")
    played.turn(call(), [ToolCallRecord(name="bash", output="out")])
    played.given("out, as a template writes it")
    played.turn("<tool_call>oops", format_error="not JSON")
    played.given("Format error: not JSON.")
    played.turn("What now?")
    played.given("An agent's own loop says this.")
    played.turn("Well.")
    text = laid_out(played.trajectory(), chat)
    assert [turn.given for turn in text.turns] == [
        None,
        None,
        None,
        "An agent's own loop says this.",
    ]
    assert text.turns[1].format_error == "not JSON"
    assert text.turns[1].raw == "<tool_call>oops"


def test_a_new_segment_begins_with_what_the_model_was_shown(
    played: Played, chat: ChatFormat
) -> None:
    played.segment("Go.")
    played.turn("One.")
    played.segment("History, made shorter.")
    played.turn("Two.")
    text = laid_out(played.trajectory(), chat)
    assert [turn.given for turn in text.turns] == [None, "History, made shorter."]
    assert [(one.segment, one.prompt_tokens) for one in text.turns] == [
        (0, len(chat.encode("Go."))),
        (1, len(chat.encode("History, made shorter."))),
    ]
    assert [one.sampled_tokens for one in text.segments] == [5, 5]


def test_calls_that_were_not_made_have_no_output(played: Played, chat: ChatFormat) -> None:
    played.segment("Go.")
    played.turn(call() + "\n" + call(), [ToolCallRecord(name="bash", output="done")])
    (turn,) = laid_out(played.trajectory(), chat).turns
    assert [one.output for one in turn.tool_calls] == ["done", None]
    assert turn.tool_calls[1].arguments == {"command": "ls"}


def test_without_the_model_replies_are_shown_as_they_were_sampled(
    played: Played, chat: ChatFormat
) -> None:
    played.segment("Go.")
    played.turn("<think>hm</think>Yes.")
    trajectory = played.trajectory()
    text = laid_out(trajectory, None)
    assert (text.turns[0].text, text.turns[0].reasoning) == ("<think>hm</think>Yes.", "")
    assert text.notice == NO_MODEL
    tokens = tokens_of("g.1", trajectory, None, segment=0, start=0, count=9)
    assert (set(tokens.texts), tokens.notice) == ({""}, NO_MODEL)
    assert len(tokens.ids) == 9


def test_unknown_siblings_are_listed_without_a_state(played: Played, chat: ChatFormat) -> None:
    played.segment("Go.")
    text = laid_out(played.trajectory(), chat)
    assert [(one.rollout_id, one.state) for one in text.siblings] == [
        ("g.0", None),
        ("g.1", RolloutState.DONE),
        ("g.2", None),
    ]
