//! Rules: what of its roots a machine publishes. The machine reads them in its configuration.
use crate::api::{Answer, Call};
use crate::auth::Role;
use crate::domain::live::News;
use crate::domain::machines::{self, Machine};
use crate::domain::{journal, sources};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{Id, MachineId, RuleId, SourceId, TeamId};
use crate::json;
use crate::limits::{
    HARNESS_CHARS_MAX, NAME_CHARS_MAX, PATTERN_CHARS_MAX, RULE_BYTES_MAX, RULE_ITEMS_MAX, RULES_MAX,
};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Row, Tx};

#[derive(Debug, serde::Serialize)]
pub struct Rule {
    pub id: RuleId,
    pub machine_id: MachineId,
    pub source_id: SourceId,
    #[serde(flatten)]
    pub what: What,
    pub state: String,
    pub revision: i64,
    pub created_at: i64,
}

/// What a rule takes in, as its row keeps it.
#[derive(Debug, Default, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct What {
    pub root_id: String,
    /// None: every harness.
    pub harnesses: Vec<String>,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
}

impl What {
    fn to_column(&self) -> Result<String> {
        let json = json::to_string(self)?;
        // Every rule of a machine is in its configuration.
        if json.len() > RULE_BYTES_MAX {
            return Err(Error::too_large(RULE_BYTES_MAX, "a rule"));
        }
        Ok(json)
    }
}

#[derive(Clone, Copy, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Active,
    Paused,
}

impl State {
    fn text(self) -> &'static str {
        match self {
            State::Active => "active",
            State::Paused => "paused",
        }
    }
}

/// A rule as sent: whole to make one, in part to change one.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    #[serde(default, deserialize_with = "json::not_null")]
    root_id: Option<String>,
    #[serde(default, deserialize_with = "json::not_null")]
    harnesses: Option<Vec<String>>,
    #[serde(default, deserialize_with = "json::not_null")]
    include: Option<Vec<String>>,
    #[serde(default, deserialize_with = "json::not_null")]
    exclude: Option<Vec<String>>,
    #[serde(default, deserialize_with = "json::not_null")]
    state: Option<State>,
}

impl Body {
    fn validate(&self) -> Result<()> {
        if let Some(root_id) = &self.root_id {
            guard::line("root_id", root_id, NAME_CHARS_MAX)?;
        }
        for (field, items, chars_max) in [
            ("harnesses", &self.harnesses, HARNESS_CHARS_MAX),
            ("include", &self.include, PATTERN_CHARS_MAX),
            ("exclude", &self.exclude, PATTERN_CHARS_MAX),
        ] {
            let items = items.as_deref().unwrap_or_default();
            guard::at_most(field, items.len(), RULE_ITEMS_MAX)?;
            for (index, item) in items.iter().enumerate() {
                guard::line(&format!("{field}[{index}]"), item, chars_max)?;
            }
        }
        Ok(())
    }

    fn over(self, before: What) -> What {
        What {
            root_id: self.root_id.unwrap_or(before.root_id),
            harnesses: self.harnesses.unwrap_or(before.harnesses),
            include: self.include.unwrap_or(before.include),
            exclude: self.exclude.unwrap_or(before.exclude),
        }
    }
}

/// `GET /machines/{machine}/rules` lists a machine's rules, by id.
///
/// `403` unless the caller is its custodian or an admin.
pub fn list(db: &Db, call: &Call) -> Result<Answer> {
    let query: PageQuery = call.query()?;
    let page = Keyset::new(call, call.segment(0), &query)?;
    let machine = machines::load_governed(db, call)?;

    let rules = read_page(db, &call.who.team_id, &machine.id, page.after(), page.limit + 1)?;
    let rules = rules.into_iter().map(|rule| (rule.id.to_string(), rule)).collect();

    let (items, next) = page.page(rules);
    call.list(&items, next.as_deref())
}

/// `POST /machines/{machine}/rules` makes a rule.
///
/// `403` unless the caller is a member and its custodian, or an admin; `409 conflict` on a revoked
/// machine and when it has as many rules as it may.
pub fn create(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Body = call.json()?;
    body.validate()?;
    if body.root_id.is_none() {
        return Err(Error::field("root_id", "missing field `root_id`"));
    }
    let state = body.state.unwrap_or(State::Active);
    let value = body.over(What::default()).to_column()?;
    guard::role(&call.who, Role::Member)?;
    let machine = machines::load_governed(tx, call)?;
    must_be_active(&machine)?;

    let team_id = &call.who.team_id;
    let count = tx.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM sync_rules
                                WHERE team_id = ?1 AND machine_id = ?2
                                LIMIT ?3)",
        params![team_id, &machine.id, RULES_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("rules of a machine", count, RULES_MAX)?;
    let source = sources::load_of_machine(tx, team_id, &machine.id)?;
    let id: RuleId = tx.new_id();
    tx.execute(
        "INSERT INTO sync_rules
             (team_id, id, machine_id, source_id, value_json, state, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![team_id, &id, &machine.id, &source.id, &value, state.text(), tx.now_ms],
    )?;
    call.live.borrow_mut().tell(News::Configured(machine.id.clone()));
    journal::write(tx, call, "rule.created", id.as_str())?;

    let rule = load(tx, team_id, &machine.id, &id)?;
    call.versioned(201, &rule, rule.revision)
}

/// `GET /machines/{machine}/rules/{rule}` is one of them.
pub fn get(db: &Db, call: &Call) -> Result<Answer> {
    let machine = machines::load_governed(db, call)?;

    let rule = load(db, &call.who.team_id, &machine.id, &call.id(1)?)?;

    call.versioned(200, &rule, rule.revision)
}

/// `PATCH /machines/{machine}/rules/{rule}` changes what it names of a rule; a list is replaced.
///
/// `403` as for making one.
pub fn change(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Body = call.json()?;
    body.validate()?;
    guard::role(&call.who, Role::Member)?;
    let machine = machines::load_governed(tx, call)?;

    let team_id = &call.who.team_id;
    let before = load(tx, team_id, &machine.id, &call.id(1)?)?;
    call.if_match(before.revision)?;
    let state = match body.state {
        Some(state) => state.text(),
        None => &before.state,
    };
    let what = body.over(before.what.clone());
    if (&what, state) == (&before.what, &*before.state) {
        return call.versioned(200, &before, before.revision);
    }
    tx.execute(
        "UPDATE sync_rules SET value_json = ?3, state = ?4, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, &before.id, &what.to_column()?, state],
    )?;
    call.live.borrow_mut().tell(News::Configured(machine.id.clone()));
    journal::write(tx, call, "rule.changed", before.id.as_str())?;

    let rule = load(tx, team_id, &machine.id, &before.id)?;
    call.versioned(200, &rule, rule.revision)
}

/// `DELETE /machines/{machine}/rules/{rule}` removes a rule.
///
/// `403` as for making one.
pub fn delete(tx: &Tx, call: &Call) -> Result<Answer> {
    guard::role(&call.who, Role::Member)?;
    let machine = machines::load_governed(tx, call)?;

    let team_id = &call.who.team_id;
    let rule = load(tx, team_id, &machine.id, &call.id(1)?)?;
    call.if_match(rule.revision)?;
    tx.execute(
        "DELETE FROM sync_rules WHERE team_id = ?1 AND id = ?2",
        params![team_id, &rule.id],
    )?;
    call.live.borrow_mut().tell(News::Configured(machine.id.clone()));
    journal::write(tx, call, "rule.deleted", rule.id.as_str())?;

    Ok(Answer::no_content())
}

/// Every rule of a machine, by id.
pub fn all_of(db: &Db, team_id: &TeamId, machine_id: &MachineId) -> Result<Vec<Rule>> {
    read_page(db, team_id, machine_id, "", RULES_MAX)
}

/// Removes the rules of a machine that is revoked.
pub fn remove_all_of(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "DELETE FROM sync_rules WHERE team_id = ?1 AND machine_id = ?2",
        params![team_id, machine_id],
    )
}

fn read_page(
    db: &Db,
    team_id: &TeamId,
    machine_id: &MachineId,
    after: &str,
    limit: usize,
) -> Result<Vec<Rule>> {
    db.query(
        "SELECT id, machine_id, source_id, value_json, state, revision, created_at
           FROM sync_rules
          WHERE team_id = ?1 AND machine_id = ?2 AND id > ?3
          ORDER BY id
          LIMIT ?4",
        params![team_id, machine_id, after, limit],
        read,
    )
}

fn load(db: &Db, team_id: &TeamId, machine_id: &MachineId, rule_id: &RuleId) -> Result<Rule> {
    db.query_optional(
        "SELECT id, machine_id, source_id, value_json, state, revision, created_at
           FROM sync_rules
          WHERE team_id = ?1 AND id = ?2 AND machine_id = ?3",
        params![team_id, rule_id, machine_id],
        read,
    )?
    .ok_or_else(Error::not_found)
}

fn read(row: &mut Row) -> Result<Rule> {
    Ok(Rule {
        id: row.get()?,
        machine_id: row.get()?,
        source_id: row.get()?,
        what: serde_json::from_str(&row.get::<String>()?)
            .map_err(|e| Error::internal(format!("a rule's value_json: {e}")))?,
        state: row.get()?,
        revision: row.get()?,
        created_at: row.get()?,
    })
}

fn must_be_active(machine: &Machine) -> Result<()> {
    if machine.is_active() {
        return Ok(());
    }
    Err(Error::conflict("the machine is revoked; enrol it again"))
}
