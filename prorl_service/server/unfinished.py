"""What the unfinished work of a journal needs, asked for before any of it is ended.

A forgotten option would fail all rollouts that need it, for good.
"""

import asyncio
from collections import Counter
from collections.abc import Collection
from functools import partial

from prorl_service.errors import ProRLError
from prorl_service.rollouts.journal import Journal
from prorl_service.rollouts.validation import Validator
from prorl_service.sampling import tables
from prorl_service.sampling.candidates import GroupState
from prorl_service.schemas import Group

MOST_LISTED = 12


async def check_unfinished(
    journal: Journal, validator: Validator, abandoned: Collection[str]
) -> None:
    """Raises `ProRLError` that lists what this service lacks for rollouts of the journal and for
    candidates that wait in its samplers, except for those of `abandoned` agents."""
    wanted = list[tuple[Group, int]]()
    for unfinished in await journal.unfinished():
        group = Group.model_validate_json(unfinished.request)
        wanted.append((group, group.n - len(unfinished.ended)))
    for sampler_id, _ in await journal.read(tables.samplers):
        for row in await journal.read(partial(tables.candidates, sampler_id=sampler_id)):
            if row.state is GroupState.WAITING and row.request is not None:
                group = Group.model_validate_json(row.request)
                wanted.append((group, group.n))
    needed = [(group, n) for group, n in wanted if group.task.agent not in abandoned]
    if problems := await asyncio.to_thread(_missing, validator, needed):
        raise _refusal(problems)


def _missing(
    validator: Validator, wanted: Collection[tuple[Group, int]]
) -> Counter[tuple[str, str, str]]:
    """Returns numbers of rollouts by agent, problem and cure."""
    missing = Counter[tuple[str, str, str]]()
    for group, n in wanted:
        for problem in validator.lacks(group):
            missing[group.task.agent, problem.message, problem.hint] += n
    return missing


def _refusal(missing: Counter[tuple[str, str, str]]) -> ProRLError:
    listed = [
        f"{n} rollouts of agent {agent!r}: {message} ({hint})"
        for (agent, message, hint), n in missing.most_common(MOST_LISTED)
    ]
    if len(missing) > MOST_LISTED:
        listed.append(f"{len(missing) - MOST_LISTED} more problems")
    agents = sorted({agent for agent, _, _ in missing})
    return ProRLError(
        f"the journal holds unfinished work that this service cannot do: {'; '.join(listed)}",
        hint="start it with what they need, or let them fail: "
        + " ".join(f"--abandon-agent {agent}" for agent in agents),
    )
