ALTER TABLE groups RENAME TO groups_2;
ALTER TABLE rollouts RENAME TO rollouts_2;
DROP INDEX groups_by_end;
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
CREATE TABLE garbage (number INTEGER PRIMARY KEY) STRICT;
CREATE TABLE totals (bytes INTEGER NOT NULL, uptime_s REAL NOT NULL) STRICT;
CREATE TABLE placements (group_id TEXT PRIMARY KEY, service TEXT NOT NULL) STRICT;
INSERT INTO groups
    SELECT number, group_id, unended,
        (SELECT count(*) FROM rollouts_2 WHERE group_id = old.group_id AND state = 'done'),
        (SELECT count(*) FROM rollouts_2 WHERE group_id = old.group_id AND state = 'failed'),
        (SELECT count(*) FROM rollouts_2 WHERE group_id = old.group_id AND state = 'cancelled'),
        CASE WHEN ended_at IS NOT NULL THEN 0.0 END, bytes, created_at
    FROM groups_2 AS old;
INSERT INTO requests SELECT number, request FROM groups_2;
INSERT INTO rollouts
    SELECT number * 4096 + CAST(substr(rollout_id, length(group_id) + 2) AS INTEGER),
        attempt, state, summary, answer
    FROM rollouts_2 JOIN groups_2 USING (group_id);
INSERT INTO totals SELECT bytes, 0.0 FROM ended;
ALTER TABLE candidates RENAME TO candidates_2;
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
INSERT INTO candidates
    SELECT number, sampler_id, name, task_id, state, attempt, begun_in, oldest_version, NULL,
        request
    FROM candidates_2;
DROP TABLE candidates_2;
DROP TABLE groups_2;
DROP TABLE rollouts_2;
DROP TABLE ended;
UPDATE samplers SET state = CAST(json_remove(CAST(state AS TEXT), '$.opened_at') AS BLOB);
