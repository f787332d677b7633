"""Weights on their way to engines: what is agreed, files, the newest for engines that return."""
