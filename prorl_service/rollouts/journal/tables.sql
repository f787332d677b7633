CREATE TABLE groups (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id TEXT NOT NULL UNIQUE,
    unended INTEGER NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    ended_at REAL,
    bytes INTEGER NOT NULL,
    created_at REAL NOT NULL
) STRICT;
CREATE INDEX groups_by_end ON groups (ended_at);
CREATE TABLE requests (number INTEGER PRIMARY KEY, request BLOB NOT NULL) STRICT;
CREATE TABLE rollouts (
    id INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    state TEXT,
    summary BLOB,
    answer BLOB
) STRICT;
CREATE TABLE turns (
    rollout INTEGER NOT NULL,
    number INTEGER NOT NULL,
    content BLOB NOT NULL,
    PRIMARY KEY (rollout, number)
) STRICT;
CREATE TABLE continuations (
    rollout INTEGER PRIMARY KEY,
    attempt INTEGER NOT NULL,
    layer TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    content BLOB NOT NULL
) STRICT;
CREATE TABLE outside_calls (
    rollout INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    PRIMARY KEY (rollout, turn)
) STRICT;
CREATE TABLE garbage (number INTEGER PRIMARY KEY) STRICT;
CREATE TABLE totals (bytes INTEGER NOT NULL, uptime_s REAL NOT NULL) STRICT;
INSERT INTO totals VALUES (0, 0.0);
CREATE TABLE placements (group_id TEXT PRIMARY KEY, service TEXT NOT NULL) STRICT;
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
    newest_version INTEGER,
    request BLOB,
    UNIQUE (sampler_id, name)
) STRICT;
