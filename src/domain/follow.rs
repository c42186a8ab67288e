//! Following a session: what becomes of it, and what its agent says meanwhile. The machines that
//! have it open are told that somebody listens.
use crate::api::{Answer, Call};
use crate::auth::Principal;
use crate::domain::live::Live;
use crate::domain::sessions::{self, Activity};
use crate::domain::streams::{self, Format, Of, Offer, Sent, Watch};
use crate::domain::visibility::{self, Origins};
use crate::error::{Error, Result};
use crate::ids::{Id, MachineId, SessionId, SourceId, TeamId};
use crate::json;
use crate::limits::{SESSION_ORIGINS_MAX, WATCHED_MAX};
use crate::params;
use crate::store::Db;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// What a follower was told of its session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Follow {
    pub session_id: SessionId,
    /// None before it was told any.
    pub revision: i64,
    pub activity: Option<Activity>,
}

/// How a session is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    /// Nothing once it is deleted.
    revision: Option<i64>,
    activity: Option<Activity>,
}

/// `GET /sessions/{session}/follow` streams what becomes of a session, beginning with its current
/// version and activity.
///
/// `404` for a session that the caller may not know of; `406` where it takes no stream.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    Format::wanted(call.header("accept"), Offer::Stream)?;
    let session_id: SessionId = call.id(0)?;
    sessions::seen(db, &call.who, &session_id)?;

    Ok(streams::watch(call, Of::Session(Follow { session_id, revision: 0, activity: None })))
}

/// What a follower is sent first.
pub fn first(db: &Db, who: &Principal, follow: &Follow, watch: &Watch) -> Result<Sent> {
    visibility::must_see(db, who, &follow.session_id)?;
    let sessions = [(&watch.team_id, &follow.session_id)];
    let state = states(db, sessions)?.remove(&follow.session_id).ok_or_else(Error::not_found)?;
    let (text, follow) = follow.changed(&state).ok_or_else(Error::not_found)?;
    Ok(Sent { text, watch: Watch { of: Of::Session(follow), ..watch.clone() } })
}

impl Follow {
    /// What a follower is to hear of its session as it is now, and what it was told then; nothing
    /// once the session is deleted.
    pub fn changed(&self, state: &State) -> Option<(String, Follow)> {
        let revision = state.revision?;
        let mut text = String::new();
        if revision != self.revision {
            let data = json!({ "session_id": self.session_id, "revision": revision });
            text += &streams::event(None, "version", &data.to_string());
        }
        if state.activity != self.activity {
            let activity = state.activity.as_ref();
            let data = json!({
                "turn": activity.map(|activity| &activity.turn),
                "since": activity.and_then(|activity| activity.since),
            });
            text += &streams::event(None, "activity", &data.to_string());
        }
        let (session_id, activity) = (self.session_id.clone(), state.activity.clone());
        Some((text, Follow { session_id, revision, activity }))
    }
}

/// Tells a follower what an agent says.
pub fn live(text: &str) -> String {
    streams::event(None, "live", &json!({ "text": text }).to_string())
}

/// Tells a follower that there is nothing more to hear: the session is gone, for all or for them.
pub fn end(session_id: &SessionId) -> String {
    streams::event(None, "end", &json!({ "session_id": session_id }).to_string())
}

/// How those sessions are now.
pub fn states<'a>(
    db: &Db,
    sessions: impl IntoIterator<Item = (&'a TeamId, &'a SessionId)>,
) -> Result<BTreeMap<SessionId, State>> {
    let mut by_team: BTreeMap<&TeamId, Vec<&SessionId>> = BTreeMap::new();
    for (team_id, session_id) in sessions {
        by_team.entry(team_id).or_default().push(session_id);
    }
    let mut states = BTreeMap::new();
    for (team_id, session_ids) in by_team {
        let stored = db.query(
            "SELECT s.id, s.revision, s.origins_json
               FROM json_each(?2) j CROSS JOIN sessions s ON s.team_id = ?1 AND s.id = j.value
              WHERE s.deleted_at IS NULL",
            params![team_id, &json::to_string(&session_ids)?],
            |row| Ok((row.get::<SessionId>()?, row.get::<i64>()?, row.get::<Origins>()?.0)),
        )?;
        let origins: Vec<_> = stored
            .iter()
            .flat_map(|(id, _, origins)| origins.iter().map(move |(s, h, n)| (id, s, h, n)))
            .collect();
        let mut activities = sessions::activities(db, team_id, &json::to_string(&origins)?)?;
        for session_id in session_ids {
            states.insert(session_id.clone(), State { revision: None, activity: None });
        }
        for (session_id, revision, _) in stored {
            let activity = activities.remove(session_id.as_str());
            states.insert(session_id, State { revision: Some(revision), activity });
        }
    }
    Ok(states)
}

/// The machines that have a session under some origin, and how they call it.
pub fn machines(
    db: &Db,
    team_id: &TeamId,
    session_id: &SessionId,
) -> Result<Vec<(MachineId, Watched)>> {
    db.query(
        "SELECT s.machine_id, o.harness, o.native_id
           FROM origins o CROSS JOIN sources s ON s.team_id = o.team_id AND s.id = o.source_id
          WHERE o.team_id = ?1 AND o.session_id = ?2 AND s.machine_id IS NOT NULL
          LIMIT ?3",
        params![team_id, session_id, SESSION_ORIGINS_MAX],
        |row| Ok((row.get()?, Watched { harness: row.get()?, native_id: row.get()? })),
    )
}

/// A session that somebody follows: its machine sends what happens in it as it happens.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Watched {
    pub harness: String,
    pub native_id: String,
}

/// What of a source's somebody follows.
pub fn watched(
    db: &Db,
    team_id: &TeamId,
    source_id: Option<&SourceId>,
    live: &Live,
) -> Result<Vec<Watched>> {
    let Some(source_id) = source_id.filter(|_| !live.followed.is_empty()) else {
        return Ok(Vec::new());
    };
    let session_ids: Vec<&SessionId> = live.followed.keys().collect();
    db.query(
        "SELECT o.harness, o.native_id
           FROM json_each(?3) j
          CROSS JOIN origins o ON o.team_id = ?1 AND o.session_id = j.value
          WHERE o.source_id = ?2
          LIMIT ?4",
        params![team_id, source_id, &json::to_string(&session_ids)?, WATCHED_MAX],
        |row| Ok(Watched { harness: row.get()?, native_id: row.get()? }),
    )
}

/// The session that somebody follows under an origin of this source.
pub fn of_origin(
    db: &Db,
    team_id: &TeamId,
    source_id: &SourceId,
    (harness, native_id): (&str, &str),
    live: &Live,
) -> Result<Option<SessionId>> {
    let session_id = db.query_optional(
        "SELECT session_id
           FROM origins
          WHERE team_id = ?1 AND source_id = ?2 AND harness = ?3 AND native_id = ?4",
        params![team_id, source_id, harness, native_id],
        |row| row.get::<Option<SessionId>>(),
    )?;
    Ok(session_id.flatten().filter(|id| live.followed.contains_key(id)))
}
