-- SPDX-License-Identifier: Apache-2.0
--
-- A stowage store: what was measured in runs of a graph, and what was planned from it.
--
-- This file both makes a store and brings an older one up to date: each "=== version" section takes a file from the
-- version before to its own, and a file says in `user_version` which it has. So a section never changes once released;
-- what is new goes into a new section at the end.
--
-- Sizes are in bytes, times in nanoseconds, and say so in their names. Rows of every table but `runs` belong to a run;
-- the column named after what a row is (`op`, `tensor`, `use`, ...) numbers them from 0 within the run. NULL means "does
-- not apply": a tensor that outlived the run has no `free_event`.

-- === version 1: what was measured

PRAGMA user_version = 1;
PRAGMA application_id = 0x73746f77;  -- "stow": tells a store from any other SQLite file

-- One profiled execution of one graph. Runs with equal (graph_hash, signature, device, torch_version) ran the same step.
CREATE TABLE runs (
  id              INTEGER PRIMARY KEY AUTOINCREMENT,
  name            TEXT    NOT NULL,  -- the graph's, for people
  graph_hash      TEXT    NOT NULL,  -- of the canonical printed graph
  signature       TEXT    NOT NULL,  -- of the inputs: shapes, strides, dtypes, devices, aliases, scalars, grad mode
  device          TEXT    NOT NULL,  -- "cpu", or the name of the GPU
  torch_version   TEXT    NOT NULL,
  stowage_version TEXT    NOT NULL,  -- that wrote the run
  clock           TEXT    NOT NULL,  -- that start_ns and duration_ns were read from
  created_unix_ns INTEGER NOT NULL,
  execution       INTEGER NOT NULL CHECK (execution >= 0),        -- of the graph, from 1; the 1st is no steady state
  dropped_records INTEGER NOT NULL CHECK (dropped_records >= 0),  -- a lossy run is never planned from
  complete        INTEGER NOT NULL CHECK (complete IN (0, 1)),    -- 0: the run ended early
  duration_ns     INTEGER NOT NULL CHECK (duration_ns >= 0),
  peak_bytes      INTEGER NOT NULL CHECK (peak_bytes >= 0),       -- largest live sum, inputs and constants included
  graph_text      TEXT    NOT NULL   -- the program, printed
) STRICT;

CREATE INDEX runs_by_key ON runs (graph_hash, signature, device, torch_version);

-- A node of the graph as it ran; `op` is its place in program order.
CREATE TABLE ops (
  run_id      INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  op          INTEGER NOT NULL CHECK (op >= 0),
  name        TEXT    NOT NULL,  -- debug name of its first output, or its kind and number
  kind        TEXT    NOT NULL,  -- such as "aten::relu_"
  scope       TEXT    NOT NULL,  -- module scope, may be empty
  source      TEXT    NOT NULL,  -- "file.py:12", may be empty
  start_ns    INTEGER NOT NULL,  -- since the run began
  duration_ns INTEGER NOT NULL,
  PRIMARY KEY (run_id, op)
) STRICT, WITHOUT ROWID;

-- A storage: several graph values (views) may hold it.
CREATE TABLE tensors (
  run_id     INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  tensor     INTEGER NOT NULL CHECK (tensor >= 0),
  name       TEXT    NOT NULL,  -- debug name of the first value that holds it
  -- input: came from outside (parameter, optimizer state, batch). constant: held by the graph. intermediate: allocated
  -- and freed by the step. workspace: allocated and freed within one op. output: allocated by the step, outlives it.
  kind       TEXT    NOT NULL CHECK (kind IN ('input', 'constant', 'intermediate', 'workspace', 'output')),
  size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),  -- as requested
  dtype      TEXT    NOT NULL,  -- of the first value, may be empty
  shape      TEXT    NOT NULL,  -- of the first value, may be empty
  PRIMARY KEY (run_id, tensor)
) STRICT, WITHOUT ROWID;

-- An op reads, writes or returns a tensor.
CREATE TABLE uses (
  run_id   INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  use      INTEGER NOT NULL CHECK (use >= 0),
  op       INTEGER NOT NULL,
  tensor   INTEGER NOT NULL,
  kind     TEXT    NOT NULL CHECK (kind IN ('read', 'write', 'result')),
  position INTEGER CHECK ((position IS NULL) = (kind <> 'result')),  -- which output of the op holds it
  PRIMARY KEY (run_id, use),
  FOREIGN KEY (run_id, op) REFERENCES ops (run_id, op),
  FOREIGN KEY (run_id, tensor) REFERENCES tensors (run_id, tensor)
) STRICT, WITHOUT ROWID;

CREATE INDEX uses_by_tensor ON uses (run_id, tensor, op);
CREATE INDEX uses_by_op ON uses (run_id, op);

-- An op must follow an earlier one for a reason that uses do not show.
CREATE TABLE dependencies (
  run_id     INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  dependency INTEGER NOT NULL CHECK (dependency >= 0),
  op         INTEGER NOT NULL,
  after_op   INTEGER NOT NULL CHECK (after_op < op),
  -- value: takes a view, a size or a list that the earlier op made, or what may share its memory in another run. random:
  -- both draw random numbers. effect: side effects. barrier: one of them is not understood.
  reason     TEXT    NOT NULL CHECK (reason IN ('value', 'random', 'effect', 'barrier')),
  PRIMARY KEY (run_id, dependency),
  FOREIGN KEY (run_id, op) REFERENCES ops (run_id, op),
  FOREIGN KEY (run_id, after_op) REFERENCES ops (run_id, op)
) STRICT, WITHOUT ROWID;

CREATE INDEX dependencies_by_op ON dependencies (run_id, op);
CREATE INDEX dependencies_by_after_op ON dependencies (run_id, after_op);

-- One allocation, and its free. Events number both, together, from 0, as they happened: they are the store's clock.
CREATE TABLE allocations (
  run_id          INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  allocation      INTEGER NOT NULL CHECK (allocation >= 0),
  tensor          INTEGER NOT NULL,
  op              INTEGER NOT NULL,
  index_in_op     INTEGER NOT NULL CHECK (index_in_op >= 0),  -- it was the op's k-th allocation, from 0
  requested_bytes INTEGER NOT NULL CHECK (requested_bytes >= 0),
  rounded_bytes   INTEGER NOT NULL CHECK (rounded_bytes >= requested_bytes),  -- what the allocator took for it
  stream          INTEGER NOT NULL,  -- 0 on the CPU
  allocate_event  INTEGER NOT NULL CHECK (allocate_event >= 0),
  free_op         INTEGER,
  free_event      INTEGER CHECK (free_event > allocate_event),
  source          TEXT    NOT NULL CHECK (source IN ('allocator', 'cupti')),
  PRIMARY KEY (run_id, allocation),
  UNIQUE (run_id, op, index_in_op),
  CHECK ((free_op IS NULL) = (free_event IS NULL)),
  FOREIGN KEY (run_id, tensor) REFERENCES tensors (run_id, tensor),
  FOREIGN KEY (run_id, op) REFERENCES ops (run_id, op),
  FOREIGN KEY (run_id, free_op) REFERENCES ops (run_id, op)
) STRICT, WITHOUT ROWID;

CREATE INDEX allocations_by_tensor ON allocations (run_id, tensor);
CREATE INDEX allocations_by_free_op ON allocations (run_id, free_op);

-- How long each tensor lives: one row per allocation; inputs and constants have no events, they live throughout.
CREATE VIEW lifetimes AS
SELECT t.run_id, t.tensor, t.name, t.kind, coalesce(a.requested_bytes, t.size_bytes) AS size_bytes,
       a.op AS allocate_op, a.free_op, a.allocate_event, a.free_event,
       (SELECT min(u.op) FROM uses AS u WHERE u.run_id = t.run_id AND u.tensor = t.tensor) AS first_use_op,
       (SELECT max(u.op) FROM uses AS u WHERE u.run_id = t.run_id AND u.tensor = t.tensor) AS last_use_op
FROM tensors AS t LEFT JOIN allocations AS a ON a.run_id = t.run_id AND a.tensor = t.tensor;

-- Live bytes after each event of a run. Event -1 is the start: inputs and constants.
CREATE VIEW timeline AS
WITH changes (run_id, event, op, tensor, what, change_bytes) AS (
  SELECT r.id, -1, NULL, NULL, 'start',
         (SELECT coalesce(sum(t.size_bytes), 0) FROM tensors AS t
          WHERE t.run_id = r.id AND t.kind IN ('input', 'constant'))
  FROM runs AS r
  UNION ALL
  SELECT run_id, allocate_event, op, tensor, 'allocate', requested_bytes FROM allocations
  UNION ALL
  SELECT run_id, free_event, free_op, tensor, 'free', -requested_bytes FROM allocations WHERE free_event IS NOT NULL
)
SELECT run_id, event, op, tensor, what, change_bytes,
       sum(change_bytes) OVER (PARTITION BY run_id ORDER BY event ROWS UNBOUNDED PRECEDING) AS live_bytes
FROM changes;

-- The first event of a run at which most bytes are live.
CREATE VIEW peak AS
SELECT run_id, event, op, live_bytes
FROM (SELECT *, row_number() OVER (PARTITION BY run_id ORDER BY live_bytes DESC, event) AS place FROM timeline)
WHERE place = 1;

-- What lives at that event; sort by size_bytes for the biggest.
CREATE VIEW live_at_peak AS
SELECT run_id, tensor, name, kind, size_bytes FROM tensors WHERE kind IN ('input', 'constant')
UNION ALL
SELECT e.run_id, e.tensor, t.name, t.kind, sum(e.change_bytes)
FROM (SELECT *, first_value(event) OVER (PARTITION BY run_id ORDER BY live_bytes DESC, event) AS peak_event
      FROM timeline) AS e
JOIN tensors AS t ON t.run_id = e.run_id AND t.tensor = e.tensor
WHERE e.event <= e.peak_event
GROUP BY e.run_id, e.tensor
HAVING sum(e.change_bytes) > 0;

-- === version 2: what was planned

PRAGMA user_version = 2;

-- The plan of a run. Its op order, slots and points are in the tables below.
CREATE TABLE plans (
  run_id             INTEGER PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
  peak_bytes         INTEGER NOT NULL CHECK (peak_bytes >= 0),          -- largest live sum in the planned order
  program_peak_bytes INTEGER NOT NULL CHECK (program_peak_bytes >= 0),  -- the same for the program order
  bound_bytes        INTEGER NOT NULL CHECK (bound_bytes >= 0),         -- no order has a lower peak
  order_status       TEXT    NOT NULL CHECK (order_status IN ('optimal', 'feasible', 'infeasible', 'timed_out')),
  arena_bytes        INTEGER NOT NULL CHECK (arena_bytes >= 0),         -- the block that holds all slots
  arena_bound_bytes  INTEGER NOT NULL CHECK (arena_bound_bytes >= 0),   -- no layout of this order needs less
  layout_status      TEXT    NOT NULL CHECK (layout_status IN ('optimal', 'feasible', 'infeasible', 'timed_out')),
  planning_ns        INTEGER NOT NULL CHECK (planning_ns >= 0),
  graph_text         TEXT    NOT NULL  -- the planned graph, printed
) STRICT;

-- The op that runs at each step.
CREATE TABLE plan_order (
  run_id INTEGER NOT NULL REFERENCES plans (run_id) ON DELETE CASCADE,
  step   INTEGER NOT NULL CHECK (step >= 0),
  op     INTEGER NOT NULL,
  PRIMARY KEY (run_id, step),
  UNIQUE (run_id, op),
  FOREIGN KEY (run_id, op) REFERENCES ops (run_id, op)
) STRICT, WITHOUT ROWID;

-- A tensor's place in the arena: [offset_bytes, offset_bytes + size_bytes).
CREATE TABLE slots (
  run_id       INTEGER NOT NULL REFERENCES plans (run_id) ON DELETE CASCADE,
  slot         INTEGER NOT NULL CHECK (slot >= 0),
  tensor       INTEGER NOT NULL,
  offset_bytes INTEGER NOT NULL CHECK (offset_bytes >= 0),
  size_bytes   INTEGER NOT NULL CHECK (size_bytes >= 0),  -- rounded up to the alignment
  PRIMARY KEY (run_id, slot),
  UNIQUE (run_id, tensor),
  FOREIGN KEY (run_id, tensor) REFERENCES tensors (run_id, tensor)
) STRICT, WITHOUT ROWID;

-- What the planned graph says about a tensor at an op.
CREATE TABLE points (
  run_id INTEGER NOT NULL REFERENCES plans (run_id) ON DELETE CASCADE,
  point  INTEGER NOT NULL CHECK (point >= 0),
  kind   TEXT    NOT NULL CHECK (kind IN ('place', 'reuse', 'free')),  -- while the op runs, or (free) after it
  op     INTEGER NOT NULL,
  tensor INTEGER NOT NULL,
  PRIMARY KEY (run_id, point),
  FOREIGN KEY (run_id, op) REFERENCES ops (run_id, op),
  FOREIGN KEY (run_id, tensor) REFERENCES tensors (run_id, tensor)
) STRICT, WITHOUT ROWID;

CREATE INDEX points_by_op ON points (run_id, op);
CREATE INDEX points_by_tensor ON points (run_id, tensor);

-- Live bytes after each event of the planned step, the run replayed in the planned order: an op's allocations and the
-- frees of its workspace as they were recorded, then the plan's free points after it. Event -1 is the start.
CREATE VIEW planned_timeline AS
WITH changes (run_id, step, after_op, rank, op, tensor, what, change_bytes) AS (
  SELECT p.run_id, -1, 0, 0, NULL, NULL, 'start',
         (SELECT coalesce(sum(t.size_bytes), 0) FROM tensors AS t
          WHERE t.run_id = p.run_id AND t.kind IN ('input', 'constant'))
  FROM plans AS p
  UNION ALL
  SELECT o.run_id, o.step, 0, a.allocate_event, o.op, a.tensor, 'allocate', a.requested_bytes
  FROM plan_order AS o JOIN allocations AS a ON a.run_id = o.run_id AND a.op = o.op
  UNION ALL
  SELECT o.run_id, o.step, 0, a.free_event, o.op, a.tensor, 'free', -a.requested_bytes
  FROM plan_order AS o
  JOIN allocations AS a ON a.run_id = o.run_id AND a.op = o.op
  JOIN tensors AS t ON t.run_id = a.run_id AND t.tensor = a.tensor
  WHERE t.kind = 'workspace' AND a.free_event IS NOT NULL
  UNION ALL
  SELECT o.run_id, o.step, 1, f.point, o.op, f.tensor, 'free', -t.size_bytes
  FROM plan_order AS o
  JOIN points AS f ON f.run_id = o.run_id AND f.op = o.op AND f.kind = 'free'
  JOIN tensors AS t ON t.run_id = f.run_id AND t.tensor = f.tensor
)
SELECT run_id, row_number() OVER running - 2 AS event, step, op, tensor, what, change_bytes,
       sum(change_bytes) OVER running AS live_bytes
FROM changes
WINDOW running AS (PARTITION BY run_id ORDER BY step, after_op, rank ROWS UNBOUNDED PRECEDING);

-- As `peak` and `live_at_peak`, for the planned step.
CREATE VIEW planned_peak AS
SELECT run_id, event, step, op, live_bytes
FROM (SELECT *, row_number() OVER (PARTITION BY run_id ORDER BY live_bytes DESC, event) AS place FROM planned_timeline)
WHERE place = 1;

CREATE VIEW live_at_planned_peak AS
SELECT t.run_id, t.tensor, t.name, t.kind, t.size_bytes
FROM plans AS p JOIN tensors AS t ON t.run_id = p.run_id AND t.kind IN ('input', 'constant')
UNION ALL
SELECT e.run_id, e.tensor, t.name, t.kind, sum(e.change_bytes)
FROM (SELECT *, first_value(event) OVER (PARTITION BY run_id ORDER BY live_bytes DESC, event) AS peak_event
      FROM planned_timeline) AS e
JOIN tensors AS t ON t.run_id = e.run_id AND t.tensor = e.tensor
WHERE e.event <= e.peak_event
GROUP BY e.run_id, e.tensor
HAVING sum(e.change_bytes) > 0;

-- === version 3: what takes the memory of a dying input

PRAGMA user_version = 3;

-- Version of the rules by which stowage read the run: what may move, what may be reused. Part of the key; '' in runs of
-- before, whose plans are followed no more.
ALTER TABLE runs ADD COLUMN rules TEXT NOT NULL DEFAULT '';

DROP INDEX runs_by_key;
CREATE INDEX runs_by_key ON runs (graph_hash, signature, device, torch_version, rules);

-- A tensor that its op may write over an input that dies there: element by element, in the same layout.
CREATE TABLE reuses (
  run_id    INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  reuse     INTEGER NOT NULL CHECK (reuse >= 0),
  op        INTEGER NOT NULL,
  tensor    INTEGER NOT NULL,  -- that the op allocates
  of_tensor INTEGER NOT NULL CHECK (of_tensor <> tensor),  -- whose memory it may take
  position  INTEGER NOT NULL CHECK (position >= 0),        -- which input of the op holds that
  layout    INTEGER NOT NULL,  -- digest of the dtypes, sizes and strides of the op's inputs
  PRIMARY KEY (run_id, reuse),
  FOREIGN KEY (run_id, op) REFERENCES ops (run_id, op),
  FOREIGN KEY (run_id, tensor) REFERENCES tensors (run_id, tensor),
  FOREIGN KEY (run_id, of_tensor) REFERENCES tensors (run_id, tensor)
) STRICT, WITHOUT ROWID;

CREATE INDEX reuses_by_op ON reuses (run_id, op);
CREATE INDEX reuses_by_tensor ON reuses (run_id, tensor);
CREATE INDEX reuses_by_of_tensor ON reuses (run_id, of_tensor);

-- Of a point of kind 'reuse': the tensor whose memory `tensor` takes, and which ends there, without a 'free' point.
ALTER TABLE points ADD COLUMN of_tensor INTEGER CHECK ((of_tensor IS NULL) = (kind <> 'reuse'));

-- As before, and a tensor whose memory is taken ends just before the allocation that takes it.
DROP VIEW planned_timeline;
CREATE VIEW planned_timeline AS
WITH changes (run_id, step, after_op, rank, op, tensor, what, change_bytes) AS (
  SELECT p.run_id, -1, 0, 0, NULL, NULL, 'start',
         (SELECT coalesce(sum(t.size_bytes), 0) FROM tensors AS t
          WHERE t.run_id = p.run_id AND t.kind IN ('input', 'constant'))
  FROM plans AS p
  UNION ALL
  SELECT o.run_id, o.step, 0, 2 * a.allocate_event, o.op, a.tensor, 'allocate', a.requested_bytes
  FROM plan_order AS o JOIN allocations AS a ON a.run_id = o.run_id AND a.op = o.op
  UNION ALL
  SELECT o.run_id, o.step, 0, 2 * a.allocate_event - 1, o.op, r.of_tensor, 'reuse', -t.size_bytes
  FROM plan_order AS o
  JOIN points AS r ON r.run_id = o.run_id AND r.op = o.op AND r.kind = 'reuse'
  JOIN allocations AS a ON a.run_id = r.run_id AND a.tensor = r.tensor
  JOIN tensors AS t ON t.run_id = r.run_id AND t.tensor = r.of_tensor
  UNION ALL
  SELECT o.run_id, o.step, 0, 2 * a.free_event, o.op, a.tensor, 'free', -a.requested_bytes
  FROM plan_order AS o
  JOIN allocations AS a ON a.run_id = o.run_id AND a.op = o.op
  JOIN tensors AS t ON t.run_id = a.run_id AND t.tensor = a.tensor
  WHERE t.kind = 'workspace' AND a.free_event IS NOT NULL
  UNION ALL
  SELECT o.run_id, o.step, 1, f.point, o.op, f.tensor, 'free', -t.size_bytes
  FROM plan_order AS o
  JOIN points AS f ON f.run_id = o.run_id AND f.op = o.op AND f.kind = 'free'
  JOIN tensors AS t ON t.run_id = f.run_id AND t.tensor = f.tensor
)
SELECT run_id, row_number() OVER running - 2 AS event, step, op, tensor, what, change_bytes,
       sum(change_bytes) OVER running AS live_bytes
FROM changes
WINDOW running AS (PARTITION BY run_id ORDER BY step, after_op, rank ROWS UNBOUNDED PRECEDING);

-- === version 4: what CUPTI saw

PRAGMA user_version = 4;

ALTER TABLE runs ADD COLUMN alignment_bytes INTEGER NOT NULL DEFAULT 64 CHECK (alignment_bytes > 0);  -- of slots
-- Allocations of which CUPTI and the allocator report unlike sizes; `size_sources` shows both. The `source` of an
-- allocation is 'cupti' where CUPTI saw it with the size that the allocator asked for.
ALTER TABLE runs ADD COLUMN size_mismatches INTEGER NOT NULL DEFAULT 0 CHECK (size_mismatches >= 0);

-- No slot lies across this offset, so that the arena may be two blocks of memory; 0: it must be one.
ALTER TABLE plans ADD COLUMN cut_bytes INTEGER NOT NULL DEFAULT 0 CHECK (cut_bytes >= 0);

-- The tables below are empty for runs on the CPU. Their times are on the run's clock, since the run began; where `op` is
-- NULL no op of the run was at work.

-- A kernel on the device, and the op that launched it.
CREATE TABLE kernels (
  run_id      INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  kernel      INTEGER NOT NULL CHECK (kernel >= 0),
  op          INTEGER,
  name        TEXT    NOT NULL,  -- demangled
  start_ns    INTEGER NOT NULL,
  duration_ns INTEGER NOT NULL CHECK (duration_ns >= 0),
  stream      INTEGER NOT NULL,
  PRIMARY KEY (run_id, kernel),
  FOREIGN KEY (run_id, op) REFERENCES ops (run_id, op)
) STRICT, WITHOUT ROWID;

CREATE INDEX kernels_by_op ON kernels (run_id, op);

-- A copy on the device, or between it and the host; kind 'set' fills memory with one value.
CREATE TABLE copies (
  run_id      INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  copy        INTEGER NOT NULL CHECK (copy >= 0),
  op          INTEGER,
  kind        TEXT    NOT NULL CHECK (kind IN ('host_to_device', 'device_to_host', 'device_to_device', 'peer_to_peer',
                                               'other', 'set')),
  size_bytes  INTEGER NOT NULL CHECK (size_bytes >= 0),
  start_ns    INTEGER NOT NULL,
  duration_ns INTEGER NOT NULL CHECK (duration_ns >= 0),
  stream      INTEGER NOT NULL,
  PRIMARY KEY (run_id, copy),
  FOREIGN KEY (run_id, op) REFERENCES ops (run_id, op)
) STRICT, WITHOUT ROWID;

CREATE INDEX copies_by_op ON copies (run_id, op);

-- The driver allocated or freed device memory; rows number these as they happened.
CREATE TABLE device_memory (
  run_id     INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  change     INTEGER NOT NULL CHECK (change >= 0),
  op         INTEGER,
  kind       TEXT    NOT NULL CHECK (kind IN ('allocate', 'free')),
  address    INTEGER NOT NULL,
  size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
  time_ns    INTEGER NOT NULL,
  allocation INTEGER,  -- that made this change; NULL: none of ours
  PRIMARY KEY (run_id, change),
  UNIQUE (run_id, allocation, kind),
  FOREIGN KEY (run_id, op) REFERENCES ops (run_id, op),
  FOREIGN KEY (run_id, allocation) REFERENCES allocations (run_id, allocation)
) STRICT, WITHOUT ROWID;

CREATE INDEX device_memory_by_op ON device_memory (run_id, op);

-- The sizes of each allocation that CUPTI saw: what the allocator was asked for, and what the driver was.
CREATE VIEW size_sources AS
SELECT a.run_id, a.allocation, t.name, a.op, a.requested_bytes AS allocator_bytes, m.size_bytes AS cupti_bytes
FROM device_memory AS m
JOIN allocations AS a ON a.run_id = m.run_id AND a.allocation = m.allocation
JOIN tensors AS t ON t.run_id = a.run_id AND t.tensor = a.tensor
WHERE m.kind = 'allocate';

-- What each op had the device do; ops that had it do nothing are left out.
CREATE VIEW op_device_time AS
SELECT o.run_id, o.op, o.name, o.kind, count(w.kernel_ns) AS kernels, coalesce(sum(w.kernel_ns), 0) AS kernel_ns,
       count(w.copy_ns) AS copies, coalesce(sum(w.copy_ns), 0) AS copy_ns
FROM ops AS o
JOIN (SELECT run_id, op, duration_ns AS kernel_ns, NULL AS copy_ns FROM kernels
      UNION ALL
      SELECT run_id, op, NULL, duration_ns FROM copies) AS w ON w.run_id = o.run_id AND w.op = o.op
GROUP BY o.run_id, o.op;

-- === version 5: steps of a loop

PRAGMA user_version = 5;

-- graph: a run is one execution of a graph, as before. step: it is one step of a loop, between marks. Of a step,
-- `graph_hash` is of the command that runs the loop, `signature` of the sizes that the step allocates. Its ops are the
-- outermost ones as they came, from any thread; `scope` is the autograd node or the `record_function` that they ran in,
-- and ops of kind 'outside' stand for allocations that no op made. Allocations of less than 1 KiB are left out, uses
-- are not known, and nothing moves: `plan_order` is the program order, whose peak is its own bound.
ALTER TABLE runs ADD COLUMN kind TEXT NOT NULL DEFAULT 'graph' CHECK (kind IN ('graph', 'step'));

ALTER TABLE allocations ADD COLUMN lane INTEGER NOT NULL DEFAULT 0 CHECK (lane >= 0);  -- the thread; 0 began the run

-- An allocation of a step that the next step frees, as gradients may live until `zero_grad`; its own `free_event` is
-- NULL. A step that repeats begins with what the one before left to it, and frees that at the same op and event.
CREATE TABLE carried (
  run_id     INTEGER NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
  allocation INTEGER NOT NULL,
  free_op    INTEGER NOT NULL,
  free_event INTEGER NOT NULL CHECK (free_event >= 0),
  PRIMARY KEY (run_id, allocation),
  FOREIGN KEY (run_id, allocation) REFERENCES allocations (run_id, allocation),
  FOREIGN KEY (run_id, free_op) REFERENCES ops (run_id, op)
) STRICT, WITHOUT ROWID;

CREATE INDEX carried_by_free_op ON carried (run_id, free_op);

-- Where the tensor lies in every second step; NULL: where it lies in all.
ALTER TABLE slots ADD COLUMN other_offset_bytes INTEGER CHECK (other_offset_bytes >= 0);

-- As before, and where the next step frees what this one allocates.
DROP VIEW lifetimes;
CREATE VIEW lifetimes AS
SELECT t.run_id, t.tensor, t.name, t.kind, coalesce(a.requested_bytes, t.size_bytes) AS size_bytes,
       a.op AS allocate_op, a.free_op, a.allocate_event, a.free_event,
       (SELECT min(u.op) FROM uses AS u WHERE u.run_id = t.run_id AND u.tensor = t.tensor) AS first_use_op,
       (SELECT max(u.op) FROM uses AS u WHERE u.run_id = t.run_id AND u.tensor = t.tensor) AS last_use_op,
       c.free_op AS next_free_op, c.free_event AS next_free_event
FROM tensors AS t LEFT JOIN allocations AS a ON a.run_id = t.run_id AND a.tensor = t.tensor
LEFT JOIN carried AS c ON c.run_id = a.run_id AND c.allocation = a.allocation;

-- As before, and a step begins with what the one before left to it. At one event, frees come first.
DROP VIEW timeline;
CREATE VIEW timeline AS
WITH changes (run_id, event, op, tensor, what, change_bytes) AS (
  SELECT r.id, -1, NULL, NULL, 'start',
         (SELECT coalesce(sum(t.size_bytes), 0) FROM tensors AS t
          WHERE t.run_id = r.id AND t.kind IN ('input', 'constant')) +
         (SELECT coalesce(sum(a.requested_bytes), 0) FROM carried AS c
          JOIN allocations AS a ON a.run_id = c.run_id AND a.allocation = c.allocation WHERE c.run_id = r.id)
  FROM runs AS r
  UNION ALL
  SELECT run_id, allocate_event, op, tensor, 'allocate', requested_bytes FROM allocations
  UNION ALL
  SELECT run_id, free_event, free_op, tensor, 'free', -requested_bytes FROM allocations WHERE free_event IS NOT NULL
  UNION ALL
  SELECT c.run_id, c.free_event, c.free_op, a.tensor, 'free', -a.requested_bytes
  FROM carried AS c JOIN allocations AS a ON a.run_id = c.run_id AND a.allocation = c.allocation
)
SELECT run_id, event, op, tensor, what, change_bytes,
       sum(change_bytes) OVER (PARTITION BY run_id ORDER BY event, change_bytes ROWS UNBOUNDED PRECEDING) AS live_bytes
FROM changes;

DROP VIEW live_at_peak;
CREATE VIEW live_at_peak AS
SELECT run_id, tensor, name, kind, size_bytes FROM tensors WHERE kind IN ('input', 'constant')
UNION ALL
SELECT e.run_id, e.tensor, t.name, t.kind, sum(e.change_bytes)
FROM (SELECT l.run_id, l.tensor, l.change_bytes
      FROM timeline AS l JOIN peak AS p ON p.run_id = l.run_id AND l.event <= p.event
      UNION ALL
      SELECT a.run_id, a.tensor, a.requested_bytes
      FROM carried AS c JOIN allocations AS a ON a.run_id = c.run_id AND a.allocation = c.allocation) AS e
JOIN tensors AS t ON t.run_id = e.run_id AND t.tensor = e.tensor
GROUP BY e.run_id, e.tensor
HAVING sum(e.change_bytes) > 0;

-- As before for graphs. A step as planned is the step as it was: it only lies elsewhere.
DROP VIEW planned_timeline;
CREATE VIEW planned_timeline AS
WITH changes (run_id, step, after_op, rank, op, tensor, what, change_bytes) AS (
  SELECT p.run_id, -1, 0, 0, NULL, NULL, 'start',
         (SELECT coalesce(sum(t.size_bytes), 0) FROM tensors AS t
          WHERE t.run_id = p.run_id AND t.kind IN ('input', 'constant'))
  FROM plans AS p JOIN runs AS r ON r.id = p.run_id WHERE r.kind = 'graph'
  UNION ALL
  SELECT o.run_id, o.step, 0, 2 * a.allocate_event, o.op, a.tensor, 'allocate', a.requested_bytes
  FROM plan_order AS o JOIN runs AS r ON r.id = o.run_id AND r.kind = 'graph'
  JOIN allocations AS a ON a.run_id = o.run_id AND a.op = o.op
  UNION ALL
  SELECT o.run_id, o.step, 0, 2 * a.allocate_event - 1, o.op, r.of_tensor, 'reuse', -t.size_bytes
  FROM plan_order AS o
  JOIN points AS r ON r.run_id = o.run_id AND r.op = o.op AND r.kind = 'reuse'
  JOIN allocations AS a ON a.run_id = r.run_id AND a.tensor = r.tensor
  JOIN tensors AS t ON t.run_id = r.run_id AND t.tensor = r.of_tensor
  UNION ALL
  SELECT o.run_id, o.step, 0, 2 * a.free_event, o.op, a.tensor, 'free', -a.requested_bytes
  FROM plan_order AS o JOIN runs AS r ON r.id = o.run_id AND r.kind = 'graph'
  JOIN allocations AS a ON a.run_id = o.run_id AND a.op = o.op
  JOIN tensors AS t ON t.run_id = a.run_id AND t.tensor = a.tensor
  WHERE t.kind = 'workspace' AND a.free_event IS NOT NULL
  UNION ALL
  SELECT o.run_id, o.step, 1, f.point, o.op, f.tensor, 'free', -t.size_bytes
  FROM plan_order AS o JOIN runs AS r ON r.id = o.run_id AND r.kind = 'graph'
  JOIN points AS f ON f.run_id = o.run_id AND f.op = o.op AND f.kind = 'free'
  JOIN tensors AS t ON t.run_id = f.run_id AND t.tensor = f.tensor
)
SELECT run_id, row_number() OVER running - 2 AS event, step, op, tensor, what, change_bytes,
       sum(change_bytes) OVER running AS live_bytes
FROM changes
WINDOW running AS (PARTITION BY run_id ORDER BY step, after_op, rank ROWS UNBOUNDED PRECEDING)
UNION ALL
SELECT l.run_id, l.event, coalesce(l.op, -1), l.op, l.tensor, l.what, l.change_bytes, l.live_bytes
FROM timeline AS l JOIN runs AS r ON r.id = l.run_id AND r.kind = 'step' JOIN plans AS p ON p.run_id = l.run_id;

DROP VIEW live_at_planned_peak;
CREATE VIEW live_at_planned_peak AS
SELECT t.run_id, t.tensor, t.name, t.kind, t.size_bytes
FROM plans AS p JOIN tensors AS t ON t.run_id = p.run_id AND t.kind IN ('input', 'constant')
UNION ALL
SELECT e.run_id, e.tensor, t.name, t.kind, sum(e.change_bytes)
FROM (SELECT l.run_id, l.tensor, l.change_bytes
      FROM planned_timeline AS l JOIN planned_peak AS p ON p.run_id = l.run_id AND l.event <= p.event
      UNION ALL
      SELECT a.run_id, a.tensor, a.requested_bytes
      FROM carried AS c JOIN allocations AS a ON a.run_id = c.run_id AND a.allocation = c.allocation
      JOIN plans AS p ON p.run_id = c.run_id) AS e
JOIN tensors AS t ON t.run_id = e.run_id AND t.tensor = e.tensor
GROUP BY e.run_id, e.tensor
HAVING sum(e.change_bytes) > 0;

-- === version 6: what runs again to stay within a budget

PRAGMA user_version = 6;

-- Run again on the same inputs, the op makes the same bits and has no other effect; 0 in runs of before.
ALTER TABLE ops ADD COLUMN repeatable INTEGER NOT NULL DEFAULT 0 CHECK (repeatable IN (0, 1));

-- In a run of a graph in which ops run again: the op of the program of which this is an execution. NULL in others.
ALTER TABLE ops ADD COLUMN program_op INTEGER CHECK (program_op >= 0);

-- What a plan was to stay within, and what that takes; times are of the ops' durations, together.
CREATE TABLE budgets (
  run_id               INTEGER PRIMARY KEY REFERENCES plans (run_id) ON DELETE CASCADE,
  limit_bytes          INTEGER CHECK (limit_bytes > 0),  -- of the peak; NULL: none
  limit_ns             INTEGER CHECK (limit_ns > 0),     -- NULL: none
  unplanned_peak_bytes INTEGER NOT NULL CHECK (unplanned_peak_bytes >= 0),
  unplanned_ns         INTEGER NOT NULL CHECK (unplanned_ns >= 0),
  predicted_ns         INTEGER NOT NULL CHECK (predicted_ns >= 0),
  bound_ns             INTEGER NOT NULL CHECK (bound_ns >= 0),          -- no schedule with this peak takes less
  bound_peak_bytes     INTEGER NOT NULL CHECK (bound_peak_bytes >= 0),  -- no schedule needs less, whatever runs again
  status               TEXT    NOT NULL CHECK (status IN ('optimal', 'feasible', 'infeasible', 'timed_out'))
) STRICT;
