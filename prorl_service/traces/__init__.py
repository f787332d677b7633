"""Ended rollouts as OpenTelemetry traces: the tree of a rollout's spans, and its export.

Spans are made from a rollout's record after it has ended, in a separate thread. Running rollouts
call nothing here. Only `export` and `spans` import OpenTelemetry.
"""
