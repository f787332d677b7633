"""Training with either trainer: options from the settings, launch, progress, warm starts."""
