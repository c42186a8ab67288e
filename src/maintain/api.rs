//! What an admin sees and asks of maintenance.
use super::storage::{self, Counting, Counts};
use super::work::Walks;
use crate::api::{Answer, Body, Call, Job};
use crate::auth::Role;
use crate::error::{Error, Result};
use crate::guard;
use crate::limits::QUEUE_DEPTH_MAX;
use crate::params;
use crate::store::Db;
use serde_json::{Map, Value as Json, json};
use std::fmt::Write;
use std::rc::Rc;

/// Counts a queue's rows to one more than `QUEUE_DEPTH_MAX`.
macro_rules! depth {
    ($queue:literal) => {
        (
            $queue,
            concat!(
                "SELECT count(*) FROM (SELECT 1 FROM ",
                $queue,
                " WHERE team_id > '' LIMIT ?1)"
            ),
        )
    };
}

const QUEUES: &[(&str, &str)] = &[
    depth!("version_prune_queue"),
    depth!("message_prune_queue"),
    depth!("session_prune_queue"),
    depth!("upload_prune_queue"),
    depth!("parts_prune_queue"),
    depth!("blob_prune_queue"),
    depth!("content_prune_queue"),
    depth!("body_prune_queue"),
    depth!("staging_captures"),
    depth!("pending_uploads"),
];

fn depths(db: &Db) -> Result<Vec<(&'static str, i64)>> {
    let mut depths = Vec::with_capacity(QUEUES.len());
    for (queue, count) in QUEUES {
        let depth = db.query_one(count, params![QUEUE_DEPTH_MAX + 1], |row| row.get::<i64>())?;
        depths.push((*queue, depth));
    }
    Ok(depths)
}

/// `GET /maintain` says what the last passes did, how long the queues are (counted to
/// `QUEUE_DEPTH_MAX`, then `more`), and how far the walks over older rows have come. For admins.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    guard::role(&call.who, Role::Admin)?;

    let (passes, pass_due_at) = db.query_one(
        "SELECT passes_json, pass_due_at FROM maintain_state WHERE id = 1",
        params![],
        |row| Ok((row.get::<String>()?, row.get::<i64>()?)),
    )?;
    let passes: Json =
        serde_json::from_str(&passes).map_err(|e| Error::internal(format!("passes: {e}")))?;
    let queues = depths(db)?.into_iter().map(|(queue, depth)| {
        let more = depth > QUEUE_DEPTH_MAX;
        (queue.to_owned(), json!({ "depth": depth.min(QUEUE_DEPTH_MAX), "more": more }))
    });
    let walks = db.query(
        "SELECT name, after_rowid, done FROM maintain_backfill WHERE name > '' ORDER BY name LIMIT 100",
        params![],
        |row| {
            let (name, after_rowid): (String, i64) = (row.get()?, row.get()?);
            Ok((name, json!({ "after_rowid": after_rowid, "done": row.get::<bool>()? })))
        },
    )?;

    call.one(
        200,
        &json!({
            "running": call.runner.borrow().is_running(),
            "pass_due_at": pass_due_at,
            "passes": passes,
            "queues": queues.collect::<Map<_, _>>(),
            "walks": walks.into_iter().collect::<Map<_, _>>(),
        }),
    )
}

/// `POST /maintain` runs one pass now and answers what it did; while one is under way, that one.
/// For admins.
pub fn run(db: &Db, call: &Call) -> Result<Job> {
    call.no_fields()?;
    guard::role(&call.who, Role::Admin)?;

    let runner = Rc::clone(call.runner);
    let number = runner.borrow_mut().join(db.now_ms);

    let envelope = call.envelope();
    Ok(Box::new(move |db| {
        let outcome = runner.borrow_mut().slice(db, number);
        outcome.map(|outcome| envelope.one(200, &outcome)).transpose()
    }))
}

/// `GET /metrics` for Prometheus. Counters begin with the object's instance. For admins.
pub fn metrics(db: &Db, call: &Call) -> Result<Answer> {
    guard::role(&call.who, Role::Admin)?;

    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, kind: &str, values: &[(String, u64)]| {
        let _ = writeln!(text, "# HELP teamplane_{name} {help}\n# TYPE teamplane_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "teamplane_{name}{labels} {value}");
        }
    };
    let one = |value: u64| vec![(String::new(), value)];
    gauge("store_bytes", "Size of the store.", "gauge", &one(db.size_bytes()));
    let limit = call.config.store_bytes_max;
    gauge("store_bytes_max", "The size that fullness refers to.", "gauge", &one(limit));
    let depths = depths(db)?.into_iter().map(|(queue, depth)| {
        (format!("{{queue=\"{queue}\"}}"), depth.min(QUEUE_DEPTH_MAX).unsigned_abs())
    });
    let help = "Rows waiting for retention, counted to 10000.";
    gauge("queue_depth", help, "gauge", &depths.collect::<Vec<_>>());
    let walks = one(Walks::read(db)?.open().len() as u64);
    gauge("walks_open", "Walks over older rows under way.", "gauge", &walks);
    let runner = call.runner.borrow();
    let totals = &runner.totals;
    gauge("maintain_passes_total", "Retention passes.", "counter", &one(totals.passes));
    let help = "Steps of retention passes that failed.";
    gauge("maintain_failed_steps_total", help, "counter", &one(totals.failed_steps));
    gauge("maintain_units_total", "Units that passes spent.", "counter", &one(totals.units));
    let removed = totals.removed.iter().map(|(kind, n)| (format!("{{kind=\"{kind}\"}}"), *n));
    let help = "Rows removed by retention.";
    gauge("maintain_removed_total", help, "counter", &removed.collect::<Vec<_>>());
    let appends = &runner.appends;
    let help = "Appends to runs that were let in.";
    gauge("appends_submitted_total", help, "counter", &one(appends.submitted));
    let help = "Appends to runs that were stored.";
    gauge("appends_committed_total", help, "counter", &one(appends.committed));
    let help = "Appends to runs that were refused because too many waited.";
    gauge("appends_rejected_total", help, "counter", &one(appends.rejected));
    gauge("appends_wait_ms_total", "How long appends waited.", "counter", &one(appends.wait_ms));
    gauge("appends_wait_ms_max", "The longest wait.", "gauge", &one(appends.wait_ms_max));

    let answer = Answer { body: Body::Bytes(text.into_bytes()), ..Answer::default() };
    Ok(answer.with("Content-Type", "text/plain; version=0.0.4; charset=utf-8"))
}

/// `GET /usage/storage` says how many bytes and rows the store holds. Rows are counted at most
/// hourly, in slices. For admins.
pub fn storage(db: &Db, call: &Call) -> Result<Job> {
    guard::role(&call.who, Role::Admin)?;

    let (known, bytes_max) = (storage::counted(db)?, call.config.store_bytes_max);
    let mut counting = Counting::default();

    let envelope = call.envelope();
    let shape = move |db: &Db, (rows, counted_at): (Counts, i64)| {
        json!({
            "bytes": db.size_bytes(), "bytes_max": bytes_max,
            "rows": rows, "counted_at": counted_at,
        })
    };
    Ok(Box::new(move |db| {
        let counts = match &known {
            Some(counts) => Some(counts.clone()),
            None => counting.slice(db)?,
        };
        counts.map(|counts| envelope.one(200, &shape(db, counts))).transpose()
    }))
}
