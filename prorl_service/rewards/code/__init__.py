"""Scoring programs: `grade` decides; the `guest_` modules run in a sandbox."""
