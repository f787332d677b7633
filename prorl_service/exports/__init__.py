"""Rollouts in other tools' formats: pure functions from a `ExportRecord` to rows or documents.

`sources` reads records from files, directories and journals; `transcript` recovers the messages;
`sft`, `tokens` and `atif` are formats; `output` writes rows. Nothing here runs or grades a rollout.
"""
