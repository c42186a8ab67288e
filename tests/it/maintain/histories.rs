//! Random histories of writes, passes cut anywhere, the clock stepping from milliseconds to months,
//! the retention migration applied to a store that is filled already. After each, the store must
//! equal what the naive rules leave.
use super::oracle;
use crate::capture::messages;
use crate::random::Random;
use crate::team::{Publisher, Team};
use base64::Engine as _;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use teamplane::auth::Kind;
use teamplane::domain::credentials::{self, Holder};
use teamplane::domain::delivering::{self, Outcome};
use teamplane::ids::{PrincipalId, hex};
use teamplane::limits::{DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, USER_TOKEN_AGE_MS};
use teamplane::maintain::{Pass, Slice};
use teamplane::params;
use teamplane::store::migrate::SCHEMA_VERSION;
use teamplane::store::native::Native;

/// More of them, and other ones: `npm run soak`.
const HISTORIES: u64 = 2_000;
const OPERATIONS: usize = 200;
/// Histories that once found a fault. (They say so only as long as the operations stay the same.)
const FOUND: &[u64] = &[330, 419];
/// The schema without what retention adds.
const BASE_VERSION: i64 = 7;
const CHUNK: usize = 64 << 10;

struct World {
    team: Team,
    random: Random,
    is_migrated: bool,
    publishers: Vec<Publisher>,
    owner_id: PrincipalId,
    other_team: String,
    /// What each session's current version holds.
    contents: BTreeMap<String, Vec<Json>>,
    /// (publisher, native id) → session
    origins: BTreeMap<(usize, u64), String>,
    /// Uploads of each publisher, committed ones among them.
    uploads: Vec<(usize, String)>,
    tokens_until: i64,
    /// For names that differ.
    count: u64,
    /// Which kinds of rows went.
    removed: BTreeSet<&'static str>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let is_migrated = random.chance(50);
        let version = if is_migrated { SCHEMA_VERSION } else { BASE_VERSION };
        let team = Team::over(Native::open_in_memory(), version);
        let publishers = ["a", "b", "c"].map(|name| team.publisher(name)).into();
        let other_team = team.another("Other").0.to_string();
        let owner = "SELECT principal_id FROM memberships WHERE role = 'owner' AND team_id = ?1";
        let owner_id =
            team.db().query_one(owner, params![&team.id], |row| row.get::<PrincipalId>()).unwrap();
        let tokens_until = team.now_ms.get() + 10 * DAY_MS;
        World {
            team,
            random,
            is_migrated,
            publishers,
            owner_id,
            other_team,
            contents: BTreeMap::new(),
            origins: BTreeMap::new(),
            uploads: Vec::new(),
            tokens_until,
            count: 0,
            removed: BTreeSet::new(),
        }
    }

    fn now(&self) -> i64 {
        self.team.now_ms.get()
    }

    fn name(&mut self, kind: &str) -> String {
        self.count += 1;
        format!("{kind}_{:032x}", self.count)
    }

    fn migrate(&mut self) {
        if !self.is_migrated {
            self.team.migrate();
            self.is_migrated = true;
        }
    }

    /// Tokens run out before the clock's larger steps do.
    fn renew_tokens(&mut self) {
        if self.now() < self.tokens_until {
            return;
        }
        let issue = |kind, principal_id: &PrincipalId, publisher: Option<&Publisher>| {
            let holder = Holder {
                kind,
                team_id: &self.team.id,
                principal_id,
                source_id: publisher.map(|p| &p.source_id),
                machine_id: publisher.map(|p| &p.machine_id),
                app_id: None,
            };
            let issued = self
                .team
                .db()
                .transaction(|tx| credentials::issue(tx, &holder, USER_TOKEN_AGE_MS / 3));
            issued.unwrap().token.unwrap()
        };
        let owner = issue(Kind::User, &self.owner_id, None);
        let tokens: Vec<String> = self
            .publishers
            .iter()
            .map(|publisher| issue(Kind::Machine, &publisher.custodian_id, Some(publisher)))
            .collect();
        self.team.owner = owner;
        for (publisher, token) in self.publishers.iter_mut().zip(tokens) {
            publisher.token = token;
        }
        self.tokens_until = self.now() + 10 * DAY_MS;
    }

    /// Age deletes sessions too.
    fn forget_deleted(&mut self) {
        let alive = self.team.lines("SELECT id FROM sessions WHERE deleted_at IS NULL");
        let is_alive = |id: &String| alive.contains(id);
        self.contents.retain(|id, _| is_alive(id));
        self.origins.retain(|_, id| is_alive(id));
    }

    fn step(&mut self) {
        self.renew_tokens();
        match self.random.below(100) {
            0..=74 => self.write(),
            75..=88 => self.clock(),
            89 if !self.is_migrated => self.migrate(),
            90 => self.check(),
            _ => self.maintain(),
        }
    }

    fn write(&mut self) {
        self.forget_deleted();
        if self.is_migrated && self.random.chance(25) {
            return self.agent();
        }
        match self.random.below(79) {
            75..=78 => self.ledger(),
            0..=24 => self.publish(),
            25..=31 => self.upload(),
            32..=37 => self.continuation(),
            38..=42 => self.page(),
            43..=45 => self.pins(),
            46..=48 => self.delete_session(),
            49..=52 => self.operation(),
            53..=54 => self.delivery(),
            55..=56 => self.app(),
            57..=60 => self.presence(),
            61..=64 => self.belongings(),
            65..=67 => self.retitle(),
            68 => self.retention(),
            69 => self.content(),
            70..=72 => self.logs(),
            _ => self.expiring(),
        }
    }

    fn check(&mut self) {
        if self.is_migrated && !self.waits() {
            self.removed.extend(oracle::check(&self.team));
        }
    }

    /// Whether versions wait for cursors older than the migration.
    fn waits(&self) -> bool {
        let waits = "SELECT count(*) FROM maintain_backfill
                      WHERE name = 'cursor_pins' AND done = 0 AND after_rowid > ";
        self.team.count(&format!("{waits}{}", self.now())) > 0
    }

    /// Cut, rewritten, changed at one place, the same, or longer.
    fn changed(&mut self, current: &[Json]) -> Vec<Json> {
        let mut content = current.to_vec();
        match self.random.below(5) {
            0 => content.truncate(usize::try_from(self.random.below(4)).unwrap()),
            1 => {
                self.count += 1;
                content =
                    messages(0, self.random.below(6).cast_signed(), &format!("w{}", self.count));
            }
            2 if !content.is_empty() => {
                self.count += 1;
                let at = self.random.below(content.len() as u64).cast_signed();
                let changed = messages(at, at + 1, &format!("c{}", self.count));
                content[usize::try_from(at).unwrap()] = changed[0].clone();
            }
            3 => {}
            _ => {
                self.count += 1;
                let from = i64::try_from(content.len()).unwrap();
                let to = from + 1 + self.random.below(3).cast_signed();
                content.extend(messages(from, to, &format!("a{}", self.count)));
            }
        }
        content
    }

    /// Some of the publisher's committed uploads, as artifacts.
    fn artifacts(&mut self, publisher: usize) -> Json {
        let mine: Vec<String> = self
            .uploads
            .iter()
            .filter(|(of, id)| {
                *of == publisher
                    && self.team.count(&format!(
                        "SELECT count(*) FROM uploads WHERE id = '{id}' AND state = 'committed'"
                    )) == 1
            })
            .map(|(_, id)| id.clone())
            .collect();
        let count = self.random.below(3);
        let artifacts: Vec<Json> = (0..count)
            .filter_map(|n| {
                let upload = self.random.pick(&mine)?;
                Some(json!({ "bundle_id": format!("b{n}"), "upload_id": upload, "name": "N" }))
            })
            .collect();
        json!(artifacts)
    }

    fn publish(&mut self) {
        let at = self.random.below(3);
        let publisher = usize::try_from(at).unwrap();
        let (token, source_id) = {
            let p = &self.publishers[publisher];
            (p.token.clone(), p.source_id.to_string())
        };
        let native = self.random.below(4);
        let known = self.origins.get(&(publisher, native)).cloned();
        let mut begin = json!({
            "harness": "claude-code", "native_id": format!("n{native}"), "source_id": source_id,
            "restore": true,
        });
        let mut target = known.clone();
        if known.is_none() && self.random.chance(50) {
            // Another source joins a session.
            let all: Vec<String> = self.contents.keys().cloned().collect();
            if let Some(session) = self.random.pick(&all).cloned() {
                self.team.sql(&format!(
                    "INSERT INTO session_grants
                         (team_id, session_id, subject_kind, subject_id, access, created_at)
                     SELECT '{}', '{session}', 'principal', custodian_id, 'continue', 0
                       FROM sources WHERE id = '{source_id}'
                     ON CONFLICT DO NOTHING",
                    self.team.id
                ));
                begin["session_id"] = json!(session);
                target = Some(session);
            }
        }
        let current = target.as_ref().and_then(|id| self.contents.get(id)).cloned();
        let current = current.unwrap_or_default();
        let content = self.changed(&current);
        if self.random.chance(30) {
            begin["title"] = json!(format!("T{}", self.random.below(3)));
        }
        if self.random.chance(40) {
            begin["artifacts"] = self.artifacts(publisher);
        }
        let mut sent = content.clone();
        if !current.is_empty() && self.random.chance(40) {
            let keep = current.iter().zip(&content).take_while(|(a, b)| a == b).count();
            let revision = self.team.count(&format!(
                "SELECT revision FROM sessions WHERE id = '{}'",
                target.as_deref().unwrap()
            ));
            begin["base"] = json!({ "revision": revision, "keep": keep });
            sent = content[keep..].to_vec();
        }
        let capture = self.team.begin(&token, begin);
        match self.random.below(10) {
            0 => return,
            1 => {
                self.team.delete(&token, &format!("/captures/{capture}"));
                return;
            }
            2 => {
                let part = json!({ "messages": sent }).to_string();
                self.team.put(&token, &format!("/captures/{capture}/parts/0"), &part);
                return;
            }
            _ => {}
        }
        let got = self.team.fill(&token, &capture, &sent);
        let session = got.data(200)["session_id"].as_str().unwrap().to_owned();
        self.origins.insert((publisher, native), session.clone());
        if got.data(200)["unchanged"] != true {
            self.contents.insert(session, content);
        }
    }

    fn upload(&mut self) {
        let publisher = usize::try_from(self.random.below(3)).unwrap();
        let token = self.publishers[publisher].token.clone();
        // Few contents, so that uploads share chunks.
        let length = if self.random.chance(20) { CHUNK + 10 } else { 10 };
        let file: Vec<u8> = vec![self.random.below(4).to_le_bytes()[0]; length];
        let sha256 = hex(&Sha256::digest(&file));
        let body = json!({ "size": file.len(), "sha256": sha256, "media_type": "x/y",
                           "chunk_size": CHUNK });
        let got = self.team.post(&token, "/uploads", body);
        let upload = got.data(201)["id"].as_str().unwrap().to_owned();
        self.uploads.push((publisher, upload.clone()));
        if self.random.chance(15) {
            return;
        }
        for (index, bytes) in file.chunks(CHUNK).enumerate() {
            let digest = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(bytes));
            let digest = format!("sha-256=:{digest}:");
            let path = format!("/uploads/{upload}/chunks/{index}");
            let headers = [("content-digest", digest.as_str())];
            let got = self.team.send(&token, "PUT", &path, &headers, Some(bytes));
            assert_eq!(got.status, 204, "{}", got.json);
        }
        if self.random.chance(85) {
            let path = format!("/uploads/{upload}/commit");
            let got = self.team.send(&token, "POST", &path, &[], None);
            assert_eq!(got.status, 200, "{}", got.json);
        }
    }

    fn some_uploads(&mut self) -> String {
        let count = self.random.below(4);
        let mut ids: Vec<String> = (0..count)
            .filter_map(|_| self.random.pick(&self.uploads).map(|(_, id)| id.clone()))
            .collect();
        ids.sort();
        ids.dedup();
        json!(ids).to_string()
    }

    fn some_session(&mut self) -> Option<String> {
        let all: Vec<String> = self.contents.keys().cloned().collect();
        self.random.pick(&all).cloned()
    }

    fn continuation(&mut self) {
        let (team, now) = (self.team.id.to_string(), self.now());
        let uploads = self.some_uploads();
        match self.random.below(5) {
            0 | 1 => {
                let Some(session) = self.some_session() else { return };
                let id = self.name("continuation");
                self.team.sql(&format!(
                    "INSERT INTO continuations
                         (team_id, id, session_id, state, value_json, upload_ids_json, created_at,
                          updated_at)
                     VALUES ('{team}', '{id}', '{session}', 'pending', '{{}}', '{uploads}', {now},
                             {now})"
                ));
            }
            2 => self.team.sql(&format!(
                "UPDATE continuations SET upload_ids_json = '{uploads}', updated_at = {now}
                  WHERE rowid = (SELECT rowid FROM continuations WHERE settled_at IS NULL LIMIT 1)"
            )),
            3 => self.team.sql(&format!(
                "UPDATE continuations SET state = 'completed', settled_at = {now},
                        updated_at = {now}
                  WHERE rowid = (SELECT max(rowid) FROM continuations WHERE settled_at IS NULL)"
            )),
            _ => self.team.sql(
                "DELETE FROM continuations
                  WHERE rowid = (SELECT rowid FROM continuations LIMIT 1)",
            ),
        }
    }

    /// Cursors as the API makes them: over the list, or over an older revision.
    fn page(&mut self) {
        let token = self.team.owner.clone();
        if self.random.chance(40) {
            self.team.get(&token, "/sessions?limit=1");
            return;
        }
        let versions = self.team.lines(
            "SELECT s.id || '/messages?limit=1&revision=' || v.revision
               FROM sessions s, session_versions v
              WHERE v.session_id = s.id AND v.revision < s.revision AND s.deleted_at IS NULL",
        );
        if let Some(path) = self.random.pick(&versions) {
            let path = path.clone();
            self.team.sql(&format!(
                "INSERT INTO session_grants
                     (team_id, session_id, subject_kind, subject_id, access, created_at)
                 VALUES ('{}', '{}', 'principal', '{}', 'read', 0)
                 ON CONFLICT DO NOTHING",
                self.team.id,
                path.split('/').next().unwrap(),
                self.owner_id
            ));
            let got = self.team.get(&token, &format!("/sessions/{path}"));
            assert_eq!(got.status, 200, "{}", got.json);
        }
    }

    /// A cursor with many pairs, some of nothing and some twice.
    fn pins(&mut self) {
        let (team, now) = (self.team.id.to_string(), self.now());
        let pairs = self.team.lines("SELECT session_id, revision FROM session_versions");
        let mut snapshot: Vec<Json> = Vec::new();
        for _ in 0..=self.random.below(12) {
            let Some(pair) = self.random.pick(&pairs) else { break };
            let (session, revision) = pair.split_once(' ').unwrap();
            snapshot.push(json!([session, revision.parse::<i64>().unwrap()]));
            if self.random.chance(20) {
                snapshot.push(Json::Null);
            }
        }
        let id = self.name("cursor");
        let kind = if self.random.chance(50) { "list" } else { "search" };
        let expires_at = now + 1 + self.random.below(30).cast_signed() * MINUTE_MS;
        self.team.sql(&format!(
            "INSERT INTO cursors
                 (id, team_id, principal_id, kind, filters_hash, snapshot_json, expires_at)
             VALUES ('{id}', '{team}', 'p', '{kind}', '', '{}', {expires_at})",
            json!(snapshot)
        ));
    }

    fn delete_session(&mut self) {
        let Some(session) = self.some_session() else { return };
        self.contents.remove(&session);
        self.origins.retain(|_, of| *of != session);
        let db = self.team.db();
        let id = std::str::FromStr::from_str(&session).unwrap();
        let alive =
            format!("SELECT count(*) FROM sessions WHERE id = '{session}' AND deleted_at IS NULL");
        if self.team.count(&alive) == 1 {
            db.transaction(|tx| {
                teamplane::domain::sessions::end(tx, &self.team.id, &id, Some(&self.owner_id))
            })
            .unwrap();
        }
    }

    fn operation(&mut self) {
        let (team, now) = (self.team.id.to_string(), self.now());
        let machine = self.publishers[0].machine_id.to_string();
        let (operation, effect) = (self.name("operation"), self.name("effect"));
        let settled = self.random.chance(40);
        let (state, settled_at) =
            if settled { ("succeeded", now.to_string()) } else { ("running", "NULL".into()) };
        self.team.sql(&format!(
            "INSERT INTO operations
                 (team_id, id, principal_id, kind, state, input_json, created_at, updated_at,
                  settled_at)
             VALUES ('{team}', '{operation}', '{}', 'message', '{state}', '{{}}', {now}, {now},
                     {settled_at})",
            self.owner_id
        ));
        for n in 0..=self.random.below(3) {
            let state = if settled || self.random.chance(30) { "succeeded" } else { "pending" };
            self.team.sql(&format!(
                "INSERT INTO native_effects
                     (team_id, id, operation_id, machine_id, state, request_json, created_at)
                 VALUES ('{team}', '{effect}{n}', '{operation}', '{machine}', '{state}', '{{}}',
                         {now})"
            ));
        }
        let attachment = self.name("attachment");
        let closed = if self.random.chance(50) { now.to_string() } else { "NULL".into() };
        self.team.sql(&format!(
            "INSERT INTO attachments
                 (team_id, id, session_id, machine_id, binding_id, principal_id, state, created_at,
                  settled_at)
             VALUES ('{team}', '{attachment}', 's', '{machine}', 'b', 'p', 'closed', {now},
                     {closed})"
        ));
    }

    fn delivery(&mut self) {
        let (team, now) = (self.team.id.to_string(), self.now());
        let id = self.name("delivery");
        let settled = if self.random.chance(50) { now.to_string() } else { "NULL".into() };
        self.team.sql(&format!(
            "INSERT INTO app_webhook_deliveries
                 (id, team_id, app_id, event_type, body, state, next_at, created_at, settled_at)
             VALUES ('{id}', '{team}', 'app', 'x', 'body', 'pending', {now}, {now}, {settled})"
        ));
        for attempt in 0..self.random.below(4) {
            self.team.sql(&format!(
                "INSERT INTO app_webhook_attempts (delivery_id, attempt, at)
                 VALUES ('{id}', {attempt}, {now})"
            ));
        }
        if self.random.chance(50) {
            self.team.sql(&format!(
                "UPDATE app_webhook_deliveries SET state = 'delivered', settled_at = {now}
                  WHERE id = (SELECT id FROM app_webhook_deliveries
                               WHERE settled_at IS NULL LIMIT 1)"
            ));
        }
    }

    /// Apps that come, go, and hear of all that happens; receivers that answer this or that, and
    /// senders that die before they know.
    fn app(&mut self) {
        if !self.is_migrated {
            return;
        }
        let url = "https://example.com/hook";
        let body = json!({ "name": "app", "webhook_url": url, "events": ["*"] });
        let apps = self.team.lines("SELECT id FROM apps");
        let owner = self.team.owner.clone();
        match self.random.pick(&apps) {
            Some(app) if self.random.chance(30) => {
                assert_eq!(self.team.delete(&owner, &format!("/apps/{app}")).status, 204);
            }
            Some(app) if self.random.chance(30) => {
                let enabled = self.team.post(&owner, &format!("/apps/{app}/enable"), json!({}));
                assert_eq!(enabled.status, 200);
            }
            _ if apps.len() < 4 => assert_eq!(self.team.post(&owner, "/apps", body).status, 201),
            _ => {}
        }
        let db = self.team.db();
        for sending in delivering::lease(&db, &self.team.config).unwrap() {
            let status = *self.random.pick(&[Some(200), Some(500), Some(410), None]).unwrap();
            let outcome = Outcome { status, ..Outcome::default() };
            if self.random.chance(80) {
                db.transaction(|tx| delivering::record(tx, &sending, &outcome)).unwrap();
            }
        }
    }

    fn presence(&mut self) {
        let now = self.now();
        for team in [self.team.id.to_string(), self.other_team.clone()] {
            let machine = self.random.pick(&self.publishers).unwrap().machine_id.to_string();
            let lost = if self.random.chance(60) { now.to_string() } else { "NULL".into() };
            self.team.sql(&format!(
                "INSERT INTO machine_presence (team_id, machine_id, linked, lost_at, changed_at)
                 VALUES ('{team}', '{machine}', 1, {lost}, {now})
                 ON CONFLICT DO UPDATE SET linked = 1, lost_at = {lost};
                 INSERT INTO machine_presence_events (team_id, machine_id, linked, created_at)
                 VALUES ('{team}', '{machine}', 1, {now})"
            ));
        }
    }

    /// What hangs on sessions: grants, activity, bindings.
    fn belongings(&mut self) {
        let (team, now) = (self.team.id.to_string(), self.now());
        let Some(session) = self.some_session() else { return };
        let machine = self.publishers[0].machine_id.to_string();
        let (subject, binding) = (self.name("principal"), self.name("binding"));
        self.team.sql(&format!(
            "INSERT INTO session_grants
                 (team_id, session_id, subject_kind, subject_id, access, created_at)
             VALUES ('{team}', '{session}', 'principal', '{subject}', 'read', {now});
             INSERT INTO bindings (team_id, machine_id, id, session_id, value_json)
             SELECT '{team}', '{machine}', '{binding}', id, '{{}}' FROM sessions
              WHERE id = '{session}' AND deleted_at IS NULL;
             INSERT INTO session_activity
                 (team_id, source_id, harness, native_id, turn, observed_at)
             SELECT o.team_id, o.source_id, o.harness, o.native_id, 'busy', {now}
               FROM origins o, sessions s
              WHERE s.id = o.session_id AND s.id = '{session}' AND s.deleted_at IS NULL
             ON CONFLICT DO NOTHING"
        ));
        // A grant for a session that is on its way out goes with it.
        self.team.sql(
            "DELETE FROM session_grants
              WHERE (team_id, session_id) NOT IN (SELECT team_id, id FROM sessions)",
        );
    }

    /// Events supersede each other.
    /// Whatever it is answered: the rules say what is left.
    fn ledger(&mut self) {
        if !self.is_migrated {
            return;
        }
        let (run, holder) = (self.random.below(6), self.random.below(3));
        let (owner, path) = (self.team.owner.clone(), format!("/runs/r{run}"));
        let event = self.name("event");
        let sequence = self.count;
        match self.random.below(8) {
            0 => {
                let body =
                    json!({ "id": event, "sequence": sequence, "kind": "step", "payload": 1 });
                let body = json!({ "events": [body], "require": "none" });
                self.team.post(&owner, &format!("{path}/events"), body);
            }
            1 => {
                let tombstone = json!({ "id": event, "sequence": sequence, "payload": 1 });
                let body = json!({ "tombstone": tombstone });
                self.team.post(&owner, &format!("{path}/delete"), body);
            }
            2 => drop(self.team.delete(&owner, &path)),
            3 => drop(self.team.delete(&owner, &format!("{path}/claim?force=true"))),
            4 => drop(self.team.delete(&owner, &format!("{path}/claim?holder=h{holder}"))),
            _ => {
                let body = json!({ "holder": format!("h{holder}"), "mode": "takeover" });
                self.team.post(&owner, &format!("{path}/claim"), body);
            }
        }
    }

    fn retitle(&mut self) {
        for team in [self.team.id.to_string(), self.other_team.clone()] {
            for _ in 0..=self.random.below(3) {
                let resource = format!("resource_{}", self.random.below(3));
                let ends = self.random.chance(15);
                let team_id = std::str::FromStr::from_str(&team).unwrap();
                let event = teamplane::domain::events::Event {
                    name: "source.changed",
                    resource_kind: "source",
                    resource_id: &resource,
                    source_id: None,
                    principal_id: None,
                    data: json!({}),
                    stage: if ends {
                        teamplane::domain::events::Stage::Last
                    } else {
                        teamplane::domain::events::Stage::Current
                    },
                };
                let db = self.team.db();
                db.transaction(|tx| teamplane::domain::events::record(tx, &team_id, &event))
                    .unwrap();
            }
        }
    }

    fn retention(&mut self) {
        let retention = json!({
            "events_days": 1 + self.random.below(10),
            "deliveries_days": 1 + self.random.below(10),
            "journal_days": 1 + self.random.below(60),
            "sessions_days": if self.random.chance(50) { json!(1 + self.random.below(60)) }
                             else { Json::Null },
        });
        let token = self.team.owner.clone();
        let got = self.team.patch(&token, "", json!({ "retention": retention }));
        assert_eq!(got.status, 200, "{}", got.json);
    }

    fn logs(&mut self) {
        let now = self.now();
        for team in [self.team.id.to_string(), self.other_team.clone()] {
            self.team.sql(&format!(
                "INSERT INTO journal
                     (team_id, principal_id, action, target_id, request_id, created_at)
                 VALUES ('{team}', 'p', 'a', 't', 'r', {now})"
            ));
        }
    }

    /// Content that events name, or grants, or nothing; bodies that nobody published.
    fn content(&mut self) {
        if !self.is_migrated {
            return;
        }
        let (team, now) = (self.team.id.to_string(), self.now());
        for _ in 0..=self.random.below(3) {
            let length = usize::try_from(1 + self.random.below(12)).unwrap();
            let file = vec![7; if length == 12 { 300_000 } else { length }];
            let name = format!("sha256:{}", hex(&Sha256::digest(&file)));
            let path = format!("/content/{name}");
            let token = self.team.owner.clone();
            match self.random.below(5) {
                0 => self.team.sql(&format!(
                    "INSERT INTO content_refs VALUES ('{team}', '{name}', {length})
                     ON CONFLICT DO NOTHING"
                )),
                1 => self.team.sql(&format!("DELETE FROM content_refs WHERE ref = '{name}'")),
                2 if self.random.chance(20) => {
                    let path = format!("{path}/grants/agent");
                    assert_eq!(self.team.send(&token, "PUT", &path, &[], None).status, 200);
                }
                3 => {
                    let id = self.name("body");
                    self.team.sql(&format!(
                        "INSERT INTO staged_bodies VALUES ('{team}', '{id}', {now});
                         INSERT INTO body_chunks VALUES ('{team}', '{id}', 0, x'00')"
                    ));
                }
                _ => {
                    let got = self.team.send(&token, "PUT", &path, &[], Some(&file));
                    assert_eq!(got.status, 204, "{}", got.json);
                }
            }
        }
    }

    fn expiring(&mut self) {
        let (team, now) = (self.team.id.to_string(), self.now());
        let key = self.name("key");
        let expires_at = now + self.random.below(40).cast_signed() * DAY_MS;
        self.team.sql(&format!(
            "INSERT INTO idempotency
                 (team_id, principal_id, key, request_hash, status, response_json, created_at,
                  expires_at)
             VALUES ('{team}', 'p', '{key}', x'00', 200, '{{}}', {now}, {expires_at});
             INSERT INTO app_install_codes (code_hash, team_id, app_id, created_at, expires_at)
             VALUES (CAST('{key}' AS BLOB), '{team}', 'a', {now}, {now} + 600000)"
        ));
    }

    fn clock(&mut self) {
        let units = [1, SECOND_MS, MINUTE_MS, 16 * MINUTE_MS, HOUR_MS, DAY_MS, 20 * DAY_MS];
        let unit = *self.random.pick(&units).unwrap();
        self.team.advance(unit * (1 + self.random.below(3).cast_signed()));
    }

    /// An agent does something with its conversations; much of it is refused.
    fn agent(&mut self) {
        self.count += 1;
        // What agents keep is kept for longer than anything else.
        if self.random.chance(5) {
            self.team.advance(100 * DAY_MS);
            self.renew_tokens();
        }
        // Each has its place, and is seldom looked for in another.
        let own = self.random.below(3);
        let (n, context) = (self.count, format!("c{own}"));
        let instance = self.random.below(3);
        let place = ["", "?worktree=w0&instance=i0", "?worktree=w1&instance=i1"];
        let at = if self.random.chance(90) { own } else { self.random.below(3) };
        let place = place[usize::try_from(at).unwrap()];
        let head = format!(
            "SELECT session_revision || ',' || durable_revision || ',' || source_revision
               FROM contexts WHERE id = '{context}'"
        );
        let head = self.team.lines(&head);
        let head: Vec<i64> = head
            .first()
            .map_or(vec![0, 0, 0], |text| text.split(',').map(|n| n.parse().unwrap()).collect());
        let expected = json!({ "session": head[0], "durable": head[1], "source": head[2] });
        let binding = json!({ "provider": "p", "model": "m", "generation": 1 });
        let event = json!({ "kind": "k", "role": "r", "size": 1, "provenance": "p",
                            "redaction_status": "n" });
        let bytes = format!("payload {}", self.random.below(5));
        let payload = json!({
            "ref": bytes, "size": bytes.len(), "retention": "session",
            "sha256": hex(&Sha256::digest(&bytes)),
            "bytes": base64::engine::general_purpose::STANDARD.encode(&bytes),
        });
        let encoded = bytes.replace(' ', "%20");
        let mut commit = json!({
            "operation_id": format!("op{n}"), "expected": expected, "binding": binding,
            "events": [event],
            "checkpoint": { "turn_id": 1, "algorithm": "a", "schema_version": 1,
                            "source_start": self.random.below(head[2].unsigned_abs() + 1),
                            "active_context": [n] },
        });
        let (method, path, body) = match self.random.below(24) {
            0..=2 => ("PUT", format!("/contexts/{context}{place}"), json!({ "binding": binding })),
            3..=6 => ("POST", format!("/contexts/{context}/commit{place}"), commit),
            7 | 8 => {
                commit["payloads"] = json!([payload]);
                commit["events"][0]["payload_ref"] = json!(bytes);
                ("POST", format!("/contexts/{context}/commit{place}"), commit)
            }
            9..=11 => {
                commit["checkpoint"].as_object_mut().unwrap().remove("active_context");
                commit["checkpoint"]["active_context_ref"] = json!(bytes);
                ("POST", format!("/contexts/{context}/commit{place}"), commit)
            }
            12 | 13 => ("PUT", format!("/contexts/{context}/payloads/{encoded}{place}"), json!(0)),
            14 => {
                let body = json!({ "operation_id": format!("op{n}"), "expected": expected,
                                   "binding": binding, "reason": "r", "clear": n % 2 == 0 });
                ("POST", format!("/contexts/{context}/advance{place}"), body)
            }
            15 => {
                let body = json!({ "legacy_id": "l", "operation_key": format!("k{n}"),
                                   "events": [event] });
                ("POST", format!("/contexts/{context}/import{place}"), body)
            }
            16 => ("DELETE", format!("/contexts/{context}{place}"), Json::Null),
            17 => ("PUT", format!("/snapshots/{context}{place}"), json!({ "messages": [n] })),
            18 => {
                let body = json!({ "names": ["tool"] });
                ("PUT", format!("/snapshots/{context}/admission{place}"), body)
            }
            19 => ("GET", format!("/contexts/{context}/export{place}"), Json::Null),
            20 => {
                let body = json!({ "worktree": format!("w{instance}"), "path": "/p",
                                   "instance_id": format!("i{instance}") });
                ("POST", "/worktrees".to_owned(), body)
            }
            21 | 22 => {
                let moves =
                    ["register", "register", "begin-deletion", "finish-deletion", "abandon"];
                let to = *self.random.pick(&moves).unwrap();
                ("POST", format!("/worktrees/i{instance}/{to}"), json!({}))
            }
            _ => {
                let body = json!({ "kind": "token_usage", "provider": "p", "model": "m",
                                   "session_id": context, "input_tokens": n });
                ("POST", "/usage".to_owned(), body)
            }
        };
        let body = if path.contains("/payloads/") { bytes } else { body.to_string() };
        let capability = crate::agent::capability(1);
        let headers = [("x-context-capability", capability.as_str())];
        let owner = self.team.owner.clone();
        let body = (!matches!(method, "GET" | "DELETE")).then_some(body.as_bytes());
        let got = self.team.send(&owner, method, &path, &headers, body);
        assert!(got.status < 500, "{method} {path}: {}", got.json);
    }

    /// A whole pass, or one that meets what a pass may meet.
    fn maintain(&mut self) {
        if !self.is_migrated {
            return;
        }
        match self.random.below(6) {
            0 => self.cut_pass(),
            1 => self.failing_pass(),
            2 => self.interrupted_pass(),
            3 => self.pass_in_a_full_store(),
            _ => drop(self.team.pass()),
        }
    }

    /// The object dies after a few slices, or after any statement.
    fn cut_pass(&mut self) {
        let mut pass = Pass::new(self.now());
        if self.random.chance(50) {
            for _ in 0..=self.random.below(2) {
                if pass.slice(&self.team.db()) == Slice::Done {
                    break;
                }
            }
            return;
        }
        self.team.driver.fail_after(Some(self.random.below(120)));
        while pass.slice(&self.team.db()) == Slice::More {}
        self.team.driver.fail_after(None);
    }

    /// One statement fails, and the pass goes on.
    fn failing_pass(&mut self) {
        self.team.driver.fail_once(self.random.below(120));
        drop(self.team.pass());
        self.team.driver.fail_after(None);
    }

    /// Others write between two slices, and time passes or jumps.
    fn interrupted_pass(&mut self) {
        let mut pass = Pass::new(self.now());
        while pass.slice(&self.team.db()) == Slice::More {
            match self.random.below(4) {
                0 => self.team.advance(1 + self.random.below(1_000).cast_signed()),
                1 => self.clock(),
                _ => self.write(),
            }
            self.renew_tokens();
        }
    }

    /// Not one page more is to be had. The platform would end the object, so the refused statement
    /// ends the pass too.
    fn pass_in_a_full_store(&mut self) {
        let pragma = |sql: &str| -> i64 {
            self.team.driver.connection().query_row(sql, [], |row| row.get(0)).unwrap()
        };
        let pages = pragma("PRAGMA page_count");
        let allowed = pragma("PRAGMA max_page_count");
        pragma(&format!("PRAGMA max_page_count = {pages}"));
        let mut pass = Pass::new(self.now());
        while pass.slice(&self.team.db()) == Slice::More && pass.outcome().failed.is_empty() {}
        pragma(&format!("PRAGMA max_page_count = {allowed}"));
    }
}

fn run(seed: u64) -> BTreeSet<&'static str> {
    let mut world = World::new(seed);
    for _ in 0..OPERATIONS {
        world.step();
    }
    world.migrate();
    if world.waits() {
        world.team.settle();
        world.team.advance(31 * MINUTE_MS);
    }
    // At times what is kept longest goes too.
    if world.random.chance(20) {
        world.team.advance(401 * DAY_MS);
    }
    world.check();
    std::mem::take(&mut world.removed)
}

/// What all histories together must have made retention do.
const KINDS: &[&str] = &[
    "bodies",
    "checkpoints",
    "context_audits",
    "context_events",
    "context_imports",
    "context_operations",
    "payloads",
    "usage_records",
    "worktrees",
    "blobs",
    "bodies",
    "body_chunks",
    "captures",
    "chunk_refs",
    "claim_history",
    "codes",
    "content",
    "continuations_expired",
    "credentials",
    "cursor_pins",
    "cursors",
    "deliveries",
    "delivery_attempts",
    "effects",
    "effects_lost",
    "events",
    "expiries",
    "idempotency",
    "journal",
    "links",
    "messages",
    "parts",
    "presence_events",
    "session_rows",
    "sessions",
    "sessions_aged",
    "settled",
    "uploads",
    "uploads_in_flight",
    "versions",
    "walked",
];

fn run_all(seeds: impl Iterator<Item = u64>) {
    let mut removed = BTreeSet::new();
    let mut failed = Vec::new();
    for seed in seeds {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(kinds) => removed.extend(kinds),
            Err(_) => failed.push(seed),
        }
    }
    assert_eq!(failed, [0; 0], "these seeds failed");
    if std::env::var("SOAK_HISTORIES").is_ok() {
        return;
    }
    let missed: Vec<_> = KINDS.iter().filter(|kind| !removed.contains(*kind)).collect();
    assert!(missed.is_empty(), "no history removed any of {missed:?}");
}

/// A number from the environment, which `npm run soak` sets.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// A part of the seeds, so that two tests run beside each other.
fn seeds(part: usize) -> impl Iterator<Item = u64> {
    let first = setting("SOAK_FIRST", 1);
    let all = first..first + setting("SOAK_HISTORIES", HISTORIES);
    FOUND.iter().copied().chain(all).skip(part).step_by(2)
}

#[test]
fn any_history_leaves_what_the_rules_leave() {
    run_all(seeds(0));
}

#[test]
fn any_other_history_leaves_what_the_rules_leave() {
    run_all(seeds(1));
}
