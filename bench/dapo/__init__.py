"""Gain of dynamic sampling as a service over batches, over refilling and over re-queueing."""
