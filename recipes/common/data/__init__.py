"""Data sets: reading their files, rows in one normal form, the output of a preparation."""
