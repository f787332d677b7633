"""The journal: accepted groups and their results, on disk before they are reported."""

from prorl_service.rollouts.journal.journal import Journal

__all__ = ["Journal"]
