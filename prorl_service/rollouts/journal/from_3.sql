CREATE TABLE turns (
    rollout INTEGER NOT NULL,
    number INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    layer TEXT NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (rollout, number)
) STRICT;
