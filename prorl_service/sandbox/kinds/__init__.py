"""Kinds of sandbox, one file each."""
