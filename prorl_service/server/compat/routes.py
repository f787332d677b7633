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
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request
from pydantic import JsonValue, ValidationError

from prorl_service.agents.base import Prompt
from prorl_service.errors import Conflict, InvalidRequest, NotFound, ServiceStopping
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
from prorl_service.server.service import Service

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


class ProRLAdapter:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._is_started = False
        self._jobs: dict[str, list[str]] = defaultdict(list)
        """Rollout of each call that runs, by job."""

    def start(self) -> None:
        if self._is_started:
            raise Conflict("already started", hint="POST /stop first")
        self._is_started = True

    async def stop(self) -> None:
        """Cancels all jobs."""
        self._require_started()
        self._is_started = False
        await self._service.executor.cancel(self._running())

    def counts(self) -> JobCounts:
        self._require_started()
        queues = self._service.executor.queues()
        states = self._service.executor.inflight.count_by_state()
        to_evaluate = queues.get(Stage.EVAL, 0)
        return JobCounts(
            status="running",
            pending_jobs=len(self._running()),
            init_queue=queues.get(Stage.INIT, 0),
            run_queue=queues.get(Stage.RUN, 0),
            eval_queue=to_evaluate,
            active_init=states.get(RolloutState.INIT, 0),
            active_run=states.get(RolloutState.RUNNING, 0) - to_evaluate,
            active_eval=states.get(RolloutState.EVALUATING, 0),
            total=len(self._running()),
        )

    async def process(
        self, wanted: ProcessRequest, key: str | None, request: Request
    ) -> ProcessResult:
        """Waits for the whole rollout; a client that hangs up cancels it. Calls with the same `key`
        have the same rollout, other calls never."""
        self._require_started()
        call = uuid.uuid4() if key is None else uuid.uuid5(uuid.NAMESPACE_OID, key)
        job_id = wanted.job_id or f"job-{call.hex}"
        group = self._group(f"{job_id[:150]}-{call.hex}", wanted)
        (rollout_id,) = group.rollout_ids()
        self._jobs[job_id].append(rollout_id)
        try:
            await self._service.executor.submit([group])
            rollout = await self._end_of(rollout_id, request)
        finally:
            self._jobs[job_id].remove(rollout_id)
            if not self._jobs[job_id]:
                del self._jobs[job_id]
        return self._result(job_id, wanted.instance, group, rollout)

    async def cancel(self, job_id: str) -> RolloutState:
        """Cancels all calls of a job. Raises `NotFound` unless one runs."""
        if job_id not in self._jobs:
            raise NotFound(f"no job {job_id!r} is running")
        rollouts = await self._service.executor.cancel([*self._jobs[job_id]])
        return rollouts[0].state

    def _running(self) -> list[str]:
        return [rollout_id for calls in self._jobs.values() for rollout_id in calls]

    async def add_backend(self, address: str) -> None:
        url = address if "://" in address else f"http://{address}"
        url = url.rstrip("/").removesuffix("/v1")
        try:
            spec = BackendSpec(url=url)
        except ValidationError as error:
            problems = "; ".join(one["msg"] for one in error.errors())
            raise InvalidRequest.of_field("address", problems) from None
        await self._service.add_backend(spec, must_answer=False)

    async def clear_backends(self) -> None:
        for backend in self._service.backends.statuses():
            await self._service.backends.remove(backend.backend_id)

    def _require_started(self) -> None:
        if not self._is_started:
            raise ServiceStopping("not started", hint="POST /start first")

    def _group(self, group_id: str, wanted: ProcessRequest) -> Group:
        agent = self._agent(wanted.instance.get("data_source"))
        try:
            return _group(group_id, wanted, agent)
        except ValidationError as error:
            problems = [
                FieldProblem(
                    field=f"instance: {'.'.join(map(str, one['loc']))}", message=one["msg"]
                )
                for one in error.errors(include_url=False)
            ]
            raise InvalidRequest("the instance is not a valid task", fields=problems) from None

    def _agent(self, data_source: JsonValue) -> str:
        source = str(data_source).lower().rpartition("/")[2]
        names = self._service.executor.agents.names
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

    async def _end_of(self, rollout_id: str, request: Request) -> Rollout:
        executor = self._service.executor
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
        self, job_id: str, instance: dict[str, JsonValue], group: Group, rollout: Rollout
    ) -> ProcessResult:
        prompt = self._service.executor.agents.make(group.task).prompt()
        trajectory = rollout.trajectory
        is_done = rollout.state is RolloutState.DONE
        timings = rollout.timings
        critical_error = _critical_error(rollout)
        return ProcessResult(
            job_id=job_id,
            rollout_id=rollout.rollout_id,
            instance_id=group.task.task_id,
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


def _group(group_id: str, wanted: ProcessRequest, agent: str) -> Group:
    """Raises `ValidationError`."""
    instance, params = wanted.instance, wanted.sampling_params
    task = {
        "task_id": instance.get("instance_id", instance.get("trajectory_id")),
        "agent": agent,
        "messages": _messages(instance),
        "image": instance.get("image"),
        "data": {key: value for key, value in instance.items() if key not in _SOURCE_KEYS},
    }
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


def _adapter(request: Request) -> ProRLAdapter:
    adapter: ProRLAdapter = request.app.state.prorl
    return adapter


Adapter = Annotated[ProRLAdapter, Depends(_adapter)]

prorl_router = APIRouter(tags=["ProRL Agent"])


@prorl_router.post("/start", summary="Start")
async def start(adapter: Adapter) -> Done:
    adapter.start()
    return Done(status="started")


@prorl_router.post("/stop", summary="Stop")
async def stop(adapter: Adapter) -> Done:
    """Cancels all jobs; a 503 if it was not started."""
    await adapter.stop()
    return Done(status="stopped")


@prorl_router.get("/status", summary="Get its status")
async def status(adapter: Adapter) -> JobCounts:
    return adapter.counts()


@prorl_router.post("/process", summary="Run a job")
async def process(
    body: ProcessRequest,
    request: Request,
    adapter: Adapter,
    idempotency_key: Annotated[str | None, Header(max_length=200)] = None,
) -> ProcessResult:
    """Waits for the whole rollout. A failed one is an answer, too: see `critical_error`.

    Each call has a rollout of its own, whatever its `job_id`, unless it repeats an
    `Idempotency-Key`.
    """
    return await adapter.process(body, idempotency_key, request)


@prorl_router.post("/cancel", summary="Cancel a job")
async def cancel(body: Job, adapter: Adapter) -> Done:
    """Cancels all calls of the job, and answers with the state in which it has ended; a 404 unless
    one is running."""
    return Done(status=(await adapter.cancel(body.job_id)).value)


@prorl_router.post("/add_llm_server", summary="Add an engine")
async def add_llm_server(body: LlmServer, adapter: Adapter) -> Done:
    """Adds a server; also before `/start`, and before the server answers."""
    await adapter.add_backend(body.address)
    return Done(status="added")


@prorl_router.post("/clear_llm_server", summary="Remove all engines")
async def clear_llm_server(adapter: Adapter) -> Done:
    await adapter.clear_backends()
    return Done(status="cleared")
