"""Rollouts in the formats that others read: pure functions from a `Record` to rows or documents.

`sources` reads records from files, directories and journals; `transcript` finds out what was said;
`sft`, `tokens` and `atif` are formats; `output` writes rows. Nothing here runs or grades a rollout.
"""
