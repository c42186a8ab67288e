//! How an app comes by its token and its webhook's secret: an admin makes a code, which works once
//! and for ten minutes, and the app trades it in.
use crate::api::{Answer, Call, Plane, Request};
use crate::auth::Kind;
use crate::domain::apps::{self, App};
use crate::domain::credentials::{self, Credential, Holder};
use crate::domain::{authority, journal};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{AppId, CredentialId, HEX_DIGITS, Id, TeamId, hex, is_hex};
use crate::json;
use crate::limits::{
    APP_TOKEN_AGE_MS, INSTALL_CODE_AGE_MS, INSTALL_CODES_MAX, RATE_TENTHS, SECRET_OVERLAP_MS,
};
use crate::params;
use crate::store::{Db, Tx};
use crate::webhooks::signature;
use sha2::{Digest, Sha256};

const PREFIX: &str = "tpi_";

#[derive(serde::Serialize)]
struct InstallCode {
    code: String,
    expires_at: i64,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Install {
    code: String,
}

#[derive(serde::Serialize)]
struct Installed {
    app: App,
    credential: Credential,
    /// Nothing for an app without a webhook on a server that makes no secrets.
    webhook_secret: Option<String>,
}

#[derive(serde::Serialize)]
struct Rotated {
    webhook_secret: String,
    previous_until: i64,
}

/// `POST /apps/{app}/install-codes` makes a code. For admins.
///
/// `409 conflict` for an app with as many unused ones as there may be.
pub fn create_code(tx: &Tx, call: &Call) -> Result<Answer> {
    call.no_fields()?;
    let app = apps::governed(tx, call)?;

    let team_id = &call.who.team_id;
    let live = tx.query_one(
        "SELECT count(*) FROM (
                SELECT 1 FROM app_install_codes
                 WHERE team_id = ?1 AND app_id = ?2 AND expires_at > ?3
                 LIMIT ?4)",
        params![team_id, &app.id, tx.now_ms, INSTALL_CODES_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("unused install codes of an app", live, INSTALL_CODES_MAX)?;
    let code = format!("{PREFIX}{}_{}", team_id.hex_digits(), hex(&tx.random::<16>()));
    let expires_at = tx.now_ms + INSTALL_CODE_AGE_MS;
    tx.execute(
        "INSERT INTO app_install_codes (code_hash, team_id, app_id, created_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5)",
        params![&Sha256::digest(&code)[..], team_id, &app.id, tx.now_ms, expires_at],
    )?;
    journal::write(tx, call, "app.install_code_created", app.id.as_str())?;

    Ok(call.one(201, &InstallCode { code, expires_at })?.secret())
}

/// The code of an installation and the team that it names: `400` unless it has a code's form.
pub fn read_code(body: &[u8]) -> Result<(String, TeamId)> {
    let Install { code } = json::body(body)?;
    let team = code.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_'));
    let team = team.filter(|(team, secret)| is_hex(team, HEX_DIGITS) && is_hex(secret, HEX_DIGITS));
    let team_id = team.map(|(team, _)| TeamId::from_hex(team));
    let message = "must be a code as POST /apps/{app}/install-codes makes them";
    team_id.map(|id| (code, id)).ok_or_else(|| Error::field("code", message))
}

/// `POST /v1/apps/install` trades a code for the app's token and its webhook's secret. The code is
/// the caller's proof; a token that the app has from an earlier installation ends.
///
/// `401` for a code that is unknown, used or expired; `503 not_configured` for an app with a
/// webhook where the server cannot make secrets.
pub fn install(plane: &Plane, request: &Request, body: &[u8]) -> Result<Answer> {
    let (code, team_id) = read_code(body)?;
    // All attempts at one team's codes share a bucket.
    let bucket = CredentialId::from_hex(team_id.hex_digits());
    let (db, config) = (&plane.db, plane.config);
    let mut limiter = plane.limiter.borrow_mut();
    limiter.take(&bucket, db.now_ms, config.rate_limit_per_s, RATE_TENTHS)?;

    db.transaction(|tx| {
        let app_id = redeem(tx, &team_id, &code)?;
        let app = apps::load(tx, &team_id, &app_id)?;
        let root = match apps::root_secret(config) {
            Ok(root) => Some(root),
            Err(error) if app.webhook_url.is_some() => return Err(error),
            Err(_) => None,
        };
        let replaced = had_token(tx, &app, &team_id)?;
        credentials::revoke_all_of(tx, &team_id, &app.principal_id)?;
        let holder = Holder {
            kind: Kind::App,
            team_id: &team_id,
            principal_id: &app.principal_id,
            source_id: None,
            machine_id: None,
            app_id: Some(&app_id),
        };
        let credential = credentials::issue(tx, &holder, APP_TOKEN_AGE_MS)?;
        let version = secret_version(tx, &team_id, &app_id)?;
        let secret =
            root.map(|root| signature::secret(&signature::key(root, &team_id, &app_id, version)));
        let call = Call {
            who: app.principal(&team_id, &credential.id),
            config,
            request_id: request.request_id,
            runner: plane.runner,
            live: plane.live,
            list_name: "",
            server_id: plane.server_id,
            segments: Vec::new(),
            request,
            body,
        };
        journal::write(tx, &call, "app.installed", app_id.as_str())?;
        if replaced {
            authority::changed(tx, &call)?;
        }
        Ok(call.one(201, &Installed { app, credential, webhook_secret: secret })?.secret())
    })
}

/// Uses the code up.
fn redeem(tx: &Tx, team_id: &TeamId, code: &str) -> Result<AppId> {
    let apps = tx.execute_returning(
        "DELETE FROM app_install_codes
          WHERE code_hash = ?1 AND team_id = ?2 AND expires_at > ?3
            AND EXISTS (SELECT 1 FROM teams WHERE id = ?2 AND removing IS NOT 'delete')
      RETURNING app_id",
        params![&Sha256::digest(code)[..], team_id, tx.now_ms],
        |row| row.get::<AppId>(),
    )?;
    apps.into_iter().next().ok_or_else(|| {
        let message = "this code is unknown, used or expired; ask an admin for a new one";
        Error::new(Code::Unauthenticated, message)
    })
}

fn had_token(db: &Db, app: &App, team_id: &TeamId) -> Result<bool> {
    db.query_one(
        "SELECT EXISTS (SELECT 1 FROM credentials
                         WHERE team_id = ?1 AND principal_id = ?2
                           AND expires_at > ?3 AND (revoked_at IS NULL OR revoked_at > ?3))",
        params![team_id, &app.principal_id, db.now_ms],
        |row| row.get(),
    )
}

fn secret_version(db: &Db, team_id: &TeamId, app_id: &AppId) -> Result<i64> {
    db.query_one(
        "SELECT secret_version FROM apps WHERE team_id = ?1 AND id = ?2",
        params![team_id, app_id],
        |row| row.get(),
    )
}

/// `POST /apps/{app}/rotate-secret` makes a new secret; for a day the old one signs beside it. For
/// admins.
pub fn rotate_secret(tx: &Tx, call: &Call) -> Result<Answer> {
    call.no_fields()?;
    let app = apps::governed(tx, call)?;
    let root = apps::root_secret(call.config)?;

    let team_id = &call.who.team_id;
    let previous_until = tx.now_ms + SECRET_OVERLAP_MS;
    tx.execute(
        "UPDATE apps SET secret_version = secret_version + 1, previous_secret_until = ?3
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, &app.id, previous_until],
    )?;
    let version = secret_version(tx, team_id, &app.id)?;
    let webhook_secret = signature::secret(&signature::key(root, team_id, &app.id, version));
    journal::write(tx, call, "app.secret_rotated", app.id.as_str())?;

    Ok(call.one(200, &Rotated { webhook_secret, previous_until })?.secret())
}
