"""The sampler of VeRL's V1 trainer (`trainer.v1.sampler.custom_sampler`) for dynamic sampling.

A step's informative groups come from the service, which refills while it runs and stops groups that
can no longer become informative; validation works as in VeRL.
"""

from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

from prorl_verl import manager, store


class DynamicSampler(ReplayBufferAsync):  # type: ignore[misc]
    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Returns a batch of `batch_size` informative groups; fewer at the deadline.

        Raises `AllGroupsFail`, or `ServiceCallError` if the service is unreachable for too long.
        """
        if partition_id != "train":
            return super().sample(global_steps, partition_id, batch_size)  # type: ignore[no-any-return]
        drawn, dropped, metrics = manager.current().draw(global_steps, batch_size, self.refill_fn)
        entries = store.Entries()
        for prompt, scored in drawn:
            entries.add(prompt, scored)
        tq.kv_batch_put(partition_id=partition_id, **entries.arguments())
        settled = [prompt.uid for prompt, _ in drawn] + [prompt.uid for prompt in dropped]
        tq.kv_clear(keys=settled, partition_id=partition_id)
        batch = KVBatchMeta(partition_id=partition_id, keys=entries.keys, tags=entries.tags)
        return batch, metrics
