"""Ended rollouts as OpenTelemetry traces: the tree of one rollout's spans, and how it is exported.

Spans are made from what a rollout's record says once it has ended, in a thread of their own.
Nothing here is asked for while a rollout runs. `export` alone imports OpenTelemetry.
"""
