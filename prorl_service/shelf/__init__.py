"""Ended rollouts kept for people, and what people can query: lists, texts, tokens, statistics."""
