"""Examples of requests and answers about weights, samplers and the service itself.

`api_examples` has those about rollouts, and all of them together.
"""

from pydantic import BaseModel

from prorl_service import __version__
from prorl_service.schemas import (
    Backends,
    BackendSpec,
    BackendState,
    BackendStatus,
    BroadcastSpec,
    EngineReport,
    NcclGroupSpec,
    NcclGroupStatus,
    OwnedBackends,
    PolicyClaim,
    PolicyLease,
    RolloutState,
    SandboxCounts,
    ServiceStatus,
    ShelfStatus,
    Stage,
    TrainingIdentity,
    WeightsAt,
    WeightsForm,
    WeightsReport,
    WeightsTerms,
)
from prorl_service.schemas.sampling import Draw, DrawnGroup, DrawSpec, DrawState, SamplerStatus

_STARTED_AT = 1_767_225_000.0
_CANDIDATE = "step7-task12"
BACKEND = BackendStatus(
    backend_id="gpu1:8000",
    url="http://gpu1:8000",
    model="Qwen/Qwen3-8B",
    state=BackendState.HEALTHY,
    policy_version=7,
    max_model_len=32_768,
    in_flight=12,
)
_REPORTED = BackendSpec(
    url=BACKEND.url,
    lease_s=240,
    policy_version=7,
    report=EngineReport(state=BackendState.HEALTHY, policy_version=7),
)
_REPORT = WeightsReport(version=8, applied=["gpu1:8000"], pending=[])
_NCCL_GROUP = "nccl-3f9a"
_SAMPLER = SamplerStatus(
    sampler_id="my-run",
    revision=57,
    wanted=4,
    waiting=12,
    deferred=1,
    under_way=8,
    informative=0,
    given=31,
    uninformative=20,
    failed=1,
    stale=2,
    decided_early=3,
    carried=5,
    scored=432,
    score_mean=0.4,
    draw=Draw(
        draw_id="step-8",
        spec=DrawSpec(target=32),
        state=DrawState.OPEN,
        groups=[
            DrawnGroup(
                group_id=f"my-run-{_CANDIDATE}-1",
                candidate=_CANDIDATE,
                n=8,
                newest_policy_version=7,
            )
        ],
        finished=3,
    ),
)
_STATUS = ServiceStatus(
    version=__version__,
    run="20260101-000000-c0ffee",
    started_at=_STARTED_AT,
    is_stopping=False,
    policy_version=7,
    model="Qwen/Qwen3-8B",
    tokenizer_digest="sha256:5f1d",
    end_ids=[151_643, 151_645],
    chat_template_digest="c83a2f0e",
    sandbox="bubblewrap",
    sandboxes=SandboxCounts(running=24, warm=8, hits=310, misses=2),
    agents=["code", "math", "swe"],
    rollouts={RolloutState.QUEUED: 40, RolloutState.RUNNING: 24, RolloutState.DONE: 128},
    ended={RolloutState.DONE: 3_100, RolloutState.FAILED: 9},
    failures={},
    queues={"init": 40, "run": 0, "eval": 0},
    workers={Stage.INIT: 8, Stage.RUN: 64, Stage.EVAL: 8},
    running={Stage.INIT: 0, Stage.RUN: 24, Stage.EVAL: 0},
    backends=[BACKEND],
    shelf=ShelfStatus(bytes=31_457_280, limit_bytes=536_870_912),
    loop_lag_s=0.004,
)

_TRAINING = TrainingIdentity(
    training_id="3f9ac0ffee12", process_id="b71c", host="trainer1", pid=4711, user="ada"
)
_LEASE = PolicyLease(training=_TRAINING, since=_STARTED_AT, silent_s=2.0, is_live=True)

BODIES: dict[str, BaseModel] = {
    "POST /v1/policy": PolicyClaim(training=_TRAINING),
    "POST /v1/backends": BackendSpec(url="http://gpu1:8000", lease_s=240),
    "PUT /v1/backends": OwnedBackends(owner="front-node1", backends=[_REPORTED]),
    "POST /v1/weights": WeightsAt(push="9c08189826", path="/shared/weights/step8"),
    "POST /v1/weights/group": NcclGroupSpec(
        init_info={"master_address": "trainer1", "master_port": 29500, "world_size": 3}
    ),
    "POST /v1/weights/broadcast": BroadcastSpec(
        push="9c08189826",
        group=_NCCL_GROUP,
        update_info={
            "names": ["lm_head.weight"],
            "dtype_names": ["bfloat16"],
            "shapes": [[151_936, 4_096]],
        },
    ),
}
ANSWERS: dict[str, BaseModel] = {
    "POST /v1/policy": _LEASE,
    "POST /v1/backends": BACKEND,
    "PUT /v1/backends": Backends(backends=[BACKEND]),
    "DELETE /v1/backends/{backend_id}": BACKEND,
    "GET /v1/weights": WeightsTerms(
        form=WeightsForm.MODEL, dtype="bfloat16", directory="/shared/run.weights", probe="probe-1"
    ),
    "POST /v1/weights": _REPORT,
    "PUT /v1/weights": _REPORT,
    "POST /v1/weights/group": NcclGroupStatus(group=_NCCL_GROUP, engines=["gpu1:8000"]),
    "POST /v1/weights/broadcast": _REPORT,
    "PUT /v1/samplers/{sampler_id}": _SAMPLER,
    "GET /v1/samplers/{sampler_id}": _SAMPLER,
    "POST /v1/samplers/{sampler_id}/groups": _SAMPLER,
    "PUT /v1/samplers/{sampler_id}/draws/{draw_id}": _SAMPLER,
    "GET /v1/status": _STATUS,
}
