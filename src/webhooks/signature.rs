//! Secrets and signatures. A webhook's secret is never stored: it is derived from the server's
//! root secret, the app and a version, so that a copy of the store signs nothing.
use crate::ids::{AppId, TeamId};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

const PREFIX: &str = "whsec_";

/// The key of one version of an app's secret.
pub fn key(root: &str, team_id: &TeamId, app_id: &AppId, version: i64) -> [u8; 32] {
    let what = format!("teamplane webhook secret\n{team_id}\n{app_id}\n{version}");
    hmac(root.as_bytes(), &[what.as_bytes()])
}

/// A key as its receiver is given it: the base64 behind the prefix is the key.
pub fn secret(key: &[u8]) -> String {
    format!("{PREFIX}{}", STANDARD.encode(key))
}

/// The `webhook-signature` of exactly these bytes: one entry for each key, newest first.
pub fn header(keys: &[[u8; 32]], id: &str, timestamp_s: i64, body: &[u8]) -> String {
    let all: Vec<String> = keys.iter().map(|key| sign(key, id, timestamp_s, body)).collect();
    all.join(" ")
}

pub fn sign(key: &[u8], id: &str, timestamp_s: i64, body: &[u8]) -> String {
    let head = format!("{id}.{timestamp_s}.");
    format!("v1,{}", STANDARD.encode(hmac(key, &[head.as_bytes(), body])))
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}
