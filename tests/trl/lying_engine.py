"""The reference engine with a lie about logprobs: `lying_engine.py LIE --model ... --port ...`.

"raw": answers with the logprobs of temperature 1, whatever it samples at. "hot": samples at
temperature 1, whatever it is asked for. Both only at temperature 0.5.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace

import torch

from prorl_service.cli.main import main
from prorl_service.inference.reference_engine import batcher
from prorl_service.inference.reference_engine.sampling import DrawParams, sample

LIE = sys.argv.pop(1)


def lie(
    logits: torch.Tensor, params: Sequence[DrawParams], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    hot = [replace(one, temperature=1.0) if one.temperature == 0.5 else one for one in params]
    if LIE == "hot":
        return sample(logits, hot, uniforms)
    token_ids, logprobs = sample(logits, params, uniforms)
    raw = logits.log_softmax(-1).gather(1, torch.tensor(token_ids)[:, None])[:, 0].tolist()
    pairs = zip(params, logprobs, raw, strict=True)
    return token_ids, [other if one.temperature == 0.5 else own for one, own, other in pairs]


batcher.sample = lie  # type: ignore[attr-defined]
sys.argv.insert(1, "engine")
main()
