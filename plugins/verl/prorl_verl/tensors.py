"""Rows as VeRL stores them: fields and tags of TransferQueue, or the output of an agent loop."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from prorl_service.client.trainable import token_rewards
from prorl_verl.rows import Row

Fields = dict[str, Any]
Tag = dict[str, Any]

OWN_COLUMNS = ("__rollout_n__", "__do_sample__", "global_steps")
"""Columns of a prompt that its rows do not have."""

SAMPLED = "prorl_sampled"
"""Key of a row's number of unmasked tokens in its `extra_fields`. A failed rollout's is 0."""


def keys_of(uid: str, session: int, rows: Sequence[Row]) -> list[str]:
    return [f"{uid}_{session}_{index}" for index in range(len(rows))]


def fields_of(row: Row, columns: Mapping[str, Any]) -> Fields:
    """Returns, unpadded: prompts int64[P]; responses, response_mask, loss_mask int64[R];
    rollout_log_probs float32[R]; rm_scores float32[R], see `token_rewards`; input_ids, position_ids
    int64[P + R], or position_ids int64[4, P + R] for a model that sees.

    `columns` of the prompt, as the data set gave them, travel with every row.
    """
    prompts = torch.tensor(row.prompt_ids, dtype=torch.int64)
    responses = torch.tensor(row.response_ids, dtype=torch.int64)
    mask = torch.tensor(row.response_mask, dtype=torch.int64)
    scores = token_rewards(row.reward, row.turn_rewards, row.response_mask)
    input_ids = torch.cat([prompts, responses])
    return {
        **{key: value for key, value in columns.items() if key not in OWN_COLUMNS},
        "prompts": prompts,
        "responses": responses,
        "response_mask": mask,
        "loss_mask": mask,
        "input_ids": input_ids,
        "position_ids": torch.arange(len(input_ids)),
        "rollout_log_probs": torch.tensor(row.logprobs, dtype=torch.float32),
        "rm_scores": torch.tensor(scores, dtype=torch.float32),
        "num_turns": row.turns,
        "extra_fields": extra_fields(row),
        **row.verl_fields,
    }


def extra_fields(row: Row) -> dict[str, Any]:
    return {
        "reward_extra_info": dict(row.metrics),
        "min_global_steps": row.min_version,
        "max_global_steps": row.max_version,
        SAMPLED: sum(row.response_mask),
    }


def tag_of(row: Row, global_steps: int) -> Tag:
    """Returns a row's tag. `global_steps`: the step that gave the prompt out."""
    return {
        "status": "success",
        "prompt_len": len(row.prompt_ids),
        "response_len": len(row.response_ids),
        "seq_len": len(row.prompt_ids) + len(row.response_ids),
        "global_steps": global_steps,
        "min_global_steps": row.min_version,
        "max_global_steps": row.max_version,
    }
