"""The verdict of a model on an answer, and verdicts kept."""
