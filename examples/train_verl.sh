#!/bin/sh
# GRPO with VeRL's stock command: the rollouts are the service's, the engines VeRL's own. Needs a GPU, and
# vLLM in VeRL's environment. Without one: docs/recipes.md, trainer=verl.
#
#   prorl serve --port 8080                       # no --backend: the trainer brings its engines
#   examples/train_verl.sh MODEL [OVERRIDE...]    # a directory, or a name on the hub
set -eu
model=$1
shift
tasks=$PWD/outputs/train_verl
mkdir -p "$tasks"
python - "$tasks/train.parquet" <<'END'
import sys

import pyarrow as pa
import pyarrow.parquet as pq

rows = [
    {
        "prompt": [{"role": "user", "content": f"What is {number} times 3?"}],
        "data_source": "examples",
        "reward_model": {"style": "rule", "ground_truth": str(3 * number)},
        "extra_info": {"index": number},
    }
    for number in range(10, 26)
]
pq.write_table(pa.Table.from_pylist(rows), sys.argv[1])
END
exec python -m verl.trainer.main_ppo --config-name prorl_ppo_trainer \
    rollout=prorl prorl.agent=math prorl.limits.max_turns=4 \
    actor_rollout_ref.model.path="$model" \
    data.train_files="$tasks/train.parquet" data.val_files="$tasks/train.parquet" \
    data.train_batch_size=8 data.max_prompt_length=512 data.max_response_length=512 \
    algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.use_dynamic_bsz=True \
    trainer.nnodes=1 trainer.n_gpus_per_node=1 trainer.logger='[console]' \
    trainer.total_training_steps=2 trainer.val_before_train=False \
    "$@"
