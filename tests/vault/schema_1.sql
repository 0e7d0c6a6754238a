-- The tables as schema 1 had them, for the test of the migration; never to be changed.
CREATE TABLE jobs (                 -- one process that buys; also its lease of slots
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    run TEXT NOT NULL, account TEXT NOT NULL, dataset TEXT NOT NULL,
    machine TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL, started TEXT NOT NULL,
    heartbeat REAL NOT NULL,        -- seconds since 1970
    wanted INTEGER NOT NULL,        -- requests it could have under way now
    slots INTEGER NOT NULL,         -- requests it may have under way
    ended INTEGER NOT NULL DEFAULT 0
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
    sent_at REAL NOT NULL, settled_at REAL
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
    reply BLOB,                     -- zstd of the reply's JSON; NULL for a rejected row
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

CREATE TABLE totals (               -- micro-dollars, kept by the triggers below
    account TEXT NOT NULL, run TEXT NOT NULL,
    settled INTEGER NOT NULL, reserved INTEGER NOT NULL, unknown INTEGER NOT NULL,
    PRIMARY KEY (account, run)
) WITHOUT ROWID;
CREATE TRIGGER journal_added AFTER INSERT ON journal BEGIN
    INSERT INTO totals VALUES (NEW.account, NEW.run, NEW.cost,
        (NEW.state = 'sent') * NEW.reserved, (NEW.state = 'unknown') * NEW.reserved)
    ON CONFLICT DO UPDATE SET settled = settled + excluded.settled,
        reserved = reserved + excluded.reserved, unknown = unknown + excluded.unknown;
END;
CREATE TRIGGER journal_changed AFTER UPDATE OF state, cost, reserved ON journal BEGIN
    UPDATE totals SET settled = settled + NEW.cost - OLD.cost,
        reserved = reserved + (NEW.state = 'sent') * NEW.reserved - (OLD.state = 'sent') * OLD.reserved,
        unknown = unknown + (NEW.state = 'unknown') * NEW.reserved - (OLD.state = 'unknown') * OLD.reserved
    WHERE account = NEW.account AND run = NEW.run;
END;
CREATE TRIGGER journal_kept BEFORE DELETE ON journal BEGIN
    SELECT RAISE(ABORT, 'the journal is never pruned');
END;
CREATE TRIGGER journal_bound BEFORE UPDATE OF account, run ON journal BEGIN
    SELECT RAISE(ABORT, 'a journal entry never changes its account or run');
END;
CREATE VIEW budgets AS              -- what counts against a budget, per account and run
    SELECT account, run, settled, reserved, unknown, settled + reserved + unknown AS committed FROM totals;
PRAGMA application_id = 1163481686;
PRAGMA user_version = 1;
