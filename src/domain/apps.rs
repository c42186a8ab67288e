//! Apps: programs that read the team and hear of its events by webhook. What an app's token may do
//! is its scopes; `disabled_at` concerns its webhook alone.
use crate::api::{Answer, Call, Config};
use crate::auth::{Kind, Principal, Role};
use crate::domain::delivering;
use crate::domain::events::{self, Event, Stage};
use crate::domain::grants::{self, SubjectKind};
use crate::domain::{authority, credentials, journal};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{AppId, CredentialId, Id, PrincipalId, TeamId};
use crate::json::{self, Patch};
use crate::limits::{APP_EVENTS_MAX, APPS_MAX, NAME_CHARS_MAX};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::scopes;
use crate::store::{Db, Row, Tx};
use crate::webhooks::address;

/// Subscribes to every type.
pub const EVERY: &str = "*";

#[derive(Debug, PartialEq, serde::Serialize)]
pub struct App {
    pub id: AppId,
    pub name: String,
    pub principal_id: PrincipalId,
    pub webhook_url: Option<String>,
    pub events: Vec<String>,
    pub scopes: Vec<String>,
    pub disabled_at: Option<i64>,
    pub revision: i64,
    pub created_at: i64,
}

impl App {
    pub fn wants(&self, event_type: &str) -> bool {
        self.events.iter().any(|wanted| wanted == event_type || wanted == EVERY)
    }

    /// The app as a caller, for what it may see.
    pub fn principal(&self, team_id: &TeamId, credential_id: &CredentialId) -> Principal {
        Principal {
            kind: Kind::App,
            team_id: team_id.clone(),
            principal_id: self.principal_id.clone(),
            credential_id: credential_id.clone(),
            role: None,
            machine_id: None,
            source_id: None,
            app_id: Some(self.id.clone()),
            scopes: self.scopes.clone(),
            expires_at: 0,
            last_used_at: None,
            team_is_wiped: false,
            team_is_imported: false,
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateApp {
    name: String,
    #[serde(default)]
    webhook_url: Option<String>,
    #[serde(default)]
    events: Vec<String>,
    #[serde(default)]
    scopes: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeApp {
    #[serde(default, deserialize_with = "json::not_null")]
    name: Option<String>,
    #[serde(default)]
    webhook_url: Patch<String>,
    #[serde(default, deserialize_with = "json::not_null")]
    events: Option<Vec<String>>,
    #[serde(default, deserialize_with = "json::not_null")]
    scopes: Option<Vec<String>>,
    /// Holds the webhook, or lets it go on.
    #[serde(default, deserialize_with = "json::not_null")]
    disabled: Option<bool>,
}

/// `GET /apps` lists the apps, by id. For admins.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, "", &query)?;
    guard::role(&call.who, Role::Admin)?;

    let apps = db.query(
        "SELECT id, name, principal_id, webhook_url, webhook_events_json, scopes_json,
                disabled_at, revision, created_at
           FROM apps
          WHERE team_id = ?1 AND id > ?2
          ORDER BY id
          LIMIT ?3",
        params![&call.who.team_id, page.after(), page.limit + 1],
        |row| read(row).map(|app| (app.id.to_string(), app)),
    )?;

    let (items, next) = page.page(apps);
    call.list(&items, next.as_deref())
}

/// `POST /apps` makes an app; an install code then lets it in.
///
/// `403` unless the caller is an admin; `503 not_configured` for one with a webhook where the
/// server cannot make secrets; `409 conflict` when the team has as many apps as it may.
pub fn create(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: CreateApp = call.json()?;
    guard::name("name", &body.name, NAME_CHARS_MAX)?;
    let events = known("events", body.events, |name| name == EVERY || is_event(name))?;
    let scopes = known("scopes", body.scopes, |name| scopes::ALL.contains(&name))?;
    check_address(call.config, body.webhook_url.as_deref())?;
    guard::role(&call.who, Role::Admin)?;

    let team_id = &call.who.team_id;
    if body.webhook_url.is_some() {
        root_secret(call.config)?;
    }
    let count = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM apps WHERE team_id = ?1 LIMIT ?2)",
        params![team_id, APPS_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("apps of a team", count, APPS_MAX)?;
    let (id, principal_id): (AppId, PrincipalId) = (tx.new_id(), tx.new_id());
    tx.execute(
        "INSERT INTO principals (id, kind, name, created_at) VALUES (?1, 'app', ?2, ?3)",
        params![&principal_id, &body.name, tx.now_ms],
    )?;
    tx.execute(
        "INSERT INTO apps
             (team_id, id, name, principal_id, webhook_url, webhook_events_json, scopes_json,
              created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            team_id,
            &id,
            &body.name,
            &principal_id,
            body.webhook_url.as_ref(),
            &json::to_string(&events)?,
            &json::to_string(&scopes)?,
            tx.now_ms
        ],
    )?;
    let app = load(tx, team_id, &id)?;
    announce(tx, team_id, &app, "app.created", Some(&call.who.principal_id))?;
    journal::write(tx, call, "app.created", id.as_str())?;

    call.versioned(201, &app, app.revision)
}

/// `GET /apps/{app}` is one of them. For admins.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let app = governed(db, call)?;
    call.versioned(200, &app, app.revision)
}

/// `PATCH /apps/{app}` changes an app. Pending deliveries go to a new address; without one, and
/// while `disabled`, they are held and no new ones are made.
///
/// `403` unless the caller is an admin; `503 not_configured` as for `POST /apps`.
pub fn change(tx: &Tx, call: &Call) -> Result<Answer> {
    let ChangeApp { name, webhook_url, events, scopes, disabled } = call.json()?;
    if let Some(name) = &name {
        guard::name("name", name, NAME_CHARS_MAX)?;
    }
    let events = events.map(|all| known("events", all, |name| name == EVERY || is_event(name)));
    let scopes = scopes.map(|all| known("scopes", all, |name| scopes::ALL.contains(&name)));
    let (events, scopes) = (events.transpose()?, scopes.transpose()?);
    if let Patch::Set(url) = &webhook_url {
        check_address(call.config, Some(url))?;
    }
    let before = governed(tx, call)?;
    call.if_match(before.revision)?;

    let team_id = &call.who.team_id;
    let webhook_url = match webhook_url {
        Patch::Keep => before.webhook_url.clone(),
        Patch::Clear => None,
        Patch::Set(url) => Some(url),
    };
    if webhook_url.is_some() && webhook_url != before.webhook_url {
        root_secret(call.config)?;
    }
    let after = App {
        id: before.id.clone(),
        name: name.unwrap_or_else(|| before.name.clone()),
        principal_id: before.principal_id.clone(),
        events: events.unwrap_or_else(|| before.events.clone()),
        scopes: scopes.unwrap_or_else(|| before.scopes.clone()),
        disabled_at: match disabled {
            None => before.disabled_at,
            Some(true) => Some(before.disabled_at.unwrap_or(tx.now_ms)),
            Some(false) => None,
        },
        webhook_url,
        revision: before.revision,
        created_at: before.created_at,
    };
    if after == before {
        return call.versioned(200, &before, before.revision);
    }
    let goes_on = after.webhook_url != before.webhook_url
        || before.disabled_at.is_some() && after.disabled_at.is_none();
    tx.execute(
        "UPDATE apps
            SET name = ?3, webhook_url = ?4, webhook_events_json = ?5, scopes_json = ?6,
                disabled_at = ?7, revision = revision + 1,
                failing_since = iif(?8, NULL, failing_since), throttled = iif(?8, 0, throttled)
          WHERE team_id = ?1 AND id = ?2",
        params![
            team_id,
            &after.id,
            &after.name,
            after.webhook_url.as_ref(),
            &json::to_string(&after.events)?,
            &json::to_string(&after.scopes)?,
            after.disabled_at,
            goes_on
        ],
    )?;
    if after.name != before.name {
        tx.execute(
            "UPDATE principals SET name = ?2 WHERE id = ?1",
            params![&after.principal_id, &after.name],
        )?;
    }
    delivering::schedule_app(tx, team_id, &after.id)?;
    let app = load(tx, team_id, &after.id)?;
    let is_held = before.disabled_at.is_none() && app.disabled_at.is_some();
    let name = if is_held { "app.disabled" } else { "app.changed" };
    announce(tx, team_id, &app, name, Some(&call.who.principal_id))?;
    journal::write(tx, call, name, app.id.as_str())?;
    if app.scopes != before.scopes {
        authority::changed(tx, call)?;
    }

    call.versioned(200, &app, app.revision)
}

/// `POST /apps/{app}/enable` lets a disabled webhook go on, with what was held meanwhile.
pub fn enable(tx: &Tx, call: &Call) -> Result<Answer> {
    call.no_fields()?;
    let before = governed(tx, call)?;
    call.if_match(before.revision)?;

    if before.disabled_at.is_none() {
        return call.versioned(200, &before, before.revision);
    }
    let team_id = &call.who.team_id;
    tx.execute(
        "UPDATE apps
            SET disabled_at = NULL, failing_since = NULL, throttled = 0, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, &before.id],
    )?;
    delivering::schedule_app(tx, team_id, &before.id)?;
    let app = load(tx, team_id, &before.id)?;
    announce(tx, team_id, &app, "app.changed", Some(&call.who.principal_id))?;
    journal::write(tx, call, "app.enabled", app.id.as_str())?;

    call.versioned(200, &app, app.revision)
}

/// `DELETE /apps/{app}` ends an app: its tokens at once, with its grants and install codes. What
/// was on its way to it is removed by retention.
pub fn delete(tx: &Tx, call: &Call) -> Result<Answer> {
    let app = governed(tx, call)?;
    call.if_match(app.revision)?;

    let team_id = &call.who.team_id;
    credentials::revoke_all_of(tx, team_id, &app.principal_id)?;
    grants::remove_all_of(tx, team_id, SubjectKind::Principal, app.principal_id.as_str())?;
    tx.execute(
        "DELETE FROM app_install_codes WHERE team_id = ?1 AND app_id = ?2",
        params![team_id, &app.id],
    )?;
    tx.execute("DELETE FROM apps WHERE team_id = ?1 AND id = ?2", params![team_id, &app.id])?;
    tx.execute("DELETE FROM principals WHERE id = ?1", params![&app.principal_id])?;
    tx.execute(
        "INSERT INTO deleted_apps (team_id, app_id) VALUES (?1, ?2)",
        params![team_id, &app.id],
    )?;
    announce(tx, team_id, &app, "app.deleted", Some(&call.who.principal_id))?;
    journal::write(tx, call, "app.deleted", app.id.as_str())?;
    authority::changed(tx, call)?;

    Ok(Answer::no_content())
}

/// Holds a webhook whose receiver is gone. What is pending stays so.
pub fn disable(tx: &Tx, team_id: &TeamId, app_id: &AppId) -> Result<()> {
    let disabled = tx.execute_counted(
        "UPDATE apps SET disabled_at = ?3, next_at = NULL, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2 AND disabled_at IS NULL",
        params![team_id, app_id, tx.now_ms],
    )?;
    if disabled == 0 {
        return Ok(());
    }
    let app = load(tx, team_id, app_id)?;
    announce(tx, team_id, &app, "app.disabled", None)
}

/// The app in the path, for an admin.
pub fn governed(db: &Db, call: &Call) -> Result<App> {
    guard::role(&call.who, Role::Admin)?;
    load(db, &call.who.team_id, &call.id(0)?)
}

pub fn load(db: &Db, team_id: &TeamId, app_id: &AppId) -> Result<App> {
    db.query_optional(
        "SELECT id, name, principal_id, webhook_url, webhook_events_json, scopes_json,
                disabled_at, revision, created_at
           FROM apps
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, app_id],
        read,
    )?
    .ok_or_else(Error::not_found)
}

/// `503 not_configured` where the server has nothing to derive secrets from.
pub fn root_secret(config: &Config) -> Result<&str> {
    config.app_root_secret.as_deref().ok_or_else(|| {
        Error::new(Code::NotConfigured, "set the secret APP_ROOT_SECRET to use webhooks")
    })
}

fn read(row: &mut Row) -> Result<App> {
    Ok(App {
        id: row.get()?,
        name: row.get()?,
        principal_id: row.get()?,
        webhook_url: row.get()?,
        events: list_of(&row.get::<String>()?)?,
        scopes: list_of(&row.get::<String>()?)?,
        disabled_at: row.get()?,
        revision: row.get()?,
        created_at: row.get()?,
    })
}

fn list_of(json: &str) -> Result<Vec<String>> {
    serde_json::from_str(json).map_err(|e| Error::internal(format!("an app's list: {e}")))
}

fn check_address(config: &Config, url: Option<&str>) -> Result<()> {
    let Some(url) = url else { return Ok(()) };
    address::check(url, config.webhook_allow_local).map_err(|why| Error::field("webhook_url", why))
}

fn is_event(name: &str) -> bool {
    events::TYPES.contains(&name)
}

/// A list of names that must be known, each once.
fn known(field: &str, list: Vec<String>, knows: fn(&str) -> bool) -> Result<Vec<String>> {
    guard::at_most(field, list.len(), APP_EVENTS_MAX)?;
    let mut kept: Vec<String> = Vec::with_capacity(list.len());
    for (index, name) in list.into_iter().enumerate() {
        if !knows(&name) {
            return Err(Error::field(format!("{field}[{index}]"), "is not a known name"));
        }
        if !kept.contains(&name) {
            kept.push(name);
        }
    }
    Ok(kept)
}

/// The app's event, for the whole team.
fn announce(
    tx: &Tx,
    team_id: &TeamId,
    app: &App,
    name: &'static str,
    principal_id: Option<&PrincipalId>,
) -> Result<()> {
    let App { id, name: app_name, disabled_at, revision, .. } = app;
    let event = Event {
        name,
        resource_kind: "app",
        resource_id: id.as_str(),
        source_id: None,
        principal_id,
        data: serde_json::json!({
            "id": id, "name": app_name, "disabled_at": disabled_at, "revision": revision,
        }),
        stage: if name == "app.deleted" { Stage::Last } else { Stage::Current },
    };
    events::record(tx, team_id, &event).map(drop)
}
