"""The tree of errors: each knows whom to blame, whether a retry can help, and what to do.

Raise the narrowest class; attach the stage where it is known (the pipeline does). `info()` is what
goes over the wire. HTTP status codes live here too, so that no route has to know the tree.
"""

from typing import ClassVar

from pydantic import ValidationError

from prorl_service.schemas import Blame, ErrorInfo, FieldProblem, Stage


class ProRLError(Exception):
    """Base of all errors that a user may see."""

    blame: Blame = Blame.SERVICE
    retryable: bool = False
    answer_status: ClassVar[int] = 500
    retry_after_s: int = 1
    """Seconds in the `Retry-After` header of a 429 or 503."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        retryable: bool | None = None,
        fields: list[FieldProblem] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fields = fields or []
        if retryable is not None:
            self.retryable = retryable

    def info(self, stage: Stage | None = None) -> ErrorInfo:
        return ErrorInfo(
            kind=type(self).__name__,
            blame=self.blame,
            message=self.message,
            hint=self.hint,
            retryable=self.retryable,
            stage=stage,
            fields=self.fields,
        )


# --- refused before any work starts -------------------------------------------------------------


class InvalidRequest(ProRLError):
    blame = Blame.TASK
    answer_status = 422

    @classmethod
    def of_field(cls, field: str, message: str, *, hint: str = "") -> "InvalidRequest":
        problem = FieldProblem(field=field, message=message)
        return cls(f"{field}: {message}", hint=hint, fields=[problem])


class Unauthorized(InvalidRequest):
    answer_status = 401


class Forbidden(InvalidRequest):
    """The request is refused for its `Host` or `Origin` header, whatever its token."""

    answer_status = 403


class NotFound(InvalidRequest):
    answer_status = 404


class Conflict(InvalidRequest):
    """The id is already in use for something else."""

    answer_status = 409


class OwnedByAnother(Conflict):
    """The service works for another front: a front's engines sample only for its own rollouts."""


class PolicyTaken(Conflict):
    """Another training holds the policy."""

    blame = Blame.SERVICE


class PolicyUnclaimed(Conflict):
    """The training has to claim the policy, or to push its weights, first."""

    blame = Blame.SERVICE


class NotTrainable(Conflict):
    """The policy is a model behind an API, which gives text alone and takes no weights."""

    blame = Blame.SERVICE


class MetricMissing(InvalidRequest):
    """A sampler's filter wants a component that a rollout which is done does not have."""


class TooLarge(InvalidRequest):
    answer_status = 413


# --- ends of a rollout --------------------------------------------------------------------------


class TaskError(ProRLError):
    """The task itself cannot be run: missing data, a setup command that fails."""

    blame = Blame.TASK
    answer_status = 422


class AgentError(ProRLError):
    """A bug in an agent handler or in the agent's own program."""

    blame = Blame.AGENT
    answer_status = 422


class ProcessDied(AgentError):
    """The service's process died while the rollout was at work, and no attempt is left."""


class SandboxError(ProRLError):
    """The sandbox could not start, died, or broke its protocol."""

    blame = Blame.SANDBOX
    retryable = True
    answer_status = 503


class BackendError(ProRLError):
    """The inference engine failed or answered something impossible."""

    blame = Blame.BACKEND
    retryable = True
    answer_status = 502


class BackendUnavailable(BackendError):
    """No engine can take the work now."""

    answer_status = 503


class BackendLent(BackendUnavailable):
    """The owner of the engine is using it for something else, and will return it."""


class BackendBusy(BackendUnavailable):
    """The backend asks for patience: its limit of requests is used up for `retry_after_s`."""


class BackendRejected(BackendError):
    """The engine refused the request itself; a retry cannot help."""

    retryable = False
    answer_status = 422


class WeightsRejected(BackendRejected):
    """The weights that a trainer pushed are unfit: NaN, cut short, of another model. Those of
    before serve on."""

    blame = Blame.SERVICE


class ToolServerError(ProRLError):
    """A tool server that the operator named is unavailable."""

    retryable = True
    answer_status = 503


class EvaluatorError(ProRLError):
    blame = Blame.EVALUATOR


class ServiceStopping(ProRLError):
    retryable = True
    answer_status = 503


class Overloaded(ProRLError):
    """Too much is queued already. `retry_after_s` estimates when there will be room."""

    retryable = True
    answer_status = 429

    def __init__(self, message: str, *, hint: str, retry_after_s: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class JournalError(ProRLError):
    """The journal cannot be opened, read or written."""

    retryable = True
    answer_status = 503


class ResultLost(ProRLError):
    """The journal's file is damaged where it holds the rollout's result."""

    @classmethod
    def of(cls, reason: str) -> "ResultLost":
        return cls(
            f"its result cannot be read from the journal: {reason}",
            hint="the file was damaged, by its disk or by a copy; other results are not affected",
        )


class SamplingFailed(ProRLError):
    """A sampler could not submit or judge a group."""


class ShelfError(ProRLError):
    """The shelf, which keeps ended rollouts for people, cannot be read now."""

    retryable = True
    answer_status = 503


class LeaseExpired(ProRLError):
    """The lease of the rollout's group expired, since no client asked for it."""

    retryable = True


class StageTimeout(ProRLError):
    """A stage used up its budget. The blame is on what it waited for, if that is known."""

    def __init__(self, stage: Stage, budget_s: float, blame: Blame | None = None) -> None:
        super().__init__(
            f"{stage.value.upper()} did not finish within {budget_s:g} s",
            hint=f"raise limits.{stage.value}_timeout_s, or look at the last turn",
        )
        self.blame = blame or STAGE_BLAME[stage]
        self.retryable = self.blame in (Blame.SANDBOX, Blame.BACKEND)


STAGE_BLAME = {Stage.INIT: Blame.SANDBOX, Stage.RUN: Blame.AGENT, Stage.EVAL: Blame.EVALUATOR}
"""Default blame of each stage, for a time-out or an exception of an unknown class."""


def problems_of(error: ValidationError) -> str:
    """Returns the problems in one line, without values, which may be secret, and without links."""
    return "; ".join(f"{one.field}: {one.message}" for one in field_problems(error))


def field_problems(error: ValidationError, *within: str) -> list[FieldProblem]:
    """Returns a problem for each bad field, by its place, which begins with `within`."""
    return [
        FieldProblem(
            field=".".join([*within, *map(str, one["loc"])]),
            message=one["msg"].removeprefix("Value error, "),
        )
        for one in error.errors(include_url=False)
    ]
