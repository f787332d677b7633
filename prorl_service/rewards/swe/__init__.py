"""Scoring patches: `grade` decides; the `guest_` modules run in a sandbox, with the tests."""
