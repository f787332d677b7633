"""Helpers without a domain: owned tasks, leases, budgets, files, logs, names of runs."""
