//! Which deliveries are sent now, and what follows from the answers. The shell only fetches.
//!
//! A delivery is leased in a transaction before it is sent. Whoever leased it records the outcome;
//! should the object die in between, the lease runs out and the delivery is sent again, under the
//! same id. What is in flight is a matter of the store, so no limit is forgotten with an instance.
//!
//! `apps.next_at` says when an app is next worth looking at: when its first pending delivery is
//! due or, while it has as many in flight as it may, when the first of those leases ends.
use crate::api::Config;
use crate::domain::apps;
use crate::error::Result;
use crate::ids::{AppId, DeliveryId, Id as _, TeamId};
use crate::limits::{
    SECOND_MS, WEBHOOK_ATTEMPTS_KEPT, WEBHOOK_FAILING_MS_MAX, WEBHOOK_LEASE_MS,
    WEBHOOK_UNSIGNED_WAIT_MS, WEBHOOKS_IN_FLIGHT_MAX, WEBHOOKS_PER_APP_MAX,
    WEBHOOKS_PER_FAILING_APP_MAX, WEBHOOKS_TO_FAILING_MAX,
};
use crate::params;
use crate::store::{Db, Tx};
use crate::webhooks::{address, schedule, signature};
use std::collections::HashMap;

const GONE: u16 = 410;

/// A leased delivery, ready to be sent.
#[derive(Debug)]
pub struct Sending {
    pub team_id: TeamId,
    pub app_id: AppId,
    pub delivery_id: DeliveryId,
    pub url: String,
    pub headers: [(&'static str, String); 4],
    pub body: String,
    /// Why it may not be sent to where it would go; an attempt that failed without a request.
    pub refused: Option<String>,
    lease_until: i64,
}

/// What an attempt came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Nothing where no answer came.
    pub status: Option<u16>,
    pub retry_after: Option<String>,
    pub error: Option<String>,
    /// The beginning of the answer.
    pub answer: Option<String>,
    pub was_slow: bool,
}

/// When the next delivery is due; nothing where none is pending.
pub fn next_at(db: &Db) -> Result<Option<i64>> {
    db.query_one(
        "SELECT min(at) FROM (
                SELECT min(next_at) AS at FROM apps WHERE next_at IS NOT NULL AND throttled = 0
                UNION ALL
                SELECT min(next_at) FROM apps WHERE next_at IS NOT NULL AND throttled = 1)",
        params![],
        |row| row.get(),
    )
}

/// An app with something due.
struct Due {
    team_id: TeamId,
    app_id: AppId,
    url: String,
    secret_version: i64,
    previous_secret_until: Option<i64>,
    is_throttled: bool,
}

/// Leases what may be sent now. Writes nothing when nothing is due.
///
/// Apps that failed last or were slow come after the others and share fewer places, and each app's
/// second delivery leaves a place for another app's first: so neither a dead endpoint nor a slow
/// one delays anybody else.
pub fn lease(db: &Db, config: &Config) -> Result<Vec<Sending>> {
    if next_at(db)?.is_none_or(|at| at > db.now_ms) {
        return Ok(Vec::new());
    }
    let Some(root) = &config.app_root_secret else { return postpone(db) };
    db.transaction(|tx| {
        let mut flying = Flying::read(tx)?;
        let mut leased = Vec::new();
        for is_throttled in [false, true] {
            let due = due(tx, is_throttled)?;
            for place in 1..=per_app(is_throttled) {
                for app in &due {
                    if !flying.has_room(app, place) {
                        continue;
                    }
                    if let Some(sending) = take(tx, config, root, app)? {
                        flying.add(app);
                        leased.push(sending);
                    }
                }
            }
            for app in &due {
                schedule_app(tx, &app.team_id, &app.app_id)?;
            }
        }
        Ok(leased)
    })
}

/// Nothing can be signed: looks again later.
fn postpone(db: &Db) -> Result<Vec<Sending>> {
    db.transaction(|tx| {
        for is_throttled in [false, true] {
            for Due { team_id, app_id, .. } in due(tx, is_throttled)? {
                tx.execute(
                    "UPDATE apps SET next_at = ?3 WHERE team_id = ?1 AND id = ?2",
                    params![&team_id, &app_id, tx.now_ms + WEBHOOK_UNSIGNED_WAIT_MS],
                )?;
            }
        }
        Ok(Vec::new())
    })
}

fn per_app(is_throttled: bool) -> usize {
    if is_throttled { WEBHOOKS_PER_FAILING_APP_MAX } else { WEBHOOKS_PER_APP_MAX }
}

/// How many deliveries are in flight.
struct Flying {
    by_app: HashMap<AppId, usize>,
    in_all: usize,
    to_throttled: usize,
}

impl Flying {
    fn read(tx: &Tx) -> Result<Flying> {
        let mut flying = Flying { by_app: HashMap::new(), in_all: 0, to_throttled: 0 };
        let leases = tx.query(
            "SELECT d.app_id, coalesce(a.throttled, 0)
               FROM app_webhook_deliveries d
               LEFT JOIN apps a ON a.team_id = d.team_id AND a.id = d.app_id
              WHERE d.lease_until > ?1
              LIMIT ?2",
            params![tx.now_ms, WEBHOOKS_IN_FLIGHT_MAX],
            |row| Ok((row.get::<AppId>()?, row.get::<bool>()?)),
        )?;
        for (app_id, is_throttled) in leases {
            flying.count(app_id, is_throttled);
        }
        Ok(flying)
    }

    fn count(&mut self, app_id: AppId, is_throttled: bool) {
        *self.by_app.entry(app_id).or_default() += 1;
        self.in_all += 1;
        self.to_throttled += usize::from(is_throttled);
    }

    fn add(&mut self, app: &Due) {
        self.count(app.app_id.clone(), app.is_throttled);
    }

    /// Whether the app may have its `place`th delivery in flight.
    fn has_room(&self, app: &Due, place: usize) -> bool {
        let all_max = WEBHOOKS_IN_FLIGHT_MAX - usize::from(place > 1);
        self.by_app.get(&app.app_id).is_none_or(|count| *count < place)
            && self.in_all < all_max
            && (!app.is_throttled || self.to_throttled < WEBHOOKS_TO_FAILING_MAX)
    }
}

/// The apps that have waited longest. Of those that are given nothing only the few that have
/// something in flight stay due, so nobody waits behind them.
fn due(tx: &Tx, is_throttled: bool) -> Result<Vec<Due>> {
    tx.query(
        "SELECT team_id, id, coalesce(webhook_url, ''), secret_version, previous_secret_until,
                throttled
           FROM apps
          WHERE next_at IS NOT NULL AND throttled = ?1 AND next_at <= ?2
          ORDER BY next_at
          LIMIT ?3",
        params![is_throttled, tx.now_ms, 2 * WEBHOOKS_IN_FLIGHT_MAX],
        |row| {
            Ok(Due {
                team_id: row.get()?,
                app_id: row.get()?,
                url: row.get()?,
                secret_version: row.get()?,
                previous_secret_until: row.get()?,
                is_throttled: row.get()?,
            })
        },
    )
}

/// Leases the app's first due delivery, if it has one and its team is not being deleted.
fn take(tx: &Tx, config: &Config, root: &str, due: &Due) -> Result<Option<Sending>> {
    let Due { team_id, app_id, url, secret_version, previous_secret_until, .. } = due;
    let lease_until = tx.now_ms + WEBHOOK_LEASE_MS;
    let taken = tx.execute_returning(
        "UPDATE app_webhook_deliveries SET lease_until = ?4, next_at = ?4
          WHERE id = (SELECT id FROM app_webhook_deliveries
                       WHERE team_id = ?1 AND app_id = ?2 AND state = 'pending' AND next_at <= ?3
                       ORDER BY next_at
                       LIMIT 1)
            AND NOT EXISTS (SELECT 1 FROM teams WHERE id = ?1 AND removing = 'delete')
      RETURNING id, body",
        params![team_id, app_id, tx.now_ms, lease_until],
        |row| Ok((row.get::<DeliveryId>()?, row.get::<String>()?)),
    )?;
    let Some((delivery_id, body)) = taken.into_iter().next() else { return Ok(None) };
    let key = |version| signature::key(root, team_id, app_id, version);
    let mut keys = vec![key(*secret_version)];
    if previous_secret_until.is_some_and(|until| until > tx.now_ms) {
        keys.push(key(secret_version - 1));
    }
    let timestamp_s = tx.now_ms / SECOND_MS;
    let signed = signature::header(&keys, delivery_id.as_str(), timestamp_s, body.as_bytes());
    let refused = address::check(url, config.webhook_allow_local).err();
    Ok(Some(Sending {
        team_id: team_id.clone(),
        app_id: app_id.clone(),
        url: url.clone(),
        headers: [
            ("content-type", "application/json".into()),
            ("webhook-id", delivery_id.to_string()),
            ("webhook-timestamp", timestamp_s.to_string()),
            ("webhook-signature", signed),
        ],
        delivery_id,
        body,
        refused: refused.map(|why| format!("the address {why}")),
        lease_until,
    }))
}

/// Works out when the app is next worth looking at: after every change of what it has pending, or
/// of whether and where it is sent.
pub fn schedule_app(tx: &Tx, team_id: &TeamId, app_id: &AppId) -> Result<()> {
    tx.execute(
        "UPDATE apps SET next_at =
                CASE WHEN webhook_url IS NULL OR disabled_at IS NOT NULL THEN NULL
                     WHEN (SELECT removing FROM teams WHERE id = ?1) = 'delete' THEN NULL
                     WHEN (SELECT count(*) FROM app_webhook_deliveries d
                            WHERE d.lease_until > ?3 AND d.team_id = ?1 AND d.app_id = ?2)
                          >= iif(throttled = 1, ?4, ?5)
                     THEN (SELECT min(d.lease_until) FROM app_webhook_deliveries d
                            WHERE d.lease_until > ?3 AND d.team_id = ?1 AND d.app_id = ?2)
                     ELSE (SELECT min(d.next_at) FROM app_webhook_deliveries d
                            WHERE d.team_id = ?1 AND d.app_id = ?2 AND d.state = 'pending')
                END
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, app_id, tx.now_ms, WEBHOOKS_PER_FAILING_APP_MAX, WEBHOOKS_PER_APP_MAX],
    )
}

/// Keeps what an attempt came to, if its lease still stands: the delivery's state, when it is due
/// again, and how its app is doing. 410, or days of nothing but failures, disable the webhook.
pub fn record(tx: &Tx, sending: &Sending, outcome: &Outcome) -> Result<()> {
    let Sending { team_id, app_id, delivery_id, lease_until, .. } = sending;
    let leased = tx.query_optional(
        "SELECT attempts FROM app_webhook_deliveries
          WHERE id = ?1 AND state = 'pending' AND lease_until = ?2",
        params![delivery_id, *lease_until],
        |row| row.get::<i64>(),
    )?;
    let Some(before) = leased else { return Ok(()) };

    let attempts = before + 1;
    let is_success = outcome.status.is_some_and(|status| (200..300).contains(&status));
    let is_gone = outcome.status == Some(GONE);
    let asked_ms = outcome.retry_after.as_deref();
    let asked_ms = asked_ms.and_then(|header| schedule::retry_after_ms(header, tx.now_ms));
    let random = u32::from_le_bytes(tx.random());
    let wait_ms = schedule::wait_ms(attempts, asked_ms, random)
        // Held, not lost: it goes out once the webhook is enabled again.
        .or(is_gone.then_some(WEBHOOK_LEASE_MS));
    let state = match wait_ms {
        _ if is_success => "delivered",
        Some(_) => "pending",
        None => "failed",
    };
    let settled_at = (state != "pending").then_some(tx.now_ms);
    let error = outcome.error.clone().or_else(|| match outcome.status {
        Some(status) if !is_success => Some(format!("answered {status}")),
        _ => None,
    });
    tx.execute(
        "UPDATE app_webhook_deliveries
            SET state = ?2, attempts = ?3, next_at = ?4, lease_until = NULL, last_status = ?5,
                last_error = ?6, settled_at = ?7
          WHERE id = ?1",
        params![
            delivery_id,
            state,
            attempts,
            tx.now_ms + wait_ms.unwrap_or_default(),
            outcome.status.map(i64::from),
            error.as_ref(),
            settled_at
        ],
    )?;
    log(tx, delivery_id, outcome, error.as_deref())?;
    let failing_since = tx.execute_returning(
        "UPDATE apps
            SET failing_since = iif(?3, NULL, coalesce(failing_since, CAST(?5 AS INTEGER))),
                throttled = iif(?3, CAST(?4 AS INTEGER), 1)
          WHERE team_id = ?1 AND id = ?2
      RETURNING failing_since",
        params![team_id, app_id, is_success, outcome.was_slow, tx.now_ms],
        |row| row.get::<Option<i64>>(),
    )?;
    let failing_since = failing_since.first().copied().flatten();
    if is_gone || failing_since.is_some_and(|at| tx.now_ms - at >= WEBHOOK_FAILING_MS_MAX) {
        apps::disable(tx, team_id, app_id)?;
    }
    schedule_app(tx, team_id, app_id)
}

/// Notes the attempt among the delivery's last ones.
fn log(tx: &Tx, delivery_id: &DeliveryId, outcome: &Outcome, error: Option<&str>) -> Result<()> {
    let attempts = tx.execute_returning(
        "INSERT INTO app_webhook_attempts (delivery_id, attempt, at, status, error, answer)
         VALUES (?1, (SELECT coalesce(max(attempt), 0) + 1
                        FROM app_webhook_attempts WHERE delivery_id = ?1), ?2, ?3, ?4, ?5)
         RETURNING attempt",
        params![
            delivery_id,
            tx.now_ms,
            outcome.status.map(i64::from),
            error,
            outcome.answer.as_deref()
        ],
        |row| row.get::<i64>(),
    )?;
    let last = attempts.first().copied().unwrap_or_default();
    tx.execute(
        "DELETE FROM app_webhook_attempts WHERE delivery_id = ?1 AND attempt <= ?2",
        params![delivery_id, last - WEBHOOK_ATTEMPTS_KEPT],
    )
}
