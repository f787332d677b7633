"""Rows for supervised fine-tuning: a conversation for each segment, in OpenAI's form.

Trainers render `messages` and `tools` with the model's chat template. `exact` says whether that
yields exactly the sampled tokens: templates drop the reasoning of earlier turns and reformat calls.
"""

from collections.abc import Iterator
from typing import Any

from prorl_service.client.trainable import is_cut_off, trained_masks
from prorl_service.exports.transcript import ExportRecord, Transcriber, Transcript
from prorl_service.schemas import Rollout, Segment

Row = dict[str, Any]

COLUMNS = {
    "messages": "list<json>",
    "tools": "list<json>",
    "reward": "float",
    "agent": "text",
    "policy_version": "int",
    "finish_reason": "text",
    "turns": "int",
    "is_abandoned": "list<bool>",
    "is_replayed": "list<bool>",
    "turn_rewards": "list<float>",
    "exact": "bool",
    "whole": "bool",
    "rollout_id": "text",
    "group_id": "text",
    "task_id": "text",
    "segment": "int",
    "segments": "int",
    "kind": "text",
    "is_trained": "bool",
}
"""Types of the columns in Parquet."""
IMAGES = {"images": "list<text>"}
"""Column for a model that sees: an empty list, since the messages have the pictures. TRL takes it
for the sign that there are any; without it, TRL trains on placeholders alone, and says nothing."""


def columns(transcriber: Transcriber) -> dict[str, str]:
    return COLUMNS if _pad_id(transcriber) is None else COLUMNS | IMAGES


def _pad_id(transcriber: Transcriber) -> int | None:
    """Returns the placeholder of pictures; None if the model does not see."""
    chat = transcriber.chat
    return None if chat is None or chat.pictures is None else chat.pictures.pad_id


def rows(
    record: ExportRecord, transcriber: Transcriber, *, all_segments: bool = False
) -> Iterator[Row]:
    """Yields a row a segment, except those with an unreadable prompt, without a reply or with a
    sampled placeholder, which trainers would take for a picture, and, unless `all_segments`, those
    that trainers do not learn from (`trained_masks`): who trains on a row learns all of its
    replies. Main conversations of a model behind an API are learnt from as text. `is_abandoned`,
    `is_replayed` and `turn_rewards` have an entry for each turn."""
    rollout = record.rollout
    if rollout.trajectory is None:
        return
    policy, segments = rollout.trajectory.policy, rollout.trajectory.segments
    trained = map(any, trained_masks(rollout))
    transcripts, pad_id = transcriber.transcripts(record), _pad_id(transcriber)
    for segment, transcript, is_trained in zip(segments, transcripts, trained, strict=True):
        is_taught = is_trained or _is_an_apis(rollout, segment)
        if transcript.prompt is None or not transcript.said or not (is_taught or all_segments):
            continue
        if pad_id in segment.prompt_ids or pad_id in segment.response_ids:
            continue
        yield {
            "messages": transcript.messages,
            "tools": transcript.tools,
            "reward": rollout.reward,
            "agent": rollout.agent,
            "policy_version": rollout.newest_policy_version,
            "finish_reason": rollout.trajectory.finish_reason.value,
            "turns": len(transcript.said),
            "is_abandoned": [said.turn.is_abandoned for said in transcript.said],
            "is_replayed": [said.turn.is_replayed for said in transcript.said],
            "turn_rewards": [said.turn.reward for said in transcript.said],
            "exact": policy is None and _is_exact(transcript, segment, transcriber),
            "whole": transcript.is_whole,
            "rollout_id": rollout.rollout_id,
            "group_id": rollout.group_id,
            "task_id": rollout.task_id,
            "segment": transcript.segment,
            "segments": len(segments),
            "kind": segment.kind,
            "is_trained": is_trained,
            **({} if pad_id is None else {"images": []}),
        }


def _is_an_apis(rollout: Rollout, segment: Segment) -> bool:
    """Returns whether it is the conversation of a model behind an API that ended by itself: text to
    imitate, though its tokens are not trained on."""
    found = rollout.trajectory
    is_text = found is not None and found.policy is not None and not is_cut_off(found)
    return is_text and rollout.reward is not None and segment.kind == "main"


def _is_exact(transcript: Transcript, segment: Segment, transcriber: Transcriber) -> bool:
    """Allows for trailing white space: templates end a conversation with it, policies do not."""
    if transcriber.reader is None or transcriber.chat is None:
        return False
    sampled = segment.prompt_ids + segment.response_ids
    rendered = transcriber.reader.renders(transcript.messages, transcript.tools)
    rest = rendered[len(sampled) :]
    return rendered[: len(sampled)] == sampled and not transcriber.chat.decode(rest).strip()
