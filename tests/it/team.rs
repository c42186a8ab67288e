//! One object in memory, with a clock that the test sets: `team.post(&token, "/sessions", json)`.
use serde_json::Value as Json;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use teamplane::api::{self, Answer, Body, Config, Payload, Plane, Reply, Request};
use teamplane::auth::{Kind, Role};
use teamplane::domain::credentials::{self, Holder};
use teamplane::domain::links::Link;
use teamplane::domain::live::Live;
use teamplane::domain::members;
use teamplane::domain::streams::Watch;
use teamplane::domain::teams::{CreateTeam, NewOwner, create};
use teamplane::ids::{AppId, Entropy, Id, MachineId, PrincipalId, ServerId, SourceId, TeamId};
use teamplane::limits::{
    INSTALL_BYTES_MAX, MACHINE_TOKEN_AGE_MS, STORE_BYTES_MAX_DEFAULT, UPLOAD_BYTES_MAX_DEFAULT,
};
use teamplane::maintain::Runner;
use teamplane::params;
use teamplane::rate::RateLimiter;
use teamplane::store::Db;
use teamplane::store::migrate;
use teamplane::store::native::Native;

pub const START_MS: i64 = 1_700_000_000_000;
/// A streamed body comes in pieces of so many bytes.
const PIECE_BYTES: usize = 100_000;

/// Columns that later migrations add to tables of the base schema, which every request reads: today's
/// code meets a store without them only in tests, so those tests add them by hand.
const LATER_COLUMNS: &[(&str, &str)] = &[("teams", "import_json")];

/// Different bytes at every call, the same in every run.
#[derive(Default)]
pub struct Seeded(Cell<u64>);

impl Entropy for Seeded {
    fn fill(&self, bytes: &mut [u8]) {
        for byte in bytes {
            // xorshift64*: any fixed sequence does.
            let mut x = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
            x ^= x >> 12;
            x ^= x << 25;
            x ^= x >> 27;
            self.0.set(x);
            *byte = x.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()[7];
        }
    }
}

pub struct Team {
    pub driver: Native,
    pub entropy: Seeded,
    pub now_ms: Cell<i64>,
    pub config: Config,
    pub server_id: ServerId,
    limiter: RefCell<RateLimiter>,
    pub runner: Rc<RefCell<Runner>>,
    pub id: TeamId,
    /// The owner's token.
    pub owner: String,
    requests: Cell<u64>,
    /// The link that was opened last.
    pub opened: RefCell<Option<Link>>,
    pub live: RefCell<Live>,
    /// The stream that was opened last.
    pub watched: RefCell<Option<Watch>>,
}

/// A person of the team and their token.
pub struct Person {
    pub id: PrincipalId,
    pub token: String,
}

/// A machine, the source it publishes to, and its token.
pub struct Publisher {
    pub machine_id: MachineId,
    pub source_id: SourceId,
    pub custodian_id: PrincipalId,
    pub token: String,
}

/// An answer as a client sees it.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub bytes: Vec<u8>,
    pub json: Json,
}

impl Got {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
    }
    /// The answer's data, which must have come with `status`.
    #[track_caller]
    pub fn data(&self, status: u16) -> &Json {
        assert_eq!(self.status, status, "{}", self.json);
        &self.json["data"]
    }
    #[track_caller]
    pub fn items(&self) -> &Vec<Json> {
        assert_eq!(self.status, 200, "{}", self.json);
        self.json["items"].as_array().expect("a list has items")
    }
    /// A refusal's status, code and field.
    pub fn refusal(&self) -> (u16, &str, &str) {
        let error = &self.json["error"];
        let text = |value: &'static str| error[value].as_str().unwrap_or_default();
        (self.status, text("code"), error["details"]["field"].as_str().unwrap_or_default())
    }
}

impl Default for Team {
    fn default() -> Team {
        Team::new()
    }
}

/// Looks at the plans of all that the test has run, unless it has failed already.
impl Drop for Team {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            crate::plans::check(&self.driver);
        }
    }
}

impl Team {
    pub fn new() -> Team {
        Team::over(Native::open_in_memory(), migrate::SCHEMA_VERSION)
    }

    /// Over a store whose schema has come only to `schema_version`.
    pub fn over(driver: Native, schema_version: i64) -> Team {
        Team::seeded(Seeded::default(), driver, schema_version)
    }

    /// With ids that no other object has.
    pub fn elsewhere() -> Team {
        let entropy = Seeded(Cell::new(0xffff_ffff));
        Team::seeded(entropy, Native::open_in_memory(), migrate::SCHEMA_VERSION)
    }

    fn seeded(entropy: Seeded, driver: Native, schema_version: i64) -> Team {
        let server_id = ServerId::random(&entropy);
        let db = Db::new(&driver, &entropy, START_MS);
        migrate::upgrade(&db, 0, &server_id, schema_version).expect("the migrations apply");
        if schema_version < migrate::SCHEMA_VERSION {
            for (table, column) in LATER_COLUMNS {
                let add = format!("ALTER TABLE {table} ADD COLUMN {column} TEXT");
                driver.connection().execute_batch(&add).expect("it is not there");
            }
        }
        let mut team = Team {
            driver,
            entropy,
            now_ms: Cell::new(START_MS),
            config: Config {
                rate_limit_per_s: 0,
                upload_bytes_max: UPLOAD_BYTES_MAX_DEFAULT,
                store_bytes_max: STORE_BYTES_MAX_DEFAULT,
                app_root_secret: Some("root".into()),
                webhook_allow_local: true,
            },
            server_id,
            limiter: RefCell::default(),
            runner: Rc::default(),
            id: TeamId::from_hex(&"0".repeat(32)),
            owner: String::new(),
            requests: Cell::default(),
            opened: RefCell::default(),
            live: RefCell::default(),
            watched: RefCell::default(),
        };
        (team.id, team.owner) = team.another("Acme");
        team
    }

    /// Brings a store of an older schema up to date.
    pub fn migrate(&self) {
        for (table, column) in LATER_COLUMNS {
            let drop = format!("ALTER TABLE {table} DROP COLUMN {column}");
            self.driver.connection().execute_batch(&drop).expect("the column is there");
        }
        migrate::initialise(&self.db(), &self.server_id).expect("the migrations apply");
    }

    /// Makes one more team in the same object; its id and its owner's token.
    pub fn another(&self, name: &str) -> (TeamId, String) {
        let id = TeamId::random(&self.entropy);
        let owner = NewOwner { name: "Ada".into(), email: None };
        let body = CreateTeam { name: name.into(), owner };
        let created = self.db().transaction(|tx| create(tx, &id, &body)).expect("a team is made");
        (id, created.credential.token.expect("a new token is shown"))
    }

    /// Adds a person with that role.
    pub fn person(&self, name: &str, role: Role) -> Person {
        let made = self.db().transaction(|tx| {
            let id = members::insert(tx, &self.id, name, None, role)?;
            let holder = Holder {
                kind: Kind::User,
                team_id: &self.id,
                principal_id: &id,
                source_id: None,
                machine_id: None,
                app_id: None,
            };
            let credential = credentials::issue(tx, &holder, MACHINE_TOKEN_AGE_MS)?;
            Ok(Person { id, token: credential.token.expect("a new token is shown") })
        });
        made.expect("a person is added")
    }

    /// A machine of a new member, with a restricted source.
    pub fn publisher(&self, name: &str) -> Publisher {
        self.publisher_of(&self.person(&format!("{name}'s custodian"), Role::Member).id, name)
    }

    /// A machine of that person, with a restricted source.
    pub fn publisher_of(&self, custodian_id: &PrincipalId, name: &str) -> Publisher {
        let made = self.db().transaction(|tx| {
            let (machine_id, source_id): (MachineId, SourceId) = (tx.new_id(), tx.new_id());
            tx.execute(
                "INSERT INTO machines
                     (team_id, id, name, custodian_id, enrollment_key, created_at)
                 VALUES (?1, ?2, ?3, ?4, ?2, ?5)",
                params![&self.id, &machine_id, name, custodian_id, tx.now_ms],
            )?;
            tx.execute(
                "INSERT INTO sources
                     (team_id, id, name, kind, machine_id, custodian_id, visibility, state,
                      created_at)
                 VALUES (?1, ?2, ?3, 'connector', ?4, ?5, 'restricted', 'active', ?6)",
                params![
                    &self.id,
                    &source_id,
                    &format!("{name} connector"),
                    &machine_id,
                    custodian_id,
                    tx.now_ms
                ],
            )?;
            let holder = Holder {
                kind: Kind::Machine,
                team_id: &self.id,
                principal_id: custodian_id,
                source_id: Some(&source_id),
                machine_id: Some(&machine_id),
                app_id: None,
            };
            let credential = credentials::issue(tx, &holder, MACHINE_TOKEN_AGE_MS)?;
            let token = credential.token.expect("a new token is shown");
            Ok(Publisher { machine_id, source_id, custodian_id: custodian_id.clone(), token })
        });
        made.expect("a machine is enrolled")
    }

    /// An app with those scopes: its principal and its token.
    pub fn app(&self, name: &str, scopes: &[&str]) -> Person {
        let made = self.db().transaction(|tx| {
            let (id, app_id): (PrincipalId, AppId) = (tx.new_id(), tx.new_id());
            tx.execute(
                "INSERT INTO principals (id, kind, name, created_at) VALUES (?1, 'app', ?2, ?3)",
                params![&id, name, tx.now_ms],
            )?;
            tx.execute(
                "INSERT INTO apps (team_id, id, name, principal_id, scopes_json, created_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    &self.id,
                    &app_id,
                    name,
                    &id,
                    &serde_json::json!(scopes).to_string(),
                    tx.now_ms
                ],
            )?;
            let holder = Holder {
                kind: Kind::App,
                team_id: &self.id,
                principal_id: &id,
                source_id: None,
                machine_id: None,
                app_id: Some(&app_id),
            };
            let credential = credentials::issue(tx, &holder, MACHINE_TOKEN_AGE_MS)?;
            Ok(Person { id, token: credential.token.expect("a new token is shown") })
        });
        made.expect("an app is installed")
    }

    /// The newest event, as `[type, resource, data]`.
    pub fn last_event(&self) -> (String, String, Json) {
        let newest = "SELECT type, resource_id, value_json FROM org_events
                       ORDER BY sequence DESC LIMIT 1";
        self.driver
            .connection()
            .query_row(newest, [], |row| {
                let data: String = row.get(2)?;
                Ok((row.get(0)?, row.get(1)?, serde_json::from_str(&data).unwrap_or_default()))
            })
            .expect("there are events")
    }

    /// The types of the events behind `sequence`, in order, without their data.
    pub fn events_since(&self, sequence: i64) -> Vec<String> {
        let later = "SELECT type FROM org_events WHERE sequence > ?1 ORDER BY sequence";
        let mut statement = self.driver.connection().prepare(later).expect("the query is good");
        let types = statement.query_map([sequence], |row| row.get(0)).expect("the query runs");
        types.map(|name| name.expect("a type is a text")).collect()
    }

    /// What any change raises: the newest event's sequence and the journal's.
    pub fn marks(&self) -> (i64, i64) {
        (
            self.count("SELECT coalesce(max(sequence), 0) FROM org_events"),
            self.count("SELECT coalesce(max(sequence), 0) FROM journal"),
        )
    }

    /// Whose token it is; nothing once it is refused.
    pub fn is_accepted(&self, token: &str) -> bool {
        self.get(token, "/me").status == 200
    }

    pub fn id_text(&self) -> &str {
        self.id.as_str()
    }

    pub fn db(&self) -> Db<'_> {
        Db::new(&self.driver, &self.entropy, self.now_ms.get())
    }

    /// What the core is called with.
    pub fn plane(&self) -> Plane<'_> {
        Plane {
            db: self.db(),
            server_id: &self.server_id,
            config: &self.config,
            limiter: &self.limiter,
            runner: &self.runner,
            live: &self.live,
        }
    }

    pub fn advance(&self, ms: i64) {
        self.now_ms.set(self.now_ms.get() + ms);
    }

    /// Sends a request as the object would get it: `path` is below the team, headers lower-case.
    pub fn send(
        &self,
        token: &str,
        method: &str,
        path: &str,
        headers: &[(&'static str, &str)],
        body: Option<&[u8]>,
    ) -> Got {
        self.send_to(&format!("/v1/teams/{}{path}", self.id), token, method, headers, body)
    }

    pub fn send_to(
        &self,
        address: &str,
        token: &str,
        method: &str,
        headers: &[(&'static str, &str)],
        body: Option<&[u8]>,
    ) -> Got {
        self.requests.set(self.requests.get() + 1);
        let request_id = format!("request_{:032x}", self.requests.get());
        let mut all: Vec<(&'static str, String)> =
            headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        if !token.is_empty() {
            all.push(("authorization", format!("Bearer {token}")));
        }
        let (path, query) = address.split_once('?').unwrap_or((address, ""));
        let matched = api::find_route(method, path);
        let installs = path == api::INSTALL;
        let limit = if installs { INSTALL_BYTES_MAX } else { 0 };
        let limit = matched.as_ref().map_or(limit, |matched| matched.route.payload.bytes_max());
        let bytes = body.unwrap_or_default();
        let streamed = matched
            .as_ref()
            .is_ok_and(|matched| matches!(matched.route.payload, Payload::Stream(_)));
        let fitting = (bytes.len() <= limit).then_some(bytes);
        let request = Request {
            method,
            path,
            query,
            headers: &all,
            body: if streamed { fitting.map(|_| &[][..]) } else { fitting },
            request_id: &request_id,
        };
        if installs {
            return self.received(api::install(&self.plane(), &request));
        }
        let answer = match api::handle(&self.plane(), &request) {
            Reply::Answer(answer) => answer,
            Reply::Intake(mut intake) => {
                let pieces = bytes.chunks(PIECE_BYTES).map(Some).chain([None]);
                let mut answers = pieces.map(|piece| intake(&self.db(), piece));
                let answer = answers.find_map(Result::transpose);
                let answer = answer.expect("a body is answered at its end");
                answer.unwrap_or_else(|error| Answer::refusal(error, &request_id))
            }
            Reply::Job(mut job) => loop {
                match job(&self.db()) {
                    Ok(Some(answer)) => break answer,
                    Ok(None) => {}
                    Err(error) => break Answer::refusal(error, &request_id),
                }
            },
        };
        self.received(answer)
    }

    fn received(&self, answer: Answer) -> Got {
        let bytes = match answer.body {
            Body::Empty => Vec::new(),
            Body::Json(text) => text.into_bytes(),
            Body::Bytes(bytes) => bytes,
            Body::Link(link) => {
                self.opened.replace(Some(link));
                Vec::new()
            }
            Body::Watch(watch) => {
                self.watched.replace(Some(watch));
                Vec::new()
            }
            Body::Chunks(mut next) => {
                let mut all = Vec::new();
                while let Some(chunk) = next(&self.db()).expect("the body goes on") {
                    all.extend(chunk);
                }
                all
            }
        };
        let text = String::from_utf8_lossy(&bytes);
        let json = serde_json::from_str(&teamplane::text::replace_lone_surrogates(&text));
        Got {
            status: answer.status,
            headers: answer.headers,
            json: json.unwrap_or_default(),
            bytes,
        }
    }

    pub fn get(&self, token: &str, path: &str) -> Got {
        self.send(token, "GET", path, &[], None)
    }
    pub fn post(&self, token: &str, path: &str, body: Json) -> Got {
        self.send(token, "POST", path, &[], Some(body.to_string().as_bytes()))
    }
    pub fn patch(&self, token: &str, path: &str, body: Json) -> Got {
        self.send(token, "PATCH", path, &[], Some(body.to_string().as_bytes()))
    }
    pub fn put(&self, token: &str, path: &str, body: &str) -> Got {
        self.send(token, "PUT", path, &[], Some(body.as_bytes()))
    }
    pub fn delete(&self, token: &str, path: &str) -> Got {
        self.send(token, "DELETE", path, &[], None)
    }

    /// One number from the store: `team.count("SELECT count(*) FROM messages")`.
    pub fn count(&self, sql: &str) -> i64 {
        self.driver.connection().query_row(sql, [], |row| row.get(0)).expect("the query runs")
    }
}
