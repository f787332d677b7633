CREATE TABLE groups (
    number INTEGER PRIMARY KEY,
    group_id TEXT NOT NULL UNIQUE,
    unended INTEGER NOT NULL,
    ended_at REAL,
    bytes INTEGER NOT NULL,
    created_at REAL NOT NULL,
    request BLOB NOT NULL
) STRICT;
CREATE INDEX groups_by_end ON groups (ended_at);
CREATE TABLE ended (bytes INTEGER NOT NULL) STRICT;
INSERT INTO ended VALUES (0);
CREATE TABLE rollouts (
    rollout_id TEXT PRIMARY KEY,
    group_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    state TEXT,
    summary BLOB,
    answer BLOB
) STRICT;
CREATE INDEX rollouts_by_group ON rollouts (group_id, state);
CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE samplers (sampler_id TEXT PRIMARY KEY, state BLOB NOT NULL) STRICT;
CREATE TABLE candidates (
    number INTEGER PRIMARY KEY,
    sampler_id TEXT NOT NULL,
    name TEXT NOT NULL,
    task_id TEXT NOT NULL,
    state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    begun_in TEXT,
    oldest_version INTEGER,
    request BLOB,
    UNIQUE (sampler_id, name)
) STRICT;
