"""Examples of requests and answers for the API page.

Made of the wire types, so that they are valid.
"""

from pydantic import BaseModel

from prorl_service.agents.description import describe
from prorl_service.agents.math import MathAgent
from prorl_service.schemas import (
    Backends,
    Blame,
    ErrorInfo,
    FinishReason,
    GatewayAccess,
    Group,
    GroupIds,
    Message,
    Rollout,
    RolloutIds,
    Rollouts,
    RolloutState,
    Sampling,
    Segment,
    Stage,
    StreamRequest,
    SubmitRequest,
    Task,
    TaskChecks,
    TaskProblem,
    TaskProblems,
    Timings,
    ToolCallRecord,
    Trajectory,
    Turn,
)
from prorl_service.schemas.sampling import Candidates, DrawSpec, SamplerSpec
from prorl_service.schemas.views import (
    Agents,
    GroupOutcome,
    GroupRow,
    GroupRows,
    KeptFor,
    RolloutRow,
    RolloutRows,
    RolloutText,
    SegmentSize,
    Sibling,
    TextCall,
    TextTurn,
    TokenSlice,
    Training,
    VersionRow,
)
from prorl_service.server import api_examples_service
from prorl_service.server.compat import examples

_AT = 1_767_225_600.0
_GROUP = Group(
    group_id="step7-task12",
    task=Task(
        task_id="task12",
        agent="math",
        messages=[Message(role="user", content="How many primes are below 100?")],
        data={"answer": "25"},
    ),
    n=2,
    sampling=Sampling(temperature=0.8),
)
_FIRST, _SECOND = _GROUP.rollout_ids()
_TIMINGS = Timings(queue_s=0.5, init_s=0.1, run_s=12.0, eval_s=0.25)
_ERROR = ErrorInfo(
    kind="SandboxError",
    blame=Blame.SANDBOX,
    message="the sandbox died: out of memory",
    hint="raise the limits of the agent's sandbox",
    retryable=True,
    stage=Stage.RUN,
)
_QUEUED = Rollout(
    rollout_id=_FIRST,
    group_id=_GROUP.group_id,
    task_id="task12",
    agent="math",
    index=0,
    state=RolloutState.QUEUED,
    created_at=_AT,
)
_DONE = _QUEUED.model_copy(
    update={
        "state": RolloutState.DONE,
        "attempt": 1,
        "reward": 1.0,
        "reward_components": {"correct": 1.0},
        "oldest_policy_version": 7,
        "newest_policy_version": 7,
        "timings": _TIMINGS,
    }
)
_ENDED = _DONE.model_copy(
    update={
        "trajectory": Trajectory(
            segments=[
                Segment(
                    prompt_ids=[151644, 872],
                    response_ids=[785, 4226, 374, 151645],
                    loss_mask=[1, 1, 1, 1],
                    logprobs=[-0.125, -0.5, -0.25, 0.0],
                    policy_versions=[7, 7, 7, 7],
                )
            ],
            turns=[
                Turn(
                    segment=0,
                    start=0,
                    stop=4,
                    text="The answer is",
                    finish_reason="stop",
                    tool_calls=[
                        ToolCallRecord(
                            name="bash", arguments={"command": "seq 99"}, output="1\n2\n3"
                        )
                    ],
                    model_s=0.75,
                    backend="gpu1:8000",
                )
            ],
            finish_reason=FinishReason.FINISHED,
            sampling=_GROUP.sampling,
        )
    }
)
_ROW = RolloutRow(
    rollout_id=_SECOND,
    group_id=_GROUP.group_id,
    task_id="task12",
    agent="math",
    index=1,
    run="20260101-000000-c0ffee",
    state=RolloutState.FAILED,
    attempt=3,
    error=_ERROR,
    finish_reason=FinishReason.ERROR,
    turns=4,
    sampled_tokens=812,
    segments=1,
    policy_version=7,
    oldest_policy_version=6,
    newest_policy_version=7,
    staleness=1,
    timings=_TIMINGS,
    model_s=9.5,
    tool_s=2.0,
    created_at=_AT,
    ended_at=_AT + 13,
    has_content=True,
    kept_for=KeptFor.FAILED,
)
_GROUP_ROW = GroupRow(
    group_id=_GROUP.group_id,
    run=_ROW.run,
    task_id="task12",
    agent="math",
    n=2,
    states=[RolloutState.DONE, RolloutState.FAILED],
    rewards=[1.0, None],
    mean_reward=1.0,
    outcome=GroupOutcome.ALL_ONE,
    policy_versions=[7],
    blames={Blame.SANDBOX: 1},
    turns=7,
    sampled_tokens=1420,
    created_at=_AT,
    ended_at=_AT + 13,
    has_content=True,
    kept_for=KeptFor.FAILED,
)
_TEXT = RolloutText(
    rollout=_ROW,
    group_size=2,
    prompt=_GROUP.task.messages,
    tools=[],
    data=_GROUP.task.data,
    sampling=_GROUP.sampling,
    limits=_GROUP.limits,
    turns=[
        TextTurn(
            segment=0,
            start=0,
            stop=203,
            raw="<think>Count them.</think>I compute it.",
            reasoning="Count them.",
            text="I compute it.",
            tool_calls=[
                TextCall(
                    name="bash",
                    arguments={"command": "python3 primes.py"},
                    output="Killed",
                    is_error=True,
                    duration_s=2.0,
                )
            ],
            stop_reason="stop",
            prompt_tokens=310,
            sampled_tokens=203,
            cached_tokens=288,
            oldest_policy_version=6,
            newest_policy_version=7,
            model_s=2.5,
            tool_s=2.0,
            backend="gpu1:8000",
        )
    ],
    segments=[SegmentSize(prompt_tokens=310, response_tokens=960, sampled_tokens=812)],
    siblings=[
        Sibling(rollout_id=_FIRST, index=0, state=RolloutState.DONE, reward=1.0),
        Sibling(rollout_id=_SECOND, index=1, state=RolloutState.FAILED, blame=Blame.SANDBOX),
    ],
)
_TOKENS = TokenSlice(
    rollout_id=_SECOND,
    segment=0,
    segments=1,
    start=308,
    length=1270,
    prompt_tokens=310,
    ids=[77091, 198, 785, 4226],
    texts=["assistant", "\n", "The", " answer"],
    partial=[],
    logprobs=[None, None, -0.125, -0.5],
    mask=[0, 0, 1, 1],
    versions=[None, None, 6, 6],
)
_VERSION = VersionRow(
    policy_version=7,
    rollouts=64,
    done=60,
    failed=3,
    cancelled=1,
    failures={Blame.SANDBOX: 3},
    finish_reasons={FinishReason.FINISHED: 58, FinishReason.LENGTH: 3, FinishReason.ERROR: 3},
    mean_reward=0.4,
    success_rate=0.4,
    mean_turns=5.5,
    mean_sampled_tokens=900.0,
    sampled_tokens=57_600,
    wasted_tokens=3_100,
    mean_staleness=0.25,
    max_staleness=1,
    groups=8,
    outcomes={GroupOutcome.INFORMATIVE: 6, GroupOutcome.ALL_ZERO: 2},
    informative_share=0.75,
    first_ended_at=_AT,
    last_ended_at=_AT + 90,
)
BODIES: dict[str, BaseModel] = {
    "POST /v1/rollouts": SubmitRequest(groups=[_GROUP]),
    "POST /v1/tasks/check": TaskChecks(tasks=[{**_GROUP.task.model_dump(), "data": {}}]),
    "POST /v1/rollouts/stream": StreamRequest(rollout_ids=[_FIRST, _SECOND]),
    "POST /v1/rollouts/cancel": RolloutIds(rollout_ids=[_FIRST]),
    "POST /v1/groups/acknowledge": GroupIds(group_ids=[_GROUP.group_id]),
    "PUT /v1/samplers/{sampler_id}": SamplerSpec(max_staleness=1),
    "POST /v1/samplers/{sampler_id}/groups": Candidates(groups=[_GROUP]),
    "PUT /v1/samplers/{sampler_id}/draws/{draw_id}": DrawSpec(target=32),
} | (api_examples_service.BODIES | examples.BODIES)
"""Examples of requests, by operation."""

ANSWERS: dict[str, BaseModel] = {
    "POST /v1/rollouts": Rollouts(rollouts=[_QUEUED]),
    "POST /v1/tasks/check": TaskProblems(
        problems=[
            TaskProblem(index=0, task_id="task12", field="data.answer", message="Field required")
        ]
    ),
    "GET /v1/rollouts/{rollout_id}": _ENDED,
    "POST /v1/rollouts/cancel": Rollouts(rollouts=[_DONE]),
    "GET /v1/rollouts/{rollout_id}/gateway": GatewayAccess(
        url=f"http://gpu1:8080/r/{_FIRST}", key="sQ3xR0yEXAMPLEdM1f"
    ),
    "GET /v1/groups": GroupRows(groups=[_GROUP_ROW]),
    "GET /v1/rollouts": RolloutRows(rollouts=[_ROW]),
    "GET /v1/rollouts/{rollout_id}/text": _TEXT,
    "GET /v1/rollouts/{rollout_id}/tokens": _TOKENS,
    "GET /v1/training": Training(run=_ROW.run, versions=[_VERSION]),
    "GET /v1/agents": Agents(agents=[describe(MathAgent)]),
    "GET /v1/backends": Backends(backends=[api_examples_service.BACKEND]),
} | (api_examples_service.ANSWERS | examples.ANSWERS)
"""Examples of successful answers, by operation."""

TEXTS = {
    "POST /v1/rollouts/stream": f"{_ENDED.model_dump_json(exclude_defaults=True)}\n\n",
    "GET /v1/page": "<!doctype html>\n<title>Two groups of step 7</title>\n",
    "GET /v1/events": (
        "event: rollout\n"
        f'data: {{"rollout_id":"{_FIRST}","group_id":"{_GROUP.group_id}","state":"running",'
        f'"attempt":1,"at":{_AT}}}\n'
        "id: 0f8b1c2d-42\n\n"
    ),
    "GET /metrics": (
        "# HELP prorl_rollouts_ended_total Rollouts ended.\n"
        "# TYPE prorl_rollouts_ended_total counter\n"
        'prorl_rollouts_ended_total{state="done"} 3100.0\n'
    ),
}
"""Examples of answers that are text or a stream, by operation."""
