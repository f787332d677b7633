"""What a rollout can be: branches, turn rewards, rubrics, a simulated user, a policy by API.

`trainers` needs `scripts/setup-verl` and `scripts/setup-tinker`, `rubric` `scripts/setup-vllm`.
Takes an hour and a half.
"""

from bench import frame
from bench.richer import branches, dialogue, head_start, judging, trainers

if __name__ == "__main__":
    frame.run(
        "richer",
        {
            "branch": branches.measure_branches,
            "head_start": head_start.measure_head_start,
            "dialogue": dialogue.measure_dialogue,
            "wire": branches.measure_wire,
            "trainers": trainers.measure_trainers,
            "rubric": judging.measure_rubric,
        },
    )
