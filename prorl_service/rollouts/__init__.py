"""Rollouts that were accepted: validation, admission, records, what is in flight, the journal."""
