"""Needs of a run: machines, disk and time, from measured costs."""
