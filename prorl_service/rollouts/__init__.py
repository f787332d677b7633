"""Accepted rollouts: validation, admission, records, groups in flight, the journal."""
