"""The tables of the vault, schema version 2, and how a vault of schema 1 becomes one.

Sums of money are kept by triggers on the journal, so they cannot drift from it and admission reads a few rows,
whatever the journal's length. Nothing is ever deleted: an answer that was bought again is marked superseded.
"""

from __future__ import annotations

APPLICATION_ID = 0x45595256  # "EYRV" in the SQLite header: tells a vault from another program's database
SCHEMA_VERSION = 2

_TABLES = """
CREATE TABLE jobs (                 -- one process that buys; also its lease of slots
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run TEXT NOT NULL, account TEXT NOT NULL, dataset TEXT NOT NULL,
    machine TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL, started TEXT NOT NULL,
    heartbeat REAL NOT NULL,        -- seconds since 1970
    wanted INTEGER NOT NULL,        -- requests it could have under way now
    slots INTEGER NOT NULL,         -- requests it may have under way
    ended INTEGER NOT NULL DEFAULT 0,
    beat REAL NOT NULL DEFAULT 0    -- the heartbeat on the boot's monotonic clock, which nobody sets
);
CREATE INDEX jobs_live ON jobs (account) WHERE ended = 0;

CREATE TABLE journal (              -- one row per attempt; money in micro-dollars
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL REFERENCES jobs (id),
    run TEXT NOT NULL, account TEXT NOT NULL,
    model TEXT NOT NULL, dataset TEXT NOT NULL, row TEXT NOT NULL,
    turn INTEGER NOT NULL, repetition INTEGER NOT NULL,
    attempt INTEGER NOT NULL,       -- 1, 2, ... of this identity
    fingerprint TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('sent', 'done', 'failed', 'unknown')),
    reserved INTEGER NOT NULL CHECK (reserved >= 0),      -- held while the state is sent or unknown
    cost INTEGER NOT NULL DEFAULT 0 CHECK (cost >= 0),    -- settled, rounded up
    billed TEXT,                    -- the same in exact decimal dollars
    generation_id TEXT, provider TEXT, status INTEGER,
    blame TEXT,                     -- row: counts against the row's attempts
    error TEXT,
    body BLOB,                      -- zstd of the request's bytes until its fate is known, for an identical re-send
    sent_at REAL NOT NULL, settled_at REAL,
    worst INTEGER NOT NULL DEFAULT 0                      -- the most that it can cost; 0 = it is free
);
CREATE INDEX journal_identity ON journal (model, dataset, row, turn, repetition);
CREATE INDEX journal_under_way ON journal (fingerprint, repetition) WHERE state = 'sent';
CREATE INDEX journal_job ON journal (job) WHERE state = 'sent';
CREATE INDEX journal_unknown ON journal (account) WHERE state = 'unknown';
CREATE INDEX journal_generation ON journal (generation_id) WHERE generation_id IS NOT NULL;

CREATE TABLE answers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    model TEXT NOT NULL, dataset TEXT NOT NULL, row TEXT NOT NULL,
    turn INTEGER NOT NULL, repetition INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    verdict TEXT NOT NULL,          -- ok, length, or why the row was rejected
    reply BLOB,                     -- zstd of the reply's JSON; of a rejected row only a 200's text, else NULL
    finish_reason TEXT, provider TEXT, served_model TEXT, generation_id TEXT,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    cost INTEGER NOT NULL,          -- micro-dollars; 0 when shared
    journal INTEGER REFERENCES journal (id),
    shared_from INTEGER REFERENCES answers (id),          -- bought once for an identical request
    superseded INTEGER NOT NULL DEFAULT 0,
    stored_at REAL NOT NULL
);
CREATE UNIQUE INDEX answers_identity ON answers (model, dataset, row, turn, repetition) WHERE superseded = 0;
CREATE INDEX answers_fingerprint ON answers (model, fingerprint, repetition) WHERE superseded = 0;
"""

# Sums and look-ups that follow from the tables above; a migration makes them anew.
_BOOKS = """
CREATE INDEX journal_dataset ON journal (model, dataset);
CREATE INDEX answers_words ON answers (  -- all that is asked about answers without reading replies
    model, dataset, row, turn, repetition, verdict, completion_tokens, prompt_tokens, reasoning_tokens, provider, cost,
    shared_from, superseded
) WHERE superseded = 0;

CREATE TABLE readings (             -- the gateway's own figure of what the account's key has used
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    account TEXT NOT NULL, job INTEGER NOT NULL REFERENCES jobs (id),
    key_mark TEXT NOT NULL,         -- tells two keys apart; says nothing about either
    at REAL NOT NULL,
    usage TEXT,                     -- dollars by the gateway; NULL while it is being asked
    billed TEXT,                    -- dollars by the journal at that moment
    unknown INTEGER,                -- attempts of unknown cost at that moment
    settled INTEGER NOT NULL DEFAULT 0  -- nothing was under way, and nothing had been for long enough
);

CREATE TABLE totals (               -- micro-dollars, kept by the triggers below
    account TEXT NOT NULL, run TEXT NOT NULL, dataset TEXT NOT NULL,
    settled INTEGER NOT NULL, reserved INTEGER NOT NULL, unknown INTEGER NOT NULL,
    PRIMARY KEY (account, run, dataset)
) WITHOUT ROWID;
CREATE TRIGGER journal_added AFTER INSERT ON journal BEGIN
    INSERT INTO totals VALUES (NEW.account, NEW.run, NEW.dataset, NEW.cost,
        (NEW.state = 'sent') * NEW.reserved, (NEW.state = 'unknown') * NEW.reserved)
    ON CONFLICT DO UPDATE SET settled = settled + excluded.settled,
        reserved = reserved + excluded.reserved, unknown = unknown + excluded.unknown;
END;
CREATE TRIGGER journal_changed AFTER UPDATE OF state, cost, reserved ON journal BEGIN
    UPDATE totals SET settled = settled + NEW.cost - OLD.cost,
        reserved = reserved + (NEW.state = 'sent') * NEW.reserved - (OLD.state = 'sent') * OLD.reserved,
        unknown = unknown + (NEW.state = 'unknown') * NEW.reserved - (OLD.state = 'unknown') * OLD.reserved
    WHERE account = NEW.account AND run = NEW.run AND dataset = NEW.dataset;
END;
CREATE TRIGGER journal_kept BEFORE DELETE ON journal BEGIN
    SELECT RAISE(ABORT, 'the journal is never pruned');
END;
CREATE TRIGGER journal_bound BEFORE UPDATE OF account, run, dataset ON journal BEGIN
    SELECT RAISE(ABORT, 'a journal entry never changes its account, run or dataset');
END;
CREATE VIEW budgets AS              -- what counts against a budget
    SELECT account, run, dataset, settled, reserved, unknown, settled + reserved + unknown AS committed FROM totals;
"""

SCHEMA = _TABLES + _BOOKS

# schema -> the statements that make it the next one
MIGRATIONS = {
    1: """
ALTER TABLE jobs ADD COLUMN beat REAL NOT NULL DEFAULT 0;
ALTER TABLE journal ADD COLUMN worst INTEGER NOT NULL DEFAULT 0;
DROP TRIGGER journal_added;
DROP TRIGGER journal_changed;
DROP TRIGGER journal_kept;
DROP TRIGGER journal_bound;
DROP VIEW budgets;
DROP TABLE totals;
UPDATE journal SET worst = reserved;
"""
    + _BOOKS
    + """
INSERT INTO totals SELECT account, run, dataset, sum(cost), sum((state = 'sent') * reserved),
    sum((state = 'unknown') * reserved) FROM journal GROUP BY account, run, dataset;
""",
}
