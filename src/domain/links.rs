//! Links: the WebSocket that a machine's connector holds. The shell holds the sockets; who may
//! open one, what a frame does and when a link ends is decided here.
use crate::api::{Answer, Body, Call, Plane};
use crate::auth::{self, Principal};
use crate::domain::effects::{EffectResult, Unsent};
use crate::domain::heartbeat::{self, Heartbeat};
use crate::domain::live::News;
use crate::domain::{credentials, follow, outgoing, presence};
use crate::error::{Code, Error, Result};
use crate::guard;
use crate::ids::{CredentialId, MachineId, TeamId};
use crate::json;
use crate::limits::{
    CLOSE_REASON_BYTES_MAX, FRAME_BYTES_MAX, HARNESS_CHARS_MAX, HEARTBEAT_TENTHS,
    LIVE_TEXT_BYTES_MAX, NATIVE_ID_CHARS_MAX, TURN_CHARS_MAX,
};
use crate::params;
use crate::store::{Db, Tx};
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, IgnoredAny, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

/// A connector that asks whether it is heard is answered by the platform, which wakes no object.
pub const PING: &str = r#"{"type":"ping"}"#;
pub const PONG: &str = r#"{"type":"pong"}"#;

/// The close code of a connector that means to go.
const GOODBYE: u16 = 1000;

/// Whose link a socket is; kept with the socket, so that it outlives the object's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub team_id: TeamId,
    pub machine_id: MachineId,
    pub credential_id: CredentialId,
    /// The effect that it was sent last, while there are more that waited for it.
    #[serde(default)]
    pub unsent: Option<Unsent>,
}

/// How the server ends a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Close {
    pub code: u16,
    pub reason: String,
}

impl Close {
    pub fn replaced() -> Close {
        Close { code: 4001, reason: "a newer link of this machine has replaced this one".into() }
    }

    /// Says why, and of a bad field which.
    pub fn because(error: &Error) -> Close {
        let code = match error.code {
            Code::Unauthenticated => 4401,
            Code::TooLarge => 1009,
            code if code.status() >= 500 || code == Code::RateLimited => 1013,
            _ => 1007,
        };
        let field = error.details.get("field").and_then(|field| field.as_str());
        let mut reason = match (error.code, field) {
            (Code::Internal, _) => "a fault of the server; try again later".into(),
            (_, Some(field)) if !field.is_empty() => format!("{field}: {}", error.message),
            _ => error.message.clone(),
        };
        reason.truncate(reason.floor_char_boundary(CLOSE_REASON_BYTES_MAX));
        Close { code, reason }
    }
}

/// `GET /machines/{machine}/link` opens that machine's link, a WebSocket. From here on the machine
/// is linked; the shell closes an older link of its (4001).
///
/// `403` for every other caller; `426` for a request that is no upgrade.
pub fn open(tx: &Tx, call: &Call) -> Result<Answer> {
    let machine_id: MachineId = call.id(0)?;
    guard::machine(&call.who, &machine_id)?;
    if !call.header("upgrade").is_some_and(|name| name.eq_ignore_ascii_case("websocket")) {
        let error = Error::new(Code::UpgradeRequired, "open a WebSocket at this address");
        return Err(error.with_header("Upgrade", "websocket"));
    }

    let (team_id, credential_id) = (call.who.team_id.clone(), call.who.credential_id.clone());
    presence::link(tx, &team_id, &machine_id)?;

    let link = Link { team_id, machine_id, credential_id, unsent: None };
    Ok(Answer { status: 101, body: Body::Link(link), ..Answer::default() })
}

/// Takes a frame that came by `link`, and answers what to send back.
///
/// An error ends the link: [`Close::because`] says how.
pub fn receive(plane: &Plane, link: &Link, frame: &str) -> Result<Option<String>> {
    if frame.len() > FRAME_BYTES_MAX {
        return Err(Error::too_large(FRAME_BYTES_MAX, "a frame"));
    }
    let db = &plane.db;
    let who = auth::holder(db, &link.team_id, &link.credential_id)?;
    let per_second = plane.config.rate_limit_per_s;
    plane.limiter.borrow_mut().take(&who.credential_id, db.now_ms, per_second, HEARTBEAT_TENTHS)?;
    credentials::touch(db, &who)?;

    let Typed { name } = json::body(frame.as_bytes())?;
    match name.as_str() {
        // Written in another way than the platform knows.
        "ping" => Ok(Some(PONG.into())),
        "heartbeat" => {
            let Fields(heartbeat): Fields<Heartbeat> = json::body(frame.as_bytes())?;
            heartbeat.validate()?;
            let beaten = db.transaction(|tx| {
                heartbeat::take(tx, &who, &link.machine_id, &heartbeat, plane.live)
            })?;
            outgoing::sent("heartbeat_ack", &beaten).map(Some)
        }
        "effect_result" => {
            let Fields(result): Fields<EffectResult> = json::borrowed(frame)?;
            match db.transaction(|tx| result.take(tx, &who, &link.machine_id)) {
                // Answered already, or given up: there is nothing that the connector can do.
                Err(error) if matches!(error.code, Code::Conflict | Code::NotFound) => Ok(None),
                taken => taken.map(|()| None),
            }
        }
        "live" => {
            let Fields(said): Fields<Said> = json::body(frame.as_bytes())?;
            said.validate()?;
            said.tell(db, &who, plane).map(|()| None)
        }
        _ => Err(Error::field("type", "is none of ping, heartbeat, effect_result, live")),
    }
}

/// What an agent says, as it says it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    harness: String,
    native_id: String,
    #[serde(default)]
    turn: Option<String>,
    text: String,
}

impl Said {
    fn validate(&self) -> Result<()> {
        guard::line("harness", &self.harness, HARNESS_CHARS_MAX)?;
        guard::line("native_id", &self.native_id, NATIVE_ID_CHARS_MAX)?;
        if let Some(turn) = &self.turn {
            guard::line("turn", turn, TURN_CHARS_MAX)?;
        }
        if self.text.len() > LIVE_TEXT_BYTES_MAX {
            let error = Error::too_large(LIVE_TEXT_BYTES_MAX, "text");
            return Err(error.with("field", "text"));
        }
        Ok(())
    }

    /// Passes it on to those who follow the session; to nobody else, and it is kept nowhere.
    fn tell(self, db: &Db, who: &Principal, plane: &Plane) -> Result<()> {
        let mut live = plane.live.borrow_mut();
        let Some(source_id) = who.source_id.as_ref().filter(|_| !live.followed.is_empty()) else {
            return Ok(());
        };
        let origin = (self.harness.as_str(), self.native_id.as_str());
        if let Some(id) = follow::of_origin(db, &who.team_id, source_id, origin, &live)? {
            live.tell(News::Said(id, self.text));
        }
        Ok(())
    }
}

/// The socket of a machine's link has closed. After a goodbye the machine is unlinked at once,
/// otherwise it has its grace to come back.
pub fn closed(tx: &Tx, link: &Link, code: u16) -> Result<()> {
    if code == GOODBYE {
        presence::unlink(tx, &link.team_id, &link.machine_id)
    } else {
        presence::lose(tx, &link.team_id, &link.machine_id)
    }
}

/// Which credentials are no longer good, and when the first of the others ends by itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub ended: BTreeSet<CredentialId>,
    pub next_end_at: Option<i64>,
}

/// Looks at the credentials of sockets that are held open; a row or two each. A person's is good
/// while they are a member.
pub fn standing(db: &Db, held: &BTreeSet<CredentialId>) -> Result<Standing> {
    let held = json::to_string(held)?;
    let ends = db.query(
        "SELECT held.value,
                CASE WHEN t.id IS NULL OR (c.kind = 'user' AND m.principal_id IS NULL) THEN 0
                     ELSE min(c.expires_at, coalesce(c.revoked_at, c.expires_at)) END
           FROM json_each(?1) held
           LEFT JOIN credentials c ON c.id = held.value
           LEFT JOIN teams t ON t.id = c.team_id AND t.removing IS NOT 'delete'
           LEFT JOIN memberships m
             ON m.team_id = c.team_id AND m.principal_id = c.principal_id AND m.active = 1",
        params![&held],
        |row| Ok((row.get::<CredentialId>()?, row.get::<i64>()?)),
    )?;
    let mut standing = Standing::default();
    for (credential_id, end_at) in ends {
        if end_at <= db.now_ms {
            standing.ended.insert(credential_id);
        } else {
            let next = standing.next_end_at.map_or(end_at, |at| at.min(end_at));
            standing.next_end_at = Some(next);
        }
    }
    Ok(standing)
}

/// Any frame's type.
#[derive(Deserialize)]
struct Typed {
    #[serde(rename = "type")]
    name: String,
}

/// What a frame has beside its type. (An internally tagged enum would not keep parts as they were
/// sent, and a flattened one would not refuse unknown fields.)
struct Fields<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Fields<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Frame<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Frame<T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a frame")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(Untyped(map)))
            }
        }
        deserializer.deserialize_map(Frame(PhantomData)).map(Fields)
    }
}

/// A frame's fields without its type.
struct Untyped<A>(A);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Untyped<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        while let Some(key) = self.0.next_key::<String>()? {
            if key != "type" {
                return seed.deserialize(key.into_deserializer()).map(Some);
            }
            self.0.next_value::<IgnoredAny>()?;
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.0.next_value_seed(seed)
    }
}
