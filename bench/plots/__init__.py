"""The pictures of the measurements, drawn from bench/results/NAME.json and nothing else."""
