"""Ended rollouts kept for people, and all that people may ask: lists, texts, tokens, statistics."""
