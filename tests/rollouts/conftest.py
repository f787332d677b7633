"""The pipeline that tests of rollouts run them through."""

from tests.pipeline.conftest import engine, pipeline, sandboxes, start

__all__ = ["engine", "pipeline", "sandboxes", "start"]
