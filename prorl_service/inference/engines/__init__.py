"""Kinds of inference engines: the protocol, `base`, and one class for each kind."""
