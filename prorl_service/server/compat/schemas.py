"""Types that ProRL Agent's trainers send and get, as far as `compat.routes` uses them."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from prorl_service.schemas import GroupId

CriticalError = Literal["init", "run", "eval", "timeout", "cancelled"] | None


class SamplingParams(BaseModel):
    """`max_iterations` counts turns. Parameters without a meaning here are accepted and ignored:
    they would name a model, or ask for the token ids that are always returned."""

    model_config = ConfigDict(extra="forbid")

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_output_tokens: int | None = Field(None, ge=1)
    max_iterations: int = Field(2, ge=1)

    model: JsonValue = Field(None, description="Ignored.")
    api_key: JsonValue = Field(None, description="Ignored.")
    modify_params: JsonValue = Field(None, description="Ignored.")
    log_completions: JsonValue = Field(None, description="Ignored.")
    native_tool_calling: JsonValue = Field(None, description="Ignored.")
    max_model_len: JsonValue = Field(None, description="Ignored: the engine's is used.")
    token_level_generation: JsonValue = Field(None, description="Ignored.")
    custom_tokenizer: JsonValue = Field(None, description="Ignored: the engine's is used.")
    ensure_thinking_end_properly: JsonValue = Field(None, description="Ignored.")
    strict_loop_detector: JsonValue = Field(None, description="Ignored.")


class ProcessRequest(BaseModel):
    """`instance` has `data_source`, `trajectory_id`, and the messages, prompt or problem statement;
    everything else in it is the agent's `data`."""

    instance: dict[str, JsonValue]
    sampling_params: SamplingParams = SamplingParams()
    job_id: GroupId | None = None


class JobMessage(BaseModel):
    """All `token_ids` in sequence are what the model saw and sampled; those of the assistant have
    `logprobs`."""

    role: Literal["user", "assistant", "tool"]
    content: str = Field("", description="Text, without what the chat template puts around it.")
    token_ids: list[int]
    logprobs: list[float] = []


class Timing(BaseModel):
    """Seconds. `others_time`: time in queues, which counts against no budget."""

    init_time: float
    run_time: float
    eval_time: float
    others_time: float
    counted_elapsed: float
    timeout_triggered: bool


class ProcessResult(BaseModel):
    """`filter`: not to be trained on. GET /v1/rollouts/{rollout_id} has the whole trajectory."""

    job_id: str
    rollout_id: str
    instance_id: str
    trajectory_id: str
    success: bool
    resolved: bool
    reward: float | None
    error: str | None
    critical_error: CriticalError
    filter: bool
    finish: bool
    end_properly: bool
    messages: list[JobMessage]
    git_patch: str = Field("", description="Patch that an agent for repositories left.")
    tools: list[dict[str, Any]]
    timing: Timing


class Job(BaseModel):
    job_id: GroupId


class LlmServer(BaseModel):
    address: str = Field(min_length=1, description="HOST:PORT or URL; a trailing /v1 is ignored.")


class Done(BaseModel):
    status: str


class JobCounts(BaseModel):
    status: str
    pending_jobs: int
    init_queue: int
    run_queue: int
    eval_queue: int
    active_init: int
    active_run: int
    active_eval: int
    total: int
