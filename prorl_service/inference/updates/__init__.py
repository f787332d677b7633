"""New weights for all engines: what is agreed with the trainer, groups for broadcasts, updates."""
