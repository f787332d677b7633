"""New weights for all engines: terms with the trainer, groups for broadcasts, updates."""
