"""A rollout service of many machines: Ray starts its processes, watches, replaces and counts them.

HTTP carries the data. Nothing outside of this package imports Ray, and of its modules those that
talk to Ray alone.
"""
