"""Parts that a test expects a rollout to have."""

from pydantic import JsonValue

from prorl_service.schemas import ErrorInfo, Rollout, Trajectory


def trajectory_of(rollout: Rollout) -> Trajectory:
    assert rollout.trajectory is not None, rollout.error
    return rollout.trajectory


def error_of(rollout: Rollout) -> ErrorInfo:
    assert rollout.error is not None
    return rollout.error


def report_of(rollout: Rollout) -> dict[str, JsonValue]:
    assert rollout.report is not None, rollout.error
    return rollout.report
