"""The answers of several fronts as one. Makes no requests."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

from prorl_service.errors import Conflict
from prorl_service.schemas import (
    BackendStatus,
    Rollout,
    SandboxCounts,
    ServiceStatus,
    ShelfStatus,
    TaskProblem,
    WeightsForm,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.schemas.numbers import joint_mean
from prorl_service.schemas.sampling import Draw, DrawState, SamplerStatus, summed

Key = TypeVar("Key")
Value = TypeVar("Value")


def rollouts(found: Iterable[Iterable[Rollout]], rollout_ids: Iterable[str]) -> list[Rollout]:
    """Returns the rollouts in the order of `rollout_ids`."""
    by_id = {one.rollout_id: one for one in chain.from_iterable(found)}
    return [by_id[one] for one in rollout_ids]


def task_problems(found: Mapping[str, list[TaskProblem]]) -> list[TaskProblem]:
    """Returns each problem once, in the order of the tasks."""
    by_place = {(one.index, one.field): one for one in chain.from_iterable(found.values())}
    return [by_place[place] for place in sorted(by_place)]


def backends(found: Mapping[str, list[BackendStatus]]) -> list[BackendStatus]:
    return list(chain.from_iterable(found.values()))


def first_of(found: Mapping[str, Value]) -> Value:
    return next(iter(found.values()))


def nothing_of(*_: object) -> None:
    """Stands for answers without content."""


# --- weights ------------------------------------------------------------------------------------


def weights_report(found: Mapping[str, WeightsReport]) -> WeightsReport:
    """Raises `Conflict` unless all fronts have the same version."""
    first = next(iter(found.values()))
    if len({one.version for one in found.values()}) > 1:
        versions = ", ".join(f"{front} has {one.version}" for front, one in found.items())
        raise Conflict(f"the fronts have different weights: {versions}", hint="send them again")
    applied = [one for report in found.values() for one in report.applied]
    pending = [one for report in found.values() for one in report.pending]
    return WeightsReport(version=first.version, applied=applied, pending=pending)


def weights_terms(found: Mapping[str, WeightsTerms]) -> WeightsTerms:
    """Returns terms that all fronts can meet: a file over HTTP, since none sees the directory of
    another."""
    terms = list(found.values())
    are_adapters = all(one.form is WeightsForm.ADAPTER for one in terms)
    return WeightsTerms(
        form=WeightsForm.ADAPTER if are_adapters else WeightsForm.MODEL,
        reason="; ".join(dict.fromkeys(one.reason for one in terms if one.reason)),
        dtype=_same(one.dtype for one in terms),
        newest=max(one.newest for one in terms),
    )


# --- status -------------------------------------------------------------------------------------


def statuses(found: Mapping[str, ServiceStatus]) -> ServiceStatus:
    """Returns sums; the oldest policy version; agents that all fronts have. Raises `Conflict` if
    their tokenizers differ."""
    all_of = list(found.values())
    failures = [f"{front}: {one.failure}" for front, one in found.items() if one.failure]
    lags = [one.loop_lag_s for one in all_of if one.loop_lag_s is not None]
    return ServiceStatus(
        version=_each(one.version for one in all_of),
        run=_each(one.run for one in all_of),
        started_at=min((one.started_at for one in all_of if one.started_at), default=None),
        is_stopping=any(one.is_stopping for one in all_of),
        failure="; ".join(failures) or None,
        policy_version=min(one.policy_version for one in all_of),
        model=_each(one.model for one in all_of if one.model) or None,
        tokenizer_digest=_tokenizer(found),
        end_ids=sorted({id_ for one in all_of for id_ in one.end_ids}),
        chat_template_digest=_same(one.chat_template_digest for one in all_of),
        sandbox=_each(one.sandbox for one in all_of),
        sandboxes=_sandboxes([one.sandboxes for one in all_of if one.sandboxes]),
        agents=[one for one in all_of[0].agents if all(one in each.agents for each in all_of)],
        rollouts=_sum(one.rollouts for one in all_of),
        ended=_sum(one.ended for one in all_of),
        failures=_sum(one.failures for one in all_of),
        queues=_sum(one.queues for one in all_of),
        workers=_sum(one.workers for one in all_of),
        running=_sum(one.running for one in all_of),
        backends=[one for each in all_of for one in each.backends],
        services=[one for each in all_of for one in each.services],
        shelf=_shelf([one.shelf for one in all_of if one.shelf]),
        loop_lag_s=max(lags, default=None),
        ablations=list(dict.fromkeys(one for each in all_of for one in each.ablations)),
    )


def _tokenizer(found: Mapping[str, ServiceStatus]) -> str | None:
    digests = {one.tokenizer_digest: front for front, one in found.items() if one.tokenizer_digest}
    if len(digests) > 1:
        fronts = " and ".join(digests.values())
        raise Conflict(
            f"the engines of {fronts} have different tokenizers",
            hint="all fronts of a run need engines of one model",
        )
    return next(iter(digests), None)


def _sandboxes(counts: Sequence[SandboxCounts]) -> SandboxCounts | None:
    if not counts:
        return None
    return SandboxCounts.model_validate(_sum(one.model_dump() for one in counts))


def _shelf(shelves: Sequence[ShelfStatus]) -> ShelfStatus | None:
    if not shelves:
        return None
    return ShelfStatus(
        bytes=sum(one.bytes for one in shelves),
        limit_bytes=sum(one.limit_bytes for one in shelves),
        failure="; ".join(one.failure for one in shelves if one.failure) or None,
    )


def _sum(counts: Iterable[Mapping[Key, int]]) -> dict[Key, int]:
    total: Counter[Key] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def _each(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _same(values: Iterable[Value | None]) -> Value | None:
    """Returns the value that all are; None if they differ."""
    different = list(dict.fromkeys(values))
    return different[0] if len(different) == 1 else None


# --- samplers -----------------------------------------------------------------------------------


def sampler_statuses(found: Mapping[str, SamplerStatus], draw_id: str | None) -> SamplerStatus:
    """Returns sums, with the parts of the draw `draw_id` as one draw; None: of the newest one."""
    all_of = list(found.values())
    counts = {
        name: sum(getattr(one, name) for one in all_of)
        for name, field in SamplerStatus.model_fields.items()
        if field.annotation is int
    }
    failures = [one.last_failure for one in all_of if one.last_failure]
    return SamplerStatus(
        sampler_id=all_of[0].sampler_id,
        score_mean=joint_mean((one.scored, one.score_mean) for one in all_of),
        last_failure=failures[0] if failures else None,
        draw=_draw([one.draw for one in all_of if one.draw], draw_id),
        **counts,
    )


def _draw(draws: Sequence[Draw], draw_id: str | None) -> Draw | None:
    if draw_id is None:
        newest = sorted(draws, key=lambda one: one.state is not DrawState.OPEN)[:1]
        draw_id = newest[0].draw_id if newest else None
    parts = [one for one in draws if one.draw_id == draw_id]
    if not parts:
        return None
    limits = [one.spec.max_groups for one in parts if one.spec.max_groups]
    whole = {
        "target": sum(one.spec.target for one in parts),
        "max_groups": sum(limits) if limits else None,
    }
    return Draw(
        draw_id=parts[0].draw_id,
        spec=parts[0].spec.model_copy(update=whole),
        state=_state({one.state for one in parts}),
        groups=[group for one in parts for group in one.groups],
        dropped=[group for one in parts for group in one.dropped],
        finished=sum(one.finished for one in parts),
        difficulties=summed(counts for one in parts for counts in one.difficulties),
    )


def _state(states: set[DrawState]) -> DrawState:
    """Returns the state of a whole draw: done when all parts are, complete if all are."""
    order = (DrawState.OPEN, DrawState.OVERDUE, DrawState.EXHAUSTED)
    return next((one for one in order if one in states), DrawState.COMPLETE)
