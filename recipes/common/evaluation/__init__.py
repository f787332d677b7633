"""Scoring a model on a data set: rollouts, pass@k with intervals, the score card."""
