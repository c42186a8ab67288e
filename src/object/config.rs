//! What an operator sets, read once for each object.
use crate::api::Config;
use crate::limits::{RATE_LIMIT_PER_S_DEFAULT, STORE_BYTES_MAX_DEFAULT, UPLOAD_BYTES_MAX_DEFAULT};
use crate::shard::Sharding;
use std::fmt::Display;
use std::str::FromStr;
use worker::Env;

/// The bindings of the two kinds of object.
pub const TEAM: &str = "TEAM";
pub const DIRECTORY: &str = "DIRECTORY";

pub fn read(env: &Env) -> Config {
    Config {
        rate_limit_per_s: whole(env, "RATE_LIMIT_PER_S", RATE_LIMIT_PER_S_DEFAULT),
        upload_bytes_max: whole(env, "UPLOAD_BYTES_MAX", UPLOAD_BYTES_MAX_DEFAULT),
        store_bytes_max: whole(env, "STORE_BYTES_MAX", STORE_BYTES_MAX_DEFAULT),
        app_root_secret: text(env, "APP_ROOT_SECRET"),
        webhook_allow_local: is_on(env, "WEBHOOK_ALLOW_LOCAL"),
    }
}

/// A variable or secret; nothing where it is not set or empty.
pub fn text(env: &Env, name: &str) -> Option<String> {
    env.var(name).ok().map(|value| value.to_string()).filter(|value| !value.is_empty())
}

/// Whether tests may set clocks and read counters. Requests must come from this machine, too.
pub fn test_hooks(env: &Env) -> bool {
    is_on(env, "TEST_HOOKS")
}

fn is_on(env: &Env, name: &str) -> bool {
    text(env, name).as_deref() == Some("1")
}

pub fn sharding(env: &Env) -> Sharding {
    let Some(value) = text(env, "SHARDING") else { return Sharding::default() };
    Sharding::parse(&value).unwrap_or_else(|| {
        worker::console_error!("SHARDING is neither team nor server; using team");
        Sharding::default()
    })
}

/// A whole number, 0 or more.
fn whole<T: FromStr + Display>(env: &Env, name: &str, default: T) -> T {
    let Some(value) = text(env, name) else { return default };
    let digits = value.len() <= 15 && value.bytes().all(|byte| byte.is_ascii_digit());
    value.parse().ok().filter(|_| digits).unwrap_or_else(|| {
        worker::console_warn!("{name} is not a whole number; using {default}");
        default
    })
}
