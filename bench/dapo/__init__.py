"""What dynamic sampling as a service gains over batches, over refilling and over re-queueing."""
