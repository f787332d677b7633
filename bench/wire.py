"""Cost of 64 trajectories of 32k tokens on the wire, plain and packed: size, writing, reading."""

import random
import time
from array import array
from statistics import median

from bench import frame
from prorl_service.schemas import Segment
from prorl_service.schemas.arrays import PACKED

ROLLOUTS, TOKENS, REPEATS = 64, 32 * 1024, 3


def segment(
    rng: random.Random, tokens: int = TOKENS, prompt_tokens: int = 1024, version: int = 3
) -> Segment:
    """Makes a segment, half sampled, half tool output: ids of a large vocabulary, float32."""
    half = tokens // 2
    logprobs = array("f", [-rng.expovariate(1) for _ in range(half)] + [0.0] * half)
    return Segment(
        prompt_ids=[rng.randrange(150_000) for _ in range(prompt_tokens)],
        response_ids=[rng.randrange(150_000) for _ in range(tokens)],
        loss_mask=[1] * half + [0] * half,
        logprobs=logprobs.tolist(),
        policy_versions=[version] * half + [-1] * half,
    )


def row(segments: list[Segment], spelling: str, context: dict[str, str] | None) -> frame.Row:
    write_s, read_s = [], []
    for _ in range(REPEATS):
        started = time.perf_counter()
        texts = [one.model_dump_json(context=context) for one in segments]
        written = time.perf_counter()
        for text in texts:
            Segment.model_validate_json(text)
        write_s.append(written - started)
        read_s.append(time.perf_counter() - written)
    return {
        "arrays": spelling,
        "mib": round(sum(map(len, texts)) / 2**20, 1),
        "write_s": round(median(write_s), 2),
        "read_s": round(median(read_s), 2),
    }


def measure(quick: bool) -> frame.Found:
    rng = random.Random(0)
    segments = [segment(rng) for _ in range(4 if quick else ROLLOUTS)]
    plain, packed = row(segments, "plain", None), row(segments, "packed", PACKED)
    return frame.Found(
        [plain, packed], {f"packed_{key}": packed[key] for key in ("mib", "write_s", "read_s")}
    )


if __name__ == "__main__":
    frame.run("wire", {"wire": measure})
