"""Rollouts that continue in another process: what is saved of them, and how they get it back.

A rollout is saved turn by turn, and only whole turns: `saving` decides when, for one attempt, and
`turns` has their form as bytes. `rows` writes them to the journal, with what comes next and a
checksum over all. `files` has what is beside the journal: the layers of sandboxes, for agents that
need their files, and rollouts that a service hands over to another one when it drains. After INIT
of a later process, a rollout that was saved gets its turns back and is sampled from the next one;
an agent whose program starts again from its beginning gets the earlier replies from a `replay`.
What cannot be believed is dropped: that rollout starts from scratch.

The pipeline knows `resumer.Resumer` alone: `save`, `restore`, `hand_over` and `forget`. Nothing is
saved with a journal in memory, which ends with its process.
"""
