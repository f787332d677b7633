"""What each optimisation is worth: groups per second without it, as a share of those with all."""
