"""The journal: what was accepted and how it ended, on disk before it is answered."""

from prorl_service.rollouts.journal.journal import Journal

__all__ = ["Journal"]
