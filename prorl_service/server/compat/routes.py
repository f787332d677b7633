"""The routes of NVIDIA's ProRL Agent server, so that a trainer written for it can use this service.

A mere translation: a call is a group of one rollout, an LLM server a backend. Fields are those that
its code uses (ProRL-Agent-Server, `openhands/nvidia`), which its README describes differently, and
those of NeMo Gym's agent for it (NVIDIA-NeMo/Gym, pull request 1290). A job's id names all calls
that run under it: NeMo Gym gives siblings the same, and each is sampled. Status codes say what
happened: a job unknown to `/cancel` is a 404, not a 200.
"""

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request
from pydantic import JsonValue, ValidationError

from prorl_service.agents.base import Prompt
from prorl_service.errors import Conflict, InvalidRequest, NotFound, ServiceStopping
from prorl_service.rollouts.executor import RolloutExecutor
from prorl_service.schemas import (
    BackendSpec,
    FieldProblem,
    FinishReason,
    Group,
    Limits,
    Rollout,
    RolloutState,
    Sampling,
    Segment,
    Stage,
    Task,
    Trajectory,
)
from prorl_service.server.compat.schemas import (
    CriticalError,
    Done,
    Job,
    JobCounts,
    JobMessage,
    LlmServer,
    ProcessRequest,
    ProcessResult,
    Timing,
)
from prorl_service.server.service import ServiceDep

LEASE_S = 60.0
"""Seconds after a restart of the service until it abandons a job whose client is gone."""

AGENTS = {
    "swe": ("swe-gym", "swe-bench", "swe-smith", "r2e-gym"),
    "math": ("math", "gsm8k", "dapo", "aime", "deepscaler"),
    "code": ("deepcoder", "codecontests", "apps", "codeforces", "taco"),
    "stem": ("stem", "scp"),
}
"""Prefixes of `data_source` by the agent that they select; an agent's own name works as well."""

_SOURCE_KEYS = ("data_source", "trajectory_id", "instance_id", "image", "messages", "prompt")


@dataclass(slots=True)
class Jobs:
    """Jobs of a service for such trainers."""

    is_started: bool = False
    calls: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Rollout of each call that runs, by job."""

    def running(self) -> list[str]:
        return [rollout_id for calls in self.calls.values() for rollout_id in calls]


def _jobs(request: Request) -> Jobs:
    jobs: Jobs = request.app.state.jobs
    return jobs


def _started_jobs(request: Request) -> Jobs:
    if not _jobs(request).is_started:
        raise ServiceStopping("not started", hint="POST /start first")
    return _jobs(request)


AnyJobs = Annotated[Jobs, Depends(_jobs)]
StartedJobs = Annotated[Jobs, Depends(_started_jobs)]

prorl_router = APIRouter(tags=["ProRL Agent"])


@prorl_router.post("/start", summary="Start")
async def start(jobs: AnyJobs) -> Done:
    if jobs.is_started:
        raise Conflict("already started", hint="POST /stop first")
    jobs.is_started = True
    return Done(status="started")


@prorl_router.post("/stop", summary="Stop")
async def stop(jobs: StartedJobs, service: ServiceDep) -> Done:
    """Cancels all jobs; a 503 if it was not started."""
    jobs.is_started = False
    await service.executor.cancel(jobs.running())
    return Done(status="stopped")


@prorl_router.get("/status", summary="Get its status")
async def status(jobs: StartedJobs, service: ServiceDep) -> JobCounts:
    queues = service.executor.queues()
    states = service.executor.inflight.count_by_state()
    to_evaluate = queues.get(Stage.EVAL, 0)
    return JobCounts(
        status="running",
        pending_jobs=len(jobs.running()),
        init_queue=queues.get(Stage.INIT, 0),
        run_queue=queues.get(Stage.RUN, 0),
        eval_queue=to_evaluate,
        active_init=states.get(RolloutState.INIT, 0),
        active_run=states.get(RolloutState.RUNNING, 0) - to_evaluate,
        active_eval=states.get(RolloutState.EVALUATING, 0),
        total=len(jobs.running()),
    )


@prorl_router.post("/process", summary="Run a job")
async def process(
    body: ProcessRequest,
    request: Request,
    jobs: StartedJobs,
    service: ServiceDep,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> ProcessResult:
    """Waits for the whole rollout. A failed one is an answer, too: see `critical_error`. A client
    that hangs up cancels it.

    Each call has a rollout of its own, whatever its `job_id`, unless it repeats an
    `Idempotency-Key`.
    """
    key = idempotency_key
    call = uuid.uuid4() if key is None else uuid.uuid5(uuid.NAMESPACE_OID, key)
    job_id = body.job_id or f"job-{call.hex}"
    agents = service.executor.agents
    agent = _agent(agents.names, body.instance.get("data_source"))
    group = _group(f"{job_id[:150]}-{call.hex}", body, agent)
    (rollout_id,) = group.rollout_ids()
    jobs.calls[job_id].append(rollout_id)
    try:
        await service.executor.submit([group])
        rollout = await _end_of(service.executor, rollout_id, request)
    finally:
        jobs.calls[job_id].remove(rollout_id)
        if not jobs.calls[job_id]:
            del jobs.calls[job_id]
    return _result(job_id, body.instance, agents.make(group.task).prompt(), rollout)


@prorl_router.post("/cancel", summary="Cancel a job")
async def cancel(body: Job, jobs: AnyJobs, service: ServiceDep) -> Done:
    """Cancels all calls of the job, and answers with the state in which it has ended; a 404 unless
    one is running."""
    if body.job_id not in jobs.calls:
        raise NotFound(f"no job {body.job_id!r} is running")
    rollouts = await service.executor.cancel([*jobs.calls[body.job_id]])
    return Done(status=rollouts[0].state.value)


@prorl_router.post("/add_llm_server", summary="Add an engine")
async def add_llm_server(body: LlmServer, service: ServiceDep) -> Done:
    """Adds a server; also before `/start`, and before the server answers."""
    url = body.address if "://" in body.address else f"http://{body.address}"
    try:
        spec = BackendSpec(url=url.rstrip("/").removesuffix("/v1"))
    except ValidationError as error:
        problems = "; ".join(one["msg"] for one in error.errors())
        raise InvalidRequest.of_field("address", problems) from None
    await service.add_backend(spec, must_answer=False)
    return Done(status="added")


@prorl_router.post("/clear_llm_server", summary="Remove all engines")
async def clear_llm_server(service: ServiceDep) -> Done:
    for backend in service.backends.statuses():
        await service.backends.remove(backend.backend_id)
    return Done(status="cleared")


# --- a job as a group, and its result as an answer -----------------------------------------------


def _agent(names: Sequence[str], data_source: JsonValue) -> str:
    source = str(data_source).lower().rpartition("/")[2]
    if source in names:
        return source
    for agent, beginnings in AGENTS.items():
        if agent in names and source.startswith(beginnings):
            return agent
    raise InvalidRequest.of_field(
        "instance.data_source",
        f"no agent for {data_source!r}",
        hint=f"this service has: {', '.join(names)}",
    )


def _group(group_id: str, wanted: ProcessRequest, agent: str) -> Group:
    """Raises `InvalidRequest`."""
    instance, params = wanted.instance, wanted.sampling_params
    task = {
        "task_id": instance.get("instance_id", instance.get("trajectory_id")),
        "agent": agent,
        "messages": _messages(instance),
        "image": instance.get("image"),
        "data": {key: value for key, value in instance.items() if key not in _SOURCE_KEYS},
    }
    try:
        return Group(
            group_id=group_id,
            task=Task.model_validate(task),
            sampling=Sampling(
                temperature=params.temperature,
                top_p=params.top_p,
                max_tokens_per_turn=params.max_output_tokens,
            ),
            limits=Limits(max_turns=params.max_iterations),
            lease_s=LEASE_S,
        )
    except ValidationError as error:
        problems = [
            FieldProblem(field=f"instance: {'.'.join(map(str, one['loc']))}", message=one["msg"])
            for one in error.errors(include_url=False)
        ]
        raise InvalidRequest("the instance is not a valid task", fields=problems) from None


async def _end_of(executor: RolloutExecutor, rollout_id: str, request: Request) -> Rollout:
    ended = asyncio.ensure_future(anext(executor.ended([rollout_id]), None))
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({ended, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            await executor.cancel([rollout_id])
        rollout = await ended
    finally:
        ended.cancel()
        gone.cancel()
    if rollout is None:
        raise ServiceStopping("the service is stopping", hint="send the job again")
    return rollout.to_wire()


def _result(
    job_id: str, instance: dict[str, JsonValue], prompt: Prompt, rollout: Rollout
) -> ProcessResult:
    trajectory = rollout.trajectory
    is_done = rollout.state is RolloutState.DONE
    timings = rollout.timings
    critical_error = _critical_error(rollout)
    return ProcessResult(
        job_id=job_id,
        rollout_id=rollout.rollout_id,
        instance_id=rollout.task_id,
        trajectory_id=str(instance.get("trajectory_id")),
        success=is_done,
        resolved=rollout.reward == 1.0,
        reward=rollout.reward,
        error=rollout.error.message if rollout.error else None,
        critical_error=critical_error,
        filter=not is_done,
        finish=trajectory is not None and trajectory.finish_reason is FinishReason.FINISHED,
        end_properly=trajectory is not None and trajectory.turns[-1].finish_reason == "stop",
        messages=list(_job_messages(trajectory, prompt)) if trajectory else [],
        tools=list(prompt.tools),
        git_patch=str((rollout.report or {}).get("patch", "")),
        timing=Timing(
            init_time=timings.init_s,
            run_time=timings.run_s,
            eval_time=timings.eval_s,
            others_time=timings.queue_s,
            counted_elapsed=timings.init_s + timings.run_s + timings.eval_s,
            timeout_triggered=critical_error == "timeout",
        ),
    )


def _messages(instance: dict[str, JsonValue]) -> JsonValue:
    given = instance.get("messages") or instance.get("prompt")
    if given is None:
        given = instance.get("problem_statement")
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


def _critical_error(rollout: Rollout) -> CriticalError:
    if rollout.state is RolloutState.CANCELLED:
        return "cancelled"
    if rollout.error is None:
        return None
    if rollout.error.kind == "StageTimeout":
        return "timeout"
    return rollout.error.stage.value if rollout.error.stage else "run"


def _job_messages(trajectory: Trajectory, prompt: Prompt) -> Iterator[JobMessage]:
    """Yields the messages of the last segment: the prompt, then sampled and interposed tokens."""
    segment = trajectory.segments[-1]
    asked = "\n\n".join(message.content for message in prompt.messages)
    yield JobMessage(role="user", content=asked, token_ids=list(segment.prompt_ids))
    end, results = 0, ""
    for turn in trajectory.turns:
        if turn.segment == len(trajectory.segments) - 1:
            yield from _between(segment, end, turn.start, results)
            end, results = turn.stop, "\n".join(call.output for call in turn.tool_calls)
            yield JobMessage(
                role="assistant",
                content=turn.text,
                token_ids=list(segment.response_ids[turn.start : end]),
                logprobs=list(segment.logprobs[turn.start : end]),
            )
    yield from _between(segment, end, len(segment.response_ids), results)


def _between(segment: Segment, start: int, stop: int, results: str) -> Iterator[JobMessage]:
    if start < stop:
        ids = list(segment.response_ids[start:stop])
        yield JobMessage(role="tool", content=results, token_ids=ids)


async def _gone(request: Request) -> None:
    """Returns when the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
