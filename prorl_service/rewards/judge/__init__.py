"""A model's verdict on an answer, and a cache of verdicts."""
