CREATE TABLE continuations (
    rollout INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    layer TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    content BLOB NOT NULL
) STRICT;
INSERT INTO continuations SELECT rollout, max(attempt), '', 0, x'' FROM turns GROUP BY rollout;
DROP TABLE turns;
CREATE TABLE turns (
    rollout INTEGER NOT NULL,
    number INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (rollout, number)
) STRICT;
CREATE TABLE outside_calls (
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    PRIMARY KEY (rollout, turn)
) STRICT;
