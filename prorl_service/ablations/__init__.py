"""Optimisations switched off one by one, for measurements: what stands in the place of each part.

The service takes all of these parts as objects, so none of its own code asks whether a switch is
set. `switches` knows their names. Not meant for training.
"""
