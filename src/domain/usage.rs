//! What calls of models took: records, their sums, and how far estimates are off.
use crate::api::{Answer, Call};
use crate::domain::context_access::{APP_SCOPE, workspace};
use crate::error::{Error, Result};
use crate::guard;
use crate::json;
use crate::limits::{
    CALIBRATION_RATIO_MAX, CALIBRATION_RATIO_MIN, CALIBRATION_ROWS_MAX, DAY_MS,
    IDENTIFIER_BYTES_MAX, LABEL_BYTES_MAX, USAGE_RECORDS_MAX, USAGE_TOKENS_MAX,
};
use crate::page::{Keyset, PageQuery};
use crate::params;
use crate::store::{Db, Tx};
use serde_json::{Value as Json, json};

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    TokenUsage,
    CacheUsage,
    Compaction,
}

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    #[serde(default)]
    workspace: Option<String>,
    kind: Kind,
    #[serde(default)]
    provider: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    agent: Option<String>,
    #[serde(default)]
    reason: Option<String>,
    #[serde(default)]
    input_tokens: Option<i64>,
    #[serde(default)]
    output_tokens: Option<i64>,
    #[serde(default)]
    cache_read_tokens: Option<i64>,
    #[serde(default)]
    cache_write_tokens: Option<i64>,
    #[serde(default)]
    estimated_tokens: Option<i64>,
    #[serde(default)]
    before_tokens: Option<i64>,
    #[serde(default)]
    after_tokens: Option<i64>,
    #[serde(default)]
    summarized: Option<bool>,
}

impl Record {
    /// Empty texts are none.
    fn complete(mut self, at: &str) -> Result<Record> {
        let texts = [
            ("provider", &mut self.provider, IDENTIFIER_BYTES_MAX),
            ("model", &mut self.model, IDENTIFIER_BYTES_MAX),
            ("session_id", &mut self.session_id, IDENTIFIER_BYTES_MAX),
            ("agent", &mut self.agent, LABEL_BYTES_MAX),
            ("reason", &mut self.reason, LABEL_BYTES_MAX),
        ];
        for (field, text, bytes_max) in texts {
            *text = text.take().filter(|text| !text.is_empty());
            if let Some(text) = text {
                guard::label(format!("{at}{field}"), text, bytes_max)?;
            }
        }
        for (field, n) in [
            ("input_tokens", self.input_tokens),
            ("output_tokens", self.output_tokens),
            ("cache_read_tokens", self.cache_read_tokens),
            ("cache_write_tokens", self.cache_write_tokens),
            ("estimated_tokens", self.estimated_tokens),
            ("before_tokens", self.before_tokens),
            ("after_tokens", self.after_tokens),
        ] {
            guard::in_range(&format!("{at}{field}"), n.unwrap_or(0), 0..=USAGE_TOKENS_MAX)?;
        }
        let workspace = workspace(self.workspace.take());
        self.workspace = Some(workspace.map_err(|_| {
            Error::field(format!("{at}workspace"), "must be an identifier of 1 to 128 bytes")
        })?);
        Ok(self)
    }
}

/// `POST /usage` keeps one record, or up to `USAGE_RECORDS_MAX` as `records`, all or none.
pub fn record(tx: &Tx, call: &Call) -> Result<Answer> {
    #[derive(serde::Deserialize)]
    struct Either {
        records: Option<serde::de::IgnoredAny>,
    }
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Many {
        records: Vec<Record>,
    }
    let Either { records } = json::body(call.bytes())?;
    let records = if records.is_some() {
        let Many { records } = call.json()?;
        guard::at_most("records", records.len(), USAGE_RECORDS_MAX)?;
        let records = records.into_iter().enumerate();
        records.map(|(index, one)| one.complete(&format!("records[{index}]."))).collect()
    } else {
        call.json::<Record>()?.complete("").map(|one| vec![one])
    };
    let records: Vec<Record> = records?;
    guard::member_or_app(&call.who, APP_SCOPE)?;

    let rows = json::to_string(&records)?;
    tx.execute(
        "INSERT INTO usage_records
             (team_id, workspace, principal_id, kind, provider, model, session_id, agent, reason,
              input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
              estimated_tokens, before_tokens, after_tokens, summarized, created_at)
         SELECT ?2, value ->> 'workspace', ?3, value ->> 'kind', value ->> 'provider',
                value ->> 'model', value ->> 'session_id', value ->> 'agent', value ->> 'reason',
                value ->> 'input_tokens', value ->> 'output_tokens',
                value ->> 'cache_read_tokens', value ->> 'cache_write_tokens',
                value ->> 'estimated_tokens', value ->> 'before_tokens', value ->> 'after_tokens',
                value ->> 'summarized', ?4
           FROM json_each(?1)
          ORDER BY key",
        params![&rows, &call.who.team_id, &call.who.principal_id, tx.now_ms],
    )?;
    call.one(201, &json!({ "recorded": records.len() }))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CalibrationQuery {
    workspace: Option<String>,
    provider: String,
    model: String,
}

/// `GET /usage/calibration?provider=&model=` answers how many tokens came for each one that was
/// estimated, over the newest records that say both, within bounds; `404` without any.
#[allow(clippy::cast_precision_loss)] // A ratio of sums.
pub fn calibration(db: &Db, call: &Call) -> Result<Answer> {
    let CalibrationQuery { workspace: asked, provider, model } = call.query()?;
    let workspace = workspace(asked)?;
    guard::identifier("provider", &provider)?;
    guard::identifier("model", &model)?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;

    let (input, estimated, samples) = db.query_one(
        "SELECT coalesce(sum(input_tokens), 0), coalesce(sum(estimated_tokens), 0), count(*)
           FROM (SELECT input_tokens, estimated_tokens
                   FROM usage_records
                  WHERE team_id = ?1 AND workspace = ?2 AND provider = ?3 AND model = ?4
                    AND kind = 'token_usage' AND estimated_tokens > 0 AND input_tokens > 0
                  ORDER BY id DESC
                  LIMIT ?5)",
        params![&call.who.team_id, &workspace, &provider, &model, CALIBRATION_ROWS_MAX],
        |row| Ok((row.get::<i64>()?, row.get::<i64>()?, row.get::<i64>()?)),
    )?;
    if samples == 0 {
        return Err(Error::not_found());
    }
    let ratio =
        (input as f64 / estimated as f64).clamp(CALIBRATION_RATIO_MIN, CALIBRATION_RATIO_MAX);
    call.one(200, &json!({ "ratio": ratio, "samples": samples }))
}

#[derive(serde::Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum Axis {
    Day,
    Model,
    Session,
}

impl Axis {
    fn text(self) -> &'static str {
        match self {
            Axis::Day => "day",
            Axis::Model => "model",
            Axis::Session => "session",
        }
    }

    /// What a sum is of.
    fn named(self, key: &str, day: Option<&str>) -> Json {
        match self {
            Axis::Day => {
                json!({ "day": day, "day_at": key.parse::<i64>().unwrap_or(0) * DAY_MS })
            }
            Axis::Model => {
                let (provider, model) = key.split_once('\u{1f}').unwrap_or_default();
                let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
                json!({ "provider": some(provider), "model": some(model) })
            }
            Axis::Session => json!({ "session_id": key }),
        }
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct SumsQuery {
    by: Axis,
    workspace: Option<String>,
    limit: Option<i64>,
    cursor: Option<String>,
}

/// `GET /usage?by=day|model|session` lists sums over the records that are kept, by day in order,
/// else by name.
pub fn sums(db: &Db, call: &Call) -> Result<Answer> {
    let SumsQuery { by, workspace: asked, limit, cursor } = call.query()?;
    let workspace = workspace(asked)?;
    let filters = format!("{} {workspace}", by.text());
    let keyset = Keyset::new(call, &filters, &PageQuery { limit, cursor })?;
    guard::viewer_or_app(&call.who, APP_SCOPE)?;

    let rows = db.query(
        "SELECT key, iif(axis = 'day', date(key * 86400, 'unixepoch'), NULL), records,
                input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
                estimated_tokens
           FROM usage_sums
          WHERE team_id = ?1 AND workspace = ?2 AND axis = ?3 AND key > ?4
          ORDER BY key
          LIMIT ?5",
        params![&call.who.team_id, &workspace, by.text(), keyset.after(), keyset.limit + 1],
        |row| {
            let key: String = row.get()?;
            let day: Option<String> = row.get()?;
            let mut sum = by.named(&key, day.as_deref());
            for name in [
                "records",
                "input_tokens",
                "output_tokens",
                "cache_read_tokens",
                "cache_write_tokens",
                "estimated_tokens",
            ] {
                sum[name] = json!(row.get::<i64>()?);
            }
            Ok((key, sum))
        },
    )?;
    let (items, next) = keyset.page(rows);
    call.list(&items, next.as_deref())
}
