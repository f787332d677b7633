"""Examples of requests and answers of ProRL Agent's routes, for the API page."""

from pydantic import BaseModel

from prorl_service.server.compat.schemas import (
    Done,
    Job,
    JobCounts,
    JobMessage,
    LlmServer,
    ProcessRequest,
    ProcessResult,
    SamplingParams,
    Timing,
)

_JOB_ID = "job-17"
_RESULT = ProcessResult(
    job_id=_JOB_ID,
    rollout_id=f"{_JOB_ID}-5c2f.0",
    instance_id="task12",
    trajectory_id="0",
    success=True,
    resolved=True,
    reward=1.0,
    error=None,
    critical_error=None,
    filter=False,
    finish=True,
    end_properly=True,
    messages=[
        JobMessage(role="user", content="How many?", token_ids=[151_644, 872]),
        JobMessage(
            role="assistant",
            content="The answer is 25.",
            token_ids=[785, 4_226, 151_645],
            logprobs=[-0.125, -0.5, -0.25],
        ),
    ],
    tools=[],
    timing=Timing(
        init_time=0.1,
        run_time=12.0,
        eval_time=0.25,
        others_time=0.5,
        counted_elapsed=12.35,
        timeout_triggered=False,
    ),
)

BODIES: dict[str, BaseModel] = {
    "POST /process": ProcessRequest(
        instance={
            "data_source": "math",
            "instance_id": "task12",
            "trajectory_id": "0",
            "prompt": "How many primes are below 100?",
            "answer": "25",
        },
        sampling_params=SamplingParams(max_iterations=8),
        job_id=_JOB_ID,
    ),
    "POST /cancel": Job(job_id=_JOB_ID),
    "POST /add_llm_server": LlmServer(address="gpu1:8000"),
}
ANSWERS: dict[str, BaseModel] = {
    "POST /start": Done(status="started"),
    "POST /stop": Done(status="stopped"),
    "GET /status": JobCounts(
        status="running",
        pending_jobs=1,
        init_queue=0,
        run_queue=0,
        eval_queue=0,
        active_init=0,
        active_run=1,
        active_eval=0,
        total=1,
    ),
    "POST /process": _RESULT,
    "POST /cancel": Done(status="cancelled"),
    "POST /add_llm_server": Done(status="added"),
    "POST /clear_llm_server": Done(status="cleared"),
}
