"""Agents: how a task is set up, run turn by turn, and scored."""
