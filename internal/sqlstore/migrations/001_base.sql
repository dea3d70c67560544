-- Times are microseconds since 1970 UTC by the store's clock, durations microseconds. Zero values are NULL where the
-- column allows it. {id}, {bytes}, {c}, {churn} and {stamp} stand for what the two databases write differently, and so does
-- what {name: words} names: the type {name column} of a column that takes one of these words.

{relation: '' retry fork}
{run_state: queued running waiting blocked succeeded failed cancelled}
{run_end: succeeded failed cancelled}
{step_kind: repeatable keyed tx once timer event gate child batch}
{step_state: waiting in_flight retrying uncertain succeeded failed given_up}

CREATE TABLE pawl_meta (
	one       BIGINT PRIMARY KEY CHECK (one = 1),
	namespace TEXT   NOT NULL,
	created   BIGINT NOT NULL,
	restored  BIGINT
);

CREATE TABLE pawl_runs (
	id          {id}    NOT NULL PRIMARY KEY,
	lineage     {id}    NOT NULL,
	parent      {id},
	relation    {relation relation} NOT NULL,
	workflow    TEXT{c} NOT NULL,
	version     TEXT{c} NOT NULL,
	key_name    TEXT{c} NOT NULL,
	product_key TEXT{c},
	new_keys    BOOLEAN NOT NULL,
	own_keys    TEXT,
	queue       TEXT{c} NOT NULL,
	priority    INTEGER NOT NULL DEFAULT 0,
	share       TEXT{c} NOT NULL DEFAULT '',
	slotted     BOOLEAN,
	state       {run_state state} NOT NULL,
	due         BIGINT,
	epoch       BIGINT  NOT NULL,
	token       BIGINT,
	owner       {id},
	claimed     BIGINT,
	taken_state TEXT,
	taken_owner {id},
	taken_claimed BIGINT,
	intended    {run_end intended},
	cancel_at   BIGINT,
	cancel_by   TEXT,
	cancel_why  TEXT,
	created     BIGINT  NOT NULL,
	started     BIGINT,
	ended       BIGINT,
	lost        BIGINT  NOT NULL,
	lost_total  BIGINT  NOT NULL,
	releases    BIGINT  NOT NULL,
	builds      TEXT,
	restored    BIGINT,
	deadline    BIGINT,
	time_limit  BIGINT,
	called      BOOLEAN,
	successor   {id},
	continues   {id},
	next_hash   {bytes},
	fault       TEXT,
	input_hash  {bytes},
	input       {bytes},
	result      {bytes},
	CONSTRAINT pawl_runs_due CHECK (CASE state WHEN 'queued' THEN due IS NOT NULL WHEN 'waiting' THEN TRUE ELSE due IS NULL END),
	CONSTRAINT pawl_runs_owned CHECK ((state = 'running') = (owner IS NOT NULL)),
	CONSTRAINT pawl_runs_end CHECK ((state = 'succeeded' OR state = 'failed' OR state = 'cancelled') = (ended IS NOT NULL))
){churn};

-- No predicate below is one that the statement which locks a run by its id implies: the planner would scan the whole
-- index instead of looking up the id.
CREATE INDEX pawl_runs_claim ON pawl_runs (workflow, version, queue, share, priority, due, id) WHERE due IS NOT NULL;
CREATE INDEX pawl_runs_owner ON pawl_runs (owner) WHERE owner IS NOT NULL;
-- The slots in use of queues with limits. slotted is set by claims that heed them and means nothing once the owner is gone;
-- other runs have no entry here to be written.
CREATE INDEX pawl_runs_slots ON pawl_runs (queue, share) WHERE slotted AND owner IS NOT NULL;
-- One live run of a lineage. A fork with keys of its own runs beside its origin and stands for itself.
CREATE UNIQUE INDEX pawl_runs_live ON pawl_runs ((CASE WHEN new_keys THEN id ELSE lineage END)) WHERE ended IS NULL;
-- The lineage's first run is found by its id, so only the others are here.
CREATE INDEX pawl_runs_lineage ON pawl_runs (lineage) WHERE lineage <> id;

-- Which run a step of kind child waits for, or waited.
CREATE TABLE pawl_calls (
	run      {id}    NOT NULL,
	step     TEXT{c} NOT NULL,
	child    {id}    NOT NULL,
	started  BOOLEAN NOT NULL,
	detached BOOLEAN NOT NULL,
	PRIMARY KEY (run, step)
);

CREATE INDEX pawl_calls_child ON pawl_calls (child, run, step);

-- Where runs wait besides the queue of their workflow's name at priority 0: what claims have to look through.
CREATE TABLE pawl_ways (
	workflow TEXT{c} NOT NULL,
	queue    TEXT{c} NOT NULL,
	priority INTEGER NOT NULL,
	PRIMARY KEY (workflow, queue, priority)
);

-- Settings of queues and what claims have to remember of them. A queue without a row has no limits. special says that a
-- claim has to lock the row first, or to leave the queue alone; shared, that runs have shares in it.
CREATE TABLE pawl_queues (
	name          TEXT{c} NOT NULL PRIMARY KEY,
	special       BOOLEAN NOT NULL,
	shared        BOOLEAN NOT NULL,
	paused_at     BIGINT,
	paused_by     TEXT,
	paused_why    TEXT,
	max_running   BIGINT,
	max_per_share BIGINT,
	rate          BIGINT,
	rate_per      BIGINT,
	burst         BIGINT,
	spent         BIGINT,
	turn          TEXT{c},
	changed       BIGINT
);

-- until when no step that names the lane begins an attempt.
CREATE TABLE pawl_lanes (
	name  TEXT{c} NOT NULL PRIMARY KEY,
	until BIGINT  NOT NULL,
	why   TEXT
);

-- batch and item are those of a step of an item, whose name has them too; items is of a batch, the number of its items.
CREATE TABLE pawl_steps (
	run          {id}    NOT NULL,
	name         TEXT{c} NOT NULL,
	batch        TEXT{c},
	item         TEXT{c},
	items        BIGINT,
	kind         {step_kind kind} NOT NULL,
	state        {step_state state} NOT NULL,
	attempt      INTEGER NOT NULL,
	epoch        INTEGER NOT NULL,
	op_key       TEXT,
	paid         BOOLEAN,
	foreign_tx   BOOLEAN,
	worker       {id},
	begun        BIGINT,
	ended        BIGINT,
	deadline     BIGINT,
	settle       BIGINT,
	first_intent BIGINT,
	key_ttl      BIGINT,
	next_at      BIGINT,
	first_try    BIGINT,
	unknown      BIGINT,
	round        BIGINT,
	told         BIGINT,
	probe_after  BIGINT,
	next_probe   BIGINT,
	probes       BIGINT,
	use_stored   BOOLEAN,
	orphaned     BOOLEAN,
	inherited    {id},
	taken_from   TEXT,
	provider     TEXT,
	model        TEXT,
	request_id   TEXT,
	tokens_in    BIGINT,
	tokens_out   BIGINT,
	cost_micros  BIGINT,
	latency_us   BIGINT,
	sent         TEXT,
	fault        TEXT,
	input_hash   {bytes},
	other_hash   {bytes},
	value        {bytes},
	input        {bytes},
	PRIMARY KEY (run, name)
);

-- Items of batches that are done, or have failed. An item that has no row here is missing.
CREATE TABLE pawl_items (
	run        {id}    NOT NULL,
	batch      TEXT{c} NOT NULL,
	item       TEXT{c} NOT NULL,
	state      TEXT    NOT NULL CHECK (state IN ('done', 'failed')),
	epoch      BIGINT  NOT NULL,
	ended      BIGINT  NOT NULL,
	inherited  {id},
	input_hash {bytes},
	fault      TEXT,
	value      {bytes},
	PRIMARY KEY (run, batch, item)
){clustered};

-- Attempts that ended without success. The successful one is the step's row.
CREATE TABLE pawl_attempts (
	run         {id}    NOT NULL,
	step        TEXT{c} NOT NULL,
	attempt     BIGINT  NOT NULL,
	worker      {id},
	begun       BIGINT,
	ended       BIGINT,
	wait        BIGINT,
	provider    TEXT,
	model       TEXT,
	request_id  TEXT,
	tokens_in   BIGINT,
	tokens_out  BIGINT,
	cost_micros BIGINT,
	latency_us  BIGINT,
	sent        TEXT,
	fault       TEXT    NOT NULL,
	PRIMARY KEY (run, step, attempt)
);

CREATE TABLE pawl_inbox (
	id      {id}    NOT NULL PRIMARY KEY,
	run     {id}    NOT NULL,
	step    TEXT{c} NOT NULL,
	kind    TEXT    NOT NULL CHECK (kind IN ('uncertain', 'twice', 'crash_loop', 'decode', 'diverged', 'renamed', 'version', 'limit',
		'input_changed', 'gate', 'invalidated')),
	attempt BIGINT  NOT NULL,
	opened  BIGINT  NOT NULL,
	other   TEXT,
	detail  TEXT,
	closed  BIGINT,
	choice  TEXT,
	by_whom TEXT,
	why     TEXT,
	result  {bytes}
);

CREATE UNIQUE INDEX pawl_inbox_open ON pawl_inbox (run, step, kind) WHERE closed IS NULL;
CREATE INDEX pawl_inbox_todo ON pawl_inbox (id) WHERE closed IS NULL;
CREATE INDEX pawl_inbox_run ON pawl_inbox (run, id);

-- One row is one generation of what a person is asked to approve; its id is that of its inbox entry. rev grows with each
-- transition and guards the next one.
CREATE TABLE pawl_gates (
	id            {id}    NOT NULL PRIMARY KEY,
	run           {id}    NOT NULL,
	lineage       {id}    NOT NULL,
	step          TEXT{c} NOT NULL,
	generation    BIGINT  NOT NULL,
	supersedes    {id},
	state         TEXT    NOT NULL
		CHECK (state IN ('pending', 'approved', 'claimed', 'rejected', 'expired', 'cancelled', 'superseded', 'revoked', 'invalidated')),
	rev           BIGINT  NOT NULL,
	version       TEXT{c} NOT NULL,
	action        TEXT{c} NOT NULL,
	kind          TEXT,
	op_key        TEXT,
	hash          {bytes} NOT NULL,
	same          {bytes} NOT NULL,
	requested     BIGINT  NOT NULL,
	expires       BIGINT,
	grant_ttl     BIGINT,
	deciders      TEXT,
	two_persons   BOOLEAN,
	requester     TEXT,
	edited_by     TEXT,
	by_whom       TEXT,
	via           TEXT,
	why           TEXT,
	decided       BIGINT,
	decision_key  TEXT,
	grant_expires BIGINT,
	claimed_by    {id},
	claimed       BIGINT,
	ref           TEXT{c},
	payload       {bytes},
	form          {bytes}
);

CREATE UNIQUE INDEX pawl_gates_step ON pawl_gates (run, step, generation);
CREATE UNIQUE INDEX pawl_gates_live ON pawl_gates (run, step) WHERE state IN ('pending', 'approved', 'claimed');
CREATE INDEX pawl_gates_lineage ON pawl_gates (lineage, step, generation);

CREATE TABLE pawl_evidence (
	run     {id}    NOT NULL,
	id      {id}    NOT NULL,
	step    TEXT{c} NOT NULL,
	attempt BIGINT  NOT NULL,
	at      BIGINT  NOT NULL,
	worker  {id},
	source  TEXT    NOT NULL CHECK (source IN ('worker', 'probe')),
	verdict TEXT    NOT NULL,
	fault   TEXT,
	value   {bytes},
	PRIMARY KEY (run, id)
);

CREATE TABLE pawl_audit (
	id      {id}   NOT NULL PRIMARY KEY,
	at      BIGINT NOT NULL,
	act     TEXT   NOT NULL,
	by_whom TEXT   NOT NULL,
	why     TEXT,
	run     {id},
	step    TEXT,
	entry   {id},
	detail  TEXT,
	gone    BIGINT
);

CREATE INDEX pawl_audit_run ON pawl_audit (run, id) WHERE run IS NOT NULL;
-- gone, here and in pawl_keys, is NULL while the run is there. It is the time from which the row is kept for a term of its
-- own; an act that is about no run has it from the beginning.
CREATE INDEX pawl_audit_gone ON pawl_audit (gone) WHERE gone IS NOT NULL;

-- The product key comes first in the primary key, so that runs are also found by it alone.
CREATE TABLE pawl_keys (
	product_key TEXT{c} NOT NULL,
	key_name    TEXT{c} NOT NULL,
	input_hash  {bytes},
	lineage     {id}    NOT NULL,
	end_state   TEXT    CHECK (end_state IN ('succeeded', 'failed', 'cancelled')),
	ended       BIGINT,
	gone        BIGINT,
	PRIMARY KEY (product_key, key_name)
);

-- Not of ended: a run's end must not have an index here to write to.
CREATE INDEX pawl_keys_gone ON pawl_keys (gone) WHERE gone IS NOT NULL;

-- Events of one topic, which is (about, name), have times that grow strictly: the sender holds the topic's lock.
CREATE TABLE pawl_events (
	about    TEXT{c} NOT NULL,
	name     TEXT{c} NOT NULL,
	at       BIGINT  NOT NULL,
	given_id TEXT{c},
	hash     {bytes} NOT NULL,
	value    {bytes} NOT NULL,
	PRIMARY KEY (about, name, at)
);

CREATE UNIQUE INDEX pawl_events_given ON pawl_events (about, name, given_id) WHERE given_id IS NOT NULL;
CREATE INDEX pawl_events_age ON pawl_events (at);

-- Which events a lineage has taken. A row is of use for as long as an event that is as old may be found.
CREATE TABLE pawl_takings (
	about    TEXT{c} NOT NULL,
	name     TEXT{c} NOT NULL,
	lineage  {id}    NOT NULL,
	at       BIGINT  NOT NULL,
	key_name TEXT{c} NOT NULL,
	PRIMARY KEY (lineage, about, name, at)
);

-- The first columns differ, so that no planner takes one index for another.
CREATE INDEX pawl_takings_workflow ON pawl_takings (key_name, about, name, at);
CREATE INDEX pawl_takings_age ON pawl_takings (at);

-- The steps in state waiting that await an event.
CREATE TABLE pawl_awaits (
	run   {id}    NOT NULL,
	step  TEXT{c} NOT NULL,
	about TEXT{c} NOT NULL,
	name  TEXT{c} NOT NULL,
	PRIMARY KEY (step, run)
);

CREATE INDEX pawl_awaits_topic ON pawl_awaits (about, name, run, step);

-- Schedules. Every instant up to upto is in the ledger; due is when the next one is to be decided about, NULL if none is left.
CREATE TABLE pawl_schedules (
	name       TEXT{c} NOT NULL PRIMARY KEY,
	workflow   TEXT{c} NOT NULL,
	version    TEXT{c} NOT NULL,
	coded      BOOLEAN NOT NULL,
	spec       TEXT    NOT NULL,
	input      {bytes},
	overlap    TEXT    NOT NULL CHECK (overlap IN ('skip', 'buffer_one', 'allow', 'cancel_previous')),
	code_hash  {bytes},
	edited     BOOLEAN,
	revision   BIGINT  NOT NULL,
	paused_at  BIGINT,
	paused_by  TEXT,
	paused_why TEXT,
	created    BIGINT  NOT NULL,
	changed    BIGINT  NOT NULL,
	upto       BIGINT  NOT NULL,
	due        BIGINT,
	started    BIGINT  NOT NULL,
	buffered   BIGINT,
	blocker    {id},
	streak     BIGINT  NOT NULL,
	CONSTRAINT pawl_schedules_waits CHECK (buffered IS NOT NULL OR blocker IS NULL)
){churn};

CREATE INDEX pawl_schedules_due ON pawl_schedules (workflow, version, due) WHERE due IS NOT NULL;
CREATE INDEX pawl_schedules_buffered ON pawl_schedules (workflow, version) WHERE buffered IS NOT NULL;

-- The ledger: what became of each instant of each schedule. A row with until stands for count instants from at to until that
-- have no row of their own, by the timetable of spec. open says that the run's lineage may have a live run.
CREATE TABLE pawl_occurrences (
	schedule    TEXT{c} NOT NULL,
	at          BIGINT  NOT NULL,
	until       BIGINT,
	count       BIGINT  NOT NULL CHECK (count > 0),
	spec        TEXT,
	state       TEXT    NOT NULL
		CHECK (state IN ('started', 'caught_up', 'backfilled', 'buffered', 'skipped', 'missed', 'paused', 'rejected')),
	reason      TEXT,
	run         {id},
	other       {id},
	revision    BIGINT  NOT NULL,
	decided     BIGINT  NOT NULL,
	trigger_key TEXT{c},
	by_whom     TEXT,
	open        BOOLEAN,
	PRIMARY KEY (schedule, at),
	CONSTRAINT pawl_occurrences_has CHECK ((run IS NOT NULL) = (state IN ('started', 'caught_up', 'backfilled'))),
	CONSTRAINT pawl_occurrences_range_has CHECK ((spec IS NOT NULL) = (until IS NOT NULL))
);

CREATE INDEX pawl_occurrences_open ON pawl_occurrences (schedule, at) WHERE open;
CREATE INDEX pawl_occurrences_range ON pawl_occurrences (schedule, until) WHERE until IS NOT NULL;
CREATE UNIQUE INDEX pawl_occurrences_trigger ON pawl_occurrences (schedule, trigger_key) WHERE trigger_key IS NOT NULL;
CREATE INDEX pawl_occurrences_age ON pawl_occurrences (at) WHERE open IS NULL;

-- A lease has expired when its clock is not the one that can be read now, or when expires has passed by that clock.
CREATE TABLE pawl_workers (
	id            {id}   NOT NULL PRIMARY KEY,
	lease         BIGINT NOT NULL,
	expires       BIGINT NOT NULL,
	clock         TEXT   NOT NULL,
	seen          BIGINT NOT NULL,
	registered    BIGINT NOT NULL,
	left_at       BIGINT,
	hostname      TEXT,
	machine       TEXT,
	boot          TEXT,
	pid_ns        TEXT,
	pid           BIGINT,
	process_start TEXT,
	build         TEXT,
	suspect_run   {id},
	suspect_since BIGINT
);

CREATE TABLE pawl_worker_versions (
	worker   {id}    NOT NULL,
	workflow TEXT{c} NOT NULL,
	version  TEXT{c} NOT NULL,
	PRIMARY KEY (worker, workflow, version)
);

CREATE VIEW pawl_runs_view AS
SELECT id, lineage, parent, relation, workflow, version, product_key, queue, state, intended, owner, epoch,
	{stamp}due{stamped} AS due, {stamp}created{stamped} AS created, {stamp}started{stamped} AS started,
	{stamp}ended{stamped} AS ended, {stamp}cancel_at{stamped} AS cancel_requested, {stamp}deadline{stamped} AS deadline, lost, releases, fault
FROM pawl_runs;

CREATE VIEW pawl_steps_view AS
SELECT run, name, kind, state, attempt, op_key, {stamp}begun{stamped} AS begun, {stamp}ended{stamped} AS ended,
	{stamp}next_at{stamped} AS next_at, inherited, provider, model, request_id, tokens_in, tokens_out, cost_micros,
	coalesce(latency_us, ended - begun) AS latency_us, fault
FROM pawl_steps;
