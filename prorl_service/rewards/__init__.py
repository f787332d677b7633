"""Scoring: what an answer is worth. No sandboxes; only the judge does I/O."""
