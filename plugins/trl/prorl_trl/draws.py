"""Dynamic sampling for TRL: each step draws its informative groups from a sampler of the service.

The step's own prompts are its first candidates; others of the training set follow while too few are
informative. Main process only; knows no rows.
"""

import logging
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from prorl_service.client.datasets import rows_without_end
from prorl_service.client.sampling import CandidateQueue, StepDraws
from prorl_service.client.trainable import outage_of
from prorl_service.client.trainers_service import TrainersService, restarts_noticed
from prorl_service.schemas import Blame, ErrorInfo, Group, Rollout
from prorl_service.schemas.sampling import DrawSpec, DrawState, SamplerSpec, SamplerStatus

logger = logging.getLogger(__name__)

TOO_FEW = ErrorInfo(
    kind="TooFewInformativeGroups",
    blame=Blame.TASK,
    message="fewer informative groups were found before the deadline than the step has room for",
    hint="raise `deadline_s`, or train on tasks of medium difficulty",
)


class TrainerDraws:
    """The draws of one start of a trainer."""

    def __init__(
        self,
        trainer: Any,
        service: TrainersService,
        spec: SamplerSpec,
        group_of: Callable[[str, Any], Group],
    ) -> None:
        """`group_of`: makes a group of a name and a prompt."""
        step = trainer.state.global_step
        if step:
            logger.info(
                "training resumes at step %d: dynamic sampling takes other prompts in another "
                "order than before, and has forgotten which tasks it had deferred",
                step,
            )
        rows = rows_without_end(trainer.train_dataset, trainer.args.seed + step)
        prompts = (row["prompt"] for row in rows)
        names = (f"other-{number}-0" for number in count())
        self._service = service
        self._candidates = CandidateQueue(map(group_of, names, prompts))
        self._draws = StepDraws(
            service.run_id, spec, self._candidates, deadline_s=service.deadline_s
        )
        self.shortage = TOO_FEW
        """Why the last draw that was short of groups was so."""

    def draw(self, groups: Sequence[Group], deadline: float, bar: Any) -> list[Rollout]:
        """Returns rollouts of informative groups: as many as `groups`, or those found in time.
        Raises `ServiceForgot` and `AllGroupsFail`."""

        def show(status: SamplerStatus) -> None:
            bar.update(len(status.draw.groups) - bar.n if status.draw else 0)

        self._candidates.put(group.model_copy(update={"lease_s": None}) for group in groups)
        draw_id = groups[0].group_id.rpartition("-")[0]
        try:
            with self._service.client() as client, bar, restarts_noticed():
                left_s = max(deadline - time.monotonic(), 1.0)
                spec = DrawSpec(target=len(groups), deadline_s=left_s)
                draw, drawn = self._draws.draw(client, draw_id, spec, show)
                if draw.state is DrawState.OVERDUE:
                    self.shortage = outage_of(client.backends()) or TOO_FEW
        except BaseException:
            self.end()
            raise
        return [rollout for group in drawn for rollout in group]

    def metrics(self) -> dict[str, float]:
        return self._draws.metrics()

    def end(self) -> None:
        """Cancels groups that were carried over; another draw starts from scratch."""
        self._service.tell(lambda client: client.delete_sampler(self._service.run_id))
