"""Lays out the documentation's site, writes its reference, and checks its pages."""
