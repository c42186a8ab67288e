//! What an admin sees and asks of an app's deliveries.
use crate::api::{Answer, Call, Job};
use crate::auth::{self, Principal, Role};
use crate::domain::apps::{self, App};
use crate::domain::event_log::{self, Logged};
use crate::domain::{delivering, journal, outbox};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{AppId, DeliveryId, Id, TeamId};
use crate::limits::{
    RECOVERED_ROWS_MAX, ROWS_EXAMINED_MAX, ROWS_FILTERED_AT_ONCE, SAFE_INTEGER_MAX,
};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Row, Tx};
use serde_json::json;

#[derive(serde::Serialize)]
struct Delivery {
    id: DeliveryId,
    event_type: String,
    state: String,
    attempts: i64,
    next_at: Option<i64>,
    last_status: Option<i64>,
    last_error: Option<String>,
    created_at: i64,
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Pending,
    Delivered,
    Failed,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    limit: Option<i64>,
    cursor: Option<String>,
    state: Option<State>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Recover {
    since: i64,
}

/// `GET /apps/{app}/deliveries` lists an app's deliveries by id, or those in one state. For admins.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let ListQuery { limit, cursor, state } = call.query()?;
    let state = state.map_or("", |state| match state {
        State::Pending => "pending",
        State::Delivered => "delivered",
        State::Failed => "failed",
    });
    let filters = format!("{}\n{state}", call.segment(0));
    let page = Keyset::new(call, &filters, &PageQuery { limit, cursor })?;
    let app = apps::governed(db, call)?;

    let team_id = &call.who.team_id;
    let deliveries = db.query(
        "SELECT d.id, d.event_type, d.state, d.attempts, d.next_at, d.last_status, d.last_error,
                d.created_at
           FROM (SELECT id FROM app_webhook_deliveries
                  WHERE team_id = ?1 AND app_id = ?2 AND id > ?3
                  ORDER BY id
                  LIMIT ?4) examined
          CROSS JOIN app_webhook_deliveries d ON d.id = examined.id
          WHERE ?5 IN ('', d.state)
          ORDER BY examined.id
          LIMIT ?6",
        params![team_id, &app.id, page.after(), ROWS_EXAMINED_MAX, state, page.limit + 1],
        |row| read(row).map(|delivery| (delivery.id.to_string(), delivery)),
    )?;
    let (items, next) = page.page_of_examined(deliveries, || {
        db.query_optional(
            "SELECT id FROM app_webhook_deliveries
              WHERE team_id = ?1 AND app_id = ?2 AND id > ?3
              ORDER BY id LIMIT 1 OFFSET ?4",
            params![team_id, &app.id, page.after(), ROWS_EXAMINED_MAX - 1],
            |row| row.get(),
        )
    })?;

    call.list(&items, next.as_deref())
}

/// `POST /apps/{app}/test` makes one delivery of the type `webhook.test`, whatever the app has
/// subscribed to. For admins.
///
/// `409 conflict` without a webhook and while it is disabled.
pub fn test(tx: &Tx, call: &Call) -> Result<Answer> {
    call.no_fields()?;
    let app = apps::governed(tx, call)?;
    apps::root_secret(call.config)?;
    let app_id = with_address(&app)?;
    if app.disabled_at.is_some() {
        return Err(Error::conflict("the webhook is disabled; enable it first"));
    }

    let team_id = &call.who.team_id;
    let delivery_id: DeliveryId = tx.new_id();
    let name = "webhook.test";
    let body = outbox::body(name, tx.now_ms, &json!({ "team_id": team_id, "app_id": app_id }));
    outbox::insert(tx, team_id, name, &body, tx.now_ms, |_| delivery_id.clone(), &[app_id])?;

    call.one(201, &load(tx, team_id, app_id, &delivery_id)?)
}

/// `POST /apps/{app}/deliveries/{delivery}/retry` has a delivery sent now: one that failed with
/// all its attempts before it, one that is pending without waiting. One of a disabled webhook is
/// held as it is. For admins.
///
/// `409 conflict` for one that was delivered.
pub fn retry(tx: &Tx, call: &Call) -> Result<Answer> {
    call.no_fields()?;
    let app = apps::governed(tx, call)?;
    let team_id = &call.who.team_id;
    let before = load(tx, team_id, &app.id, &call.id(1)?)?;
    if before.state == "delivered" {
        return Err(Error::conflict("it was delivered; what was sent is not sent again"));
    }

    // One in flight is left to whoever leased it.
    tx.execute(
        "UPDATE app_webhook_deliveries
            SET attempts = iif(state = 'failed', 0, attempts), state = 'pending', next_at = ?2,
                settled_at = NULL
          WHERE id = ?1 AND (lease_until IS NULL OR lease_until <= ?2)",
        params![&before.id, tx.now_ms],
    )?;
    delivering::schedule_app(tx, team_id, &app.id)?;
    journal::write(tx, call, "delivery.retried", before.id.as_str())?;

    call.one(200, &load(tx, team_id, &app.id, &before.id)?)
}

/// `POST /apps/{app}/deliveries/recover` makes the deliveries that an app missed since a moment,
/// from the events still kept, and sends failed ones again. Answers how many, and where it stopped
/// the moment to go on from. For admins.
///
/// `409 conflict` without a webhook.
pub fn recover(db: &Db, call: &Call) -> Result<Job> {
    let Recover { since } = call.json()?;
    guard::in_range("since", since, 0..=SAFE_INTEGER_MAX)?;
    let app = apps::governed(db, call)?;
    with_address(&app)?;

    let team_id = call.who.team_id.clone();
    let newest = event_log::log(db, &team_id)?.newest;
    let after = before_moment(db, &team_id, since, newest)?;
    db.transaction(|tx| journal::write(tx, call, "app.recovered", app.id.as_str()))?;

    let mut run = Recovery { since, after, newest, ..Recovery::default() };
    let (admin, envelope) = (call.who.clone(), call.envelope());
    Ok(Box::new(move |db| {
        guard::role(&auth::again(db, &admin)?, Role::Admin)?;
        let app = apps::load(db, &admin.team_id, &app.id)?;
        let whole = run.slice(db, &admin, &app)?;
        whole.then(|| envelope.one(200, &run.outcome())).transpose()
    }))
}

/// A recovery under way: first events, then deliveries that failed.
#[derive(Default)]
struct Recovery {
    since: i64,
    after: i64,
    newest: i64,
    examined: usize,
    created: u64,
    retried: u64,
    next_since: Option<i64>,
}

impl Recovery {
    /// Does a bounded piece, and says whether that was the last.
    fn slice(&mut self, db: &Db, admin: &Principal, app: &App) -> Result<bool> {
        if self.after < self.newest && self.next_since.is_none() {
            self.events(db, admin, app)?;
            return Ok(false);
        }
        let retried = db.transaction(|tx| retry_failed(tx, &admin.team_id, &app.id, self.since))?;
        self.retried += retried;
        Ok(retried < ROWS_FILTERED_AT_ONCE as u64)
    }

    fn events(&mut self, db: &Db, admin: &Principal, app: &App) -> Result<()> {
        let team_id = &admin.team_id;
        let log = event_log::log(db, team_id)?;
        let who = app.principal(team_id, &admin.credential_id);
        let (after, limit) = (self.after, ROWS_FILTERED_AT_ONCE);
        let (events, last) = event_log::behind(db, &who, &log, after, limit)?;
        let wanted = |event: &&Logged| event.sequence <= self.newest && app.wants(&event.name);
        let created = db.transaction(|tx| {
            let mut created = 0;
            for event in events.iter().filter(wanted) {
                created += deliver_again(tx, team_id, &app.id, event)?;
            }
            Ok(created)
        })?;
        self.created += created;
        self.examined += limit;
        // Nothing behind it is left, where it did not move.
        self.after = if last == self.after { self.newest } else { last };
        if self.examined >= RECOVERED_ROWS_MAX && self.after < self.newest {
            self.next_since = events.last().map(|event| event.created_at);
        }
        Ok(())
    }

    fn outcome(&self) -> serde_json::Value {
        let Recovery { created, retried, next_since, .. } = self;
        json!({ "created": created, "retried": retried, "next_since": next_since })
    }
}

/// Makes an event's delivery, unless it is there; answers how many are new.
fn deliver_again(tx: &Tx, team_id: &TeamId, app_id: &AppId, event: &Logged) -> Result<u64> {
    let data = serde_json::from_str(event.data.get()).unwrap_or_default();
    let told = outbox::Told {
        name: &event.name,
        position: &event.position,
        resource_kind: &event.resource_kind,
        resource_id: &event.resource_id,
        source_id: event.source_id.as_deref(),
        principal_id: event.principal_id.as_deref(),
        data: &data,
        created_at: event.created_at,
    };
    let id = |app_id: &AppId| outbox::delivery_id(app_id, &event.position);
    let body = told.body(team_id);
    outbox::insert(tx, team_id, &event.name, &body, event.created_at, id, &[app_id])
}

fn retry_failed(tx: &Tx, team_id: &TeamId, app_id: &AppId, since: i64) -> Result<u64> {
    // By app_webhook_deliveries_failed, which a row leaves when it is pending again.
    let retried = tx.execute_counted(
        "UPDATE app_webhook_deliveries
            SET state = 'pending', attempts = 0, next_at = ?4, settled_at = NULL
          WHERE id IN (SELECT id FROM app_webhook_deliveries
                        WHERE team_id = ?1 AND app_id = ?2 AND state = 'failed'
                          AND created_at >= ?3
                        ORDER BY created_at
                        LIMIT ?5)",
        params![team_id, app_id, since, tx.now_ms, ROWS_FILTERED_AT_ONCE],
    )?;
    if retried > 0 {
        delivering::schedule_app(tx, team_id, app_id)?;
    }
    Ok(retried)
}

/// The last sequence before a moment: the log's times grow with its sequences, so it is halved
/// until it is found.
fn before_moment(db: &Db, team_id: &TeamId, moment: i64, newest: i64) -> Result<i64> {
    let (mut before, mut last) = (0, newest);
    while before < last {
        let middle = before + (last - before) / 2;
        let next = db.query_optional(
            "SELECT sequence, created_at FROM org_events
              WHERE team_id = ?1 AND sequence > ?2 ORDER BY sequence LIMIT 1",
            params![team_id, middle],
            |row| Ok((row.get::<i64>()?, row.get::<i64>()?)),
        )?;
        match next {
            Some((sequence, created_at)) if created_at < moment => before = sequence,
            _ => last = middle,
        }
    }
    Ok(before)
}

fn with_address(app: &App) -> Result<&AppId> {
    if app.webhook_url.is_some() {
        return Ok(&app.id);
    }
    Err(Error::conflict("the app has no webhook_url; set one first"))
}

fn load(db: &Db, team_id: &TeamId, app_id: &AppId, delivery_id: &DeliveryId) -> Result<Delivery> {
    db.query_optional(
        "SELECT id, event_type, state, attempts, next_at, last_status, last_error, created_at
           FROM app_webhook_deliveries
          WHERE id = ?3 AND team_id = ?1 AND app_id = ?2",
        params![team_id, app_id, delivery_id],
        read,
    )?
    .ok_or_else(Error::not_found)
}

fn read(row: &mut Row) -> Result<Delivery> {
    let mut delivery = Delivery {
        id: row.get()?,
        event_type: row.get()?,
        state: row.get()?,
        attempts: row.get()?,
        next_at: row.get()?,
        last_status: row.get()?,
        last_error: row.get()?,
        created_at: row.get()?,
    };
    // One that is settled is not due again.
    delivery.next_at = delivery.next_at.filter(|_| delivery.state == "pending");
    Ok(delivery)
}
