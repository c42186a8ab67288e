//! Every limit, budget and age, its unit last. Areas refer to these by name, never to numbers.

pub const SECOND_MS: i64 = 1_000;
pub const MINUTE_MS: i64 = 60 * SECOND_MS;
pub const HOUR_MS: i64 = 60 * MINUTE_MS;
pub const DAY_MS: i64 = 24 * HOUR_MS;

/// The largest integer that JSON clients and the platform carry exactly.
pub const SAFE_INTEGER_MAX: i64 = (1 << 53) - 1;
/// The same, as the platform carries it.
#[allow(clippy::cast_precision_loss)] // It is the largest that loses nothing.
pub const SAFE_INTEGER_MAX_F64: f64 = SAFE_INTEGER_MAX as f64;

// Requests.
pub const JSON_BYTES_MAX: usize = 1 << 20;
pub const HEARTBEAT_BYTES_MAX: usize = 2 << 20;
pub const URL_BYTES_MAX: usize = 8 << 10;
pub const TOKEN_BYTES_MAX: usize = 256;
pub const IDEMPOTENCY_KEY_CHARS_MAX: usize = 128;
pub const IDEMPOTENCY_AGE_MS: i64 = DAY_MS;
/// Rate limits are counted in tenths: parts, chunks and heartbeats cost one tenth.
pub const RATE_TENTHS: i64 = 10;
pub const RATE_LIMIT_PER_S_DEFAULT: i64 = 100;
pub const RATE_BURST_SECONDS: i64 = 2;
pub const RATE_BUCKETS_MAX: usize = 10_000;
pub const STORE_BYTES_MAX_DEFAULT: u64 = 10_000_000_000;
/// From this share of the store's limit on, writes that grow it are refused.
pub const STORE_FULL_PERCENT: u64 = 95;

/// How long a team may be in the making before a repeated request takes the work over.
pub const MAKE_TEAM_MS_MAX: i64 = 30 * SECOND_MS;
/// A team that has been in the making for longer will not be: its key is forgotten by now.
pub const MAKE_TEAM_AGE_MS: i64 = DAY_MS + HOUR_MS;
/// Teams in the making, or being deleted, that the Directory asks after in one go, and when again.
pub const TEAMS_ASKED_MAX: usize = 50;
pub const TEAMS_ASKED_MS: i64 = MINUTE_MS;
/// How long a browser may remember what CORS allows.
pub const CORS_AGE_S: i64 = 24 * 60 * 60;

// Lists.
pub const PAGE_ITEMS_DEFAULT: usize = 50;
pub const PAGE_ITEMS_MAX: usize = 200;
pub const PAGE_BYTES_MAX: usize = 2 << 20;
pub const SNAPSHOT_PAIRS_MAX: usize = 500;
pub const CURSOR_AGE_MS: i64 = 15 * MINUTE_MS;
/// A search looks at so many hits a step, and stops once it has read so many rows for a snapshot
/// or shown so many sessions over all its snapshots.
pub const SEARCH_HITS_PER_STEP: usize = 50;
pub const SEARCH_ROWS_MAX: usize = 500;
pub const SEARCH_SESSIONS_MAX: usize = 2_000;
/// Sources, and sessions granted, that one search names.
pub const SEARCH_SCOPE_MAX: usize = 500;
/// Phrases of a search that a snippet looks for.
pub const SNIPPET_PHRASES_MAX: usize = 32;
pub const HITS_READ_AT_ONCE_MAX: usize = 8;
/// An export's cursor names an origin, whose parts may have four bytes a character.
pub const CURSOR_CHARS_MAX: usize = 4_096;
/// Rows that one request for a filtered list looks at.
pub const ROWS_EXAMINED_MAX: usize = 1_000;

// Texts.
pub const NAME_CHARS_MAX: usize = 128;
pub const EMAIL_CHARS_MAX: usize = 254;
pub const TITLE_CHARS_MAX: usize = 512;
pub const ENROLLMENT_KEY_CHARS_MAX: usize = 128;
pub const HARNESS_CHARS_MAX: usize = 64;
pub const NATIVE_ID_CHARS_MAX: usize = 256;
pub const ROLE_CHARS_MAX: usize = 64;
pub const QUERY_CHARS_MAX: usize = 1_000;
pub const SNIPPET_CHARS_MAX: usize = 200;
pub const MEDIA_TYPE_CHARS_MAX: usize = 128;
pub const SHA256_DIGITS: usize = 64;

// Teams and credentials.
/// When to ask again of a team that is being wiped.
pub const WIPE_RETRY_S: i64 = 3;
pub const USER_TOKEN_AGE_MS: i64 = 90 * DAY_MS;
pub const USER_TOKEN_AGE_MS_MIN: i64 = MINUTE_MS;
pub const USER_TOKEN_AGE_MS_MAX: i64 = 400 * DAY_MS;
pub const MACHINE_TOKEN_AGE_MS: i64 = 30 * DAY_MS;
pub const MACHINE_TOKEN_OVERLAP_MS: i64 = 10 * MINUTE_MS;
pub const LAST_USED_STEP_MS: i64 = HOUR_MS;
pub const MEMBERS_MAX: usize = 1_000;
pub const GROUPS_MAX: usize = 1_000;
/// Sessions granted to one principal or group, which go with it in one transaction.
pub const GRANTS_PER_SUBJECT_MAX: usize = 2_000;
pub const MACHINES_MAX: usize = 1_000;
pub const MACHINES_PER_PRINCIPAL_MAX: usize = 100;
pub const CREDENTIALS_PER_PRINCIPAL_MAX: usize = 100;
pub const SOURCES_MAX: usize = 2_000;
pub const APPS_MAX: usize = 100;
pub const EVENTS_DAYS: i64 = 7;
pub const DELIVERIES_DAYS: i64 = 7;
pub const JOURNAL_DAYS: i64 = 90;
pub const RETENTION_DAYS_MAX: i64 = 3_650;

// Machines.
pub const LINK_GRACE_MS: i64 = 45 * SECOND_MS;
pub const FRAME_BYTES_MAX: usize = 1 << 20;
/// What a heartbeat takes from the rate limit, in tenths of a request.
pub const HEARTBEAT_TENTHS: i64 = 1;
/// What the platform takes as the reason of a close.
pub const CLOSE_REASON_BYTES_MAX: usize = 123;
/// A credential that ends by itself closes its sockets within this time.
pub const CREDENTIALS_CHECKED_MS: i64 = MINUTE_MS;
/// What an agent says at once; followers get it in one event.
pub const LIVE_TEXT_BYTES_MAX: usize = 256 << 10;
/// Effects that a link is sent at a time; the rest follows its next frame.
pub const EFFECTS_SENT_AT_ONCE: usize = 16;
/// Pending continuations that a machine is told of when it links.
pub const CONTINUATIONS_TOLD_MAX: usize = 100;
/// Followed sessions that a machine is told of at a time.
pub const WATCHED_MAX: usize = 1_000;
pub const ROOTS_MAX: usize = 256;
pub const BINDINGS_MAX: usize = 256;
pub const RULES_MAX: usize = 256;
/// Items in each list of a rule, and harnesses of a root.
pub const RULE_ITEMS_MAX: usize = 64;
pub const PATTERN_CHARS_MAX: usize = 512;
/// A machine's configuration holds all its rules.
pub const RULE_BYTES_MAX: usize = 8 << 10;
/// Each list of a heartbeat is one value of a statement.
pub const HEARTBEAT_LIST_BYTES_MAX: usize = 2_000_000;
pub const BINDING_VALUE_BYTES_MAX: usize = 64 << 10;
pub const HOST_KEY_ID_CHARS_MIN: usize = 16;
pub const HOST_KEY_ID_CHARS_MAX: usize = 128;
/// Late heartbeats of so many replaced incarnations are told from a new incarnation's.
pub const INCARNATIONS_REMEMBERED_MAX: usize = 8;
pub const ACTIVITIES_MAX: usize = 4_096;
pub const TURN_CHARS_MAX: usize = 32;

// Streams.
/// Sockets that an object holds, links and watchers; the platform's own limit is 32,768.
pub const SOCKETS_MAX: usize = 20_000;
/// A watcher that reads what it has missed is sent so much at a time, and asks for the rest.
pub const STREAM_PAGE_ITEMS: usize = 100;
pub const STREAM_PAGE_BYTES_MAX: usize = 256 << 10;
/// What waits for a reader in the Worker; one that lets more wait is cut off.
pub const STREAM_QUEUE_BYTES_MAX: usize = 2 << 20;
pub const STREAM_QUEUE_FRAMES_MAX: usize = 1_000;
pub const STREAM_COMMENT_MS: u64 = 15_000;
/// A reader that takes nothing while so many comments were due is cut off.
pub const STREAM_COMMENTS_UNREAD_MAX: usize = 4;
/// Watchers that are served between two yields.
pub const WATCHERS_AT_ONCE: usize = 100;

// Captures and messages.
pub const CAPTURE_AGE_MS: i64 = DAY_MS;
pub const CAPTURE_PARTS_MAX: i64 = 2_000;
pub const CAPTURE_MESSAGES_MAX: i64 = 100_000;
pub const CAPTURE_BYTES_MAX: i64 = 128 << 20;
pub const CAPTURE_ARTIFACTS_MAX: usize = 32;
pub const PART_BYTES_MAX: usize = 1 << 20;
/// A statement's JSON parameter is cut here; one more message may follow, escaped.
pub const BATCH_BYTES_MAX: usize = 256 << 10;
/// What the platform takes as one value.
pub const VALUE_BYTES_MAX: usize = 2_000_000;
pub const SESSION_ORIGINS_MAX: usize = 64;
pub const ARTIFACTS_LISTED_MAX: usize = 1_000;
pub const PART_MESSAGES_MAX: usize = 1_000;
pub const MESSAGE_BYTES_MAX: usize = 512 << 10;
pub const SEARCHED_BYTES_MAX: usize = 64 << 10;
/// The newest messages of a session that a source which joins it late makes its viewers find.
pub const WIDENED_MESSAGES_MAX: usize = 10_000;
pub const WIDENED_AT_ONCE: usize = 12;
pub const PROJECTION_BYTES_MAX: usize = 64 << 10;
/// What `until_revision` says of a row that the current version holds.
pub const UNTIL_OPEN: i64 = SAFE_INTEGER_MAX;

// Uploads.
pub const UPLOAD_BYTES_MAX_DEFAULT: i64 = 256 << 20;
pub const CHUNK_BYTES_MIN: i64 = 64 << 10;
pub const CHUNK_BYTES_DEFAULT: i64 = 256 << 10;
pub const CHUNK_BYTES_MAX: i64 = 1 << 20;
/// An upload's chunks; a larger upload needs larger chunks.
pub const CHUNKS_MAX: i64 = 4_096;
pub const CHUNKS_ATTACHED_MAX: usize = 512;
pub const CHUNKS_MISSING_LISTED_MAX: usize = 512;
/// Bytes hashed or sent between two yields.
pub const SLICE_BYTES_MAX: i64 = 4 << 20;
pub const UPLOAD_AGE_MS: i64 = DAY_MS;
/// Bodies that are taken in as a stream.
pub const BODY_CHUNK_BYTES: i64 = 256 << 10;
pub const CONTENT_BYTES_MAX: usize = 32 << 20;
pub const CONTENT_GRANTS_MAX: i64 = 1_000;
/// How long one may take to come in.
pub const STAGED_BODY_AGE_MS: i64 = HOUR_MS;
/// Sessions with the upload as their artifact that are looked at for one its reader sees.
pub const UPLOAD_SESSIONS_ASKED_MAX: usize = 100;

const _: () = assert!(PAGE_ITEMS_DEFAULT <= PAGE_ITEMS_MAX && PAGE_ITEMS_MAX <= SNAPSHOT_PAIRS_MAX);
const _: () = assert!(MESSAGE_BYTES_MAX <= PART_BYTES_MAX && PART_BYTES_MAX <= JSON_BYTES_MAX);
const _: () = assert!(MESSAGE_BYTES_MAX <= PAGE_BYTES_MAX);
// Escaping at most doubles a text.
const _: () = assert!(WIDENED_AT_ONCE * 2 * SEARCHED_BYTES_MAX < VALUE_BYTES_MAX);
// Escaping at most doubles a message that is JSON already.
const _: () = assert!(BATCH_BYTES_MAX + 2 * MESSAGE_BYTES_MAX < VALUE_BYTES_MAX);
const _: () =
    assert!(CHUNK_BYTES_MIN <= CHUNK_BYTES_DEFAULT && CHUNK_BYTES_DEFAULT <= CHUNK_BYTES_MAX);
const _: () = assert!(UPLOAD_BYTES_MAX_DEFAULT <= CHUNKS_MAX * CHUNK_BYTES_MIN);
const _: () = assert!(CHUNK_BYTES_MAX <= SLICE_BYTES_MAX);

// Continuations, attachments and operations.
pub const PROMPT_CHARS_MAX: usize = 64 << 10;
pub const RECEIPT_BYTES_MAX: usize = 64 << 10;
/// Open ones that a session has at a time.
pub const CONTINUATIONS_OPEN_MAX: usize = 100;
/// Open ones that a machine has at a time.
pub const ATTACHMENTS_OPEN_MAX: usize = 256;
pub const OPERATION_KIND_CHARS_MAX: usize = 64;
pub const OPERATION_INPUT_BYTES_MAX: usize = 256 << 10;
pub const EFFECT_RESULT_BYTES_MAX: usize = 256 << 10;
/// Effects without a result that a machine has at a time.
pub const EFFECTS_PENDING_MAX: usize = 1_000;
/// Hex digits of the part of a position that a wipe or an import changes.
pub const EPOCH_DIGITS: usize = 8;
/// Rows of a log or list that are looked at together for those the caller may see.
pub const ROWS_FILTERED_AT_ONCE: usize = 200;

// Moving a team.
/// A page of an export, and so what an import takes.
pub const TRANSFER_BYTES_MAX: usize = 16 << 20;
/// A piece of an export's body: it ends with the row that passes this.
pub const EXPORT_CHUNK_BYTES: usize = 512 << 10;
/// What a page leaves free for its last line.
pub const EXPORT_END_BYTES: usize = CURSOR_CHARS_MAX + 1_024;
/// How long what an export reads is kept as it was when it came by.
pub const EXPORT_AGE_MS: i64 = 6 * HOUR_MS;
/// What an import writes in one transaction.
pub const IMPORT_SLICE_ROWS: usize = 500;
pub const IMPORT_SLICE_BYTES: usize = 2 << 20;

// Apps and webhooks.
pub const APP_TOKEN_AGE_MS: i64 = USER_TOKEN_AGE_MS_MAX;
pub const APP_EVENTS_MAX: usize = 64;
pub const INSTALL_CODE_AGE_MS: i64 = 10 * MINUTE_MS;
/// Unused ones that an app has at a time.
pub const INSTALL_CODES_MAX: usize = 10;
pub const INSTALL_BYTES_MAX: usize = 4 << 10;
pub const WEBHOOK_URL_CHARS_MAX: usize = 2_048;
/// How long the old secret signs beside a new one.
pub const SECRET_OVERLAP_MS: i64 = DAY_MS;
/// A delivery belongs to whoever leased it for so long; then somebody else sends it again.
pub const WEBHOOK_LEASE_MS: i64 = 30 * SECOND_MS;
pub const WEBHOOK_TIMEOUT_MS: i64 = 15 * SECOND_MS;
/// From this time on an answer counts as slow, and its app as a failing one.
pub const WEBHOOK_SLOW_MS: i64 = 5 * SECOND_MS;
/// In flight: in all, to one app, to all failing ones together.
pub const WEBHOOKS_IN_FLIGHT_MAX: usize = 6;
pub const WEBHOOKS_PER_APP_MAX: usize = 2;
pub const WEBHOOKS_PER_FAILING_APP_MAX: usize = 1;
pub const WEBHOOKS_TO_FAILING_MAX: usize = 3;
/// Waits after each failed attempt but the last, the eighth.
pub const WEBHOOK_STEPS_MS: [i64; 7] = [
    5 * SECOND_MS,
    5 * MINUTE_MS,
    30 * MINUTE_MS,
    2 * HOUR_MS,
    5 * HOUR_MS,
    10 * HOUR_MS,
    10 * HOUR_MS,
];
/// Nothing but failures for so long disables a webhook.
pub const WEBHOOK_FAILING_MS_MAX: i64 = 5 * DAY_MS;
pub const WEBHOOK_ANSWER_BYTES_MAX: usize = 64 << 10;
pub const WEBHOOK_ANSWER_BYTES_KEPT: usize = 2 << 10;
pub const WEBHOOK_ERROR_CHARS_MAX: usize = 200;
/// Attempts of one delivery that are kept; a person may ask for any number.
pub const WEBHOOK_ATTEMPTS_KEPT: i64 = 32;
/// When to look again at deliveries that cannot be signed.
pub const WEBHOOK_UNSIGNED_WAIT_MS: i64 = 5 * MINUTE_MS;
/// What one call of `recover` looks at: events and failed deliveries.
pub const RECOVERED_ROWS_MAX: usize = 10_000;

const _: () = assert!(WEBHOOK_TIMEOUT_MS + 5 * SECOND_MS <= WEBHOOK_LEASE_MS);
const _: () = assert!(WEBHOOKS_PER_APP_MAX < WEBHOOKS_IN_FLIGHT_MAX);

// Contexts, snapshots, worktrees and usage.
/// What agents choose themselves: ids, workspaces, providers, models.
pub const IDENTIFIER_BYTES_MAX: usize = 128;
/// Kinds, roles, provenances, reasons, payload refs.
pub const LABEL_BYTES_MAX: usize = 256;
pub const ALGORITHM_BYTES_MAX: usize = 64;
pub const CONTEXT_TITLE_BYTES_MAX: usize = 256;
pub const DIR_BYTES_MAX: usize = 4_096;
pub const CAPABILITY_BYTES: usize = 32;
/// A commit, an import or a snapshot; what is larger goes ahead as a payload.
pub const CONTEXT_BODY_BYTES_MAX: usize = 16 << 20;
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;
pub const COMMIT_EVENTS_MAX: usize = 100_000;
pub const COMMIT_PAYLOADS_MAX: usize = 10_000;
/// Events or payload refs that one statement takes.
pub const COMMIT_ROWS_AT_ONCE: usize = 500;
pub const SUMMARY_BYTES_MAX: usize = 12 << 10;
/// A value that is answered in one piece; a larger one is streamed.
pub const VALUE_WHOLE_BYTES_MAX: i64 = 1 << 20;
pub const EXPORT_BYTES_MAX: i64 = 4 << 30;
pub const LEASE_AGE_MS: i64 = 2 * MINUTE_MS;
pub const SNAPSHOT_NAME_BYTES_MAX: usize = 128;
pub const SNAPSHOTS_PRUNED_MAX: usize = 1_000;
pub const ADMISSION_NAMES_MAX: usize = 1_000;
pub const ADMISSION_BYTES_MAX: usize = 256 << 10;
/// Snapshots, or contexts, of an ended worktree that one slice deletes.
pub const WORKTREE_ROWS_AT_ONCE: usize = 100;
/// By how much the numbers of an imported team's records are moved where another team has them.
pub const USAGE_IDS_APART: i64 = 1 << 40;
pub const USAGE_RECORDS_MAX: usize = 500;
/// Sums of so many stay exact.
pub const USAGE_TOKENS_MAX: i64 = 1_000_000_000_000;
pub const CALIBRATION_ROWS_MAX: usize = 50;
pub const CALIBRATION_RATIO_MIN: f64 = 0.2;
pub const CALIBRATION_RATIO_MAX: f64 = 3.0;
pub const CHECKPOINT_AGE_MS: i64 = 30 * DAY_MS;
pub const CHECKPOINTS_KEPT: usize = 3;
/// Payloads that nothing names.
pub const STAGED_PAYLOAD_AGE_MS: i64 = DAY_MS;
/// What a deleted context holds, and audits.
pub const REVOKED_AGE_MS: i64 = 365 * DAY_MS;
pub const WORKTREE_AGE_MS: i64 = 30 * DAY_MS;
/// Operations and imports, by which repeated calls are known.
pub const CONTEXT_OPERATION_AGE_MS: i64 = 30 * DAY_MS;
pub const USAGE_AGE_MS: i64 = 400 * DAY_MS;

// A statement's rows, each of a few labels, escaped.
const _: () = assert!(COMMIT_ROWS_AT_ONCE * 7 * LABEL_BYTES_MAX * 2 < VALUE_BYTES_MAX);

// The run ledger.
/// Ids of runs, events and holders, and kinds.
pub const RUN_NAME_BYTES_MAX: usize = 128;
pub const SEQUENCE_MAX: i64 = SAFE_INTEGER_MAX;
pub const APPENDED_EVENTS_MAX: usize = 500;
pub const RUN_PAYLOAD_BYTES_MAX: usize = 256 << 10;
/// Appends that wait in an object at a time, and for one run; and when to try again.
pub const APPENDS_WAITING_MAX: usize = 256;
pub const APPENDS_PER_RUN_MAX: usize = 16;
pub const APPENDS_RETRY_S: i64 = 1;
/// Fenced holders and fences of runs that have neither events nor a claim.
pub const CLAIM_HISTORY_AGE_MS: i64 = 30 * DAY_MS;

const _: () = assert!(RUN_PAYLOAD_BYTES_MAX <= PAGE_BYTES_MAX);
// Escaping at most doubles a payload that is JSON already; ids come as hex digits.
const _: () =
    assert!(BATCH_BYTES_MAX + 2 * RUN_PAYLOAD_BYTES_MAX + 8 * RUN_NAME_BYTES_MAX < VALUE_BYTES_MAX);
const _: () = assert!(RUN_PAYLOAD_BYTES_MAX + 8 * RUN_NAME_BYTES_MAX < JSON_BYTES_MAX);

// Retention.
/// Every upload's id that a request names in its texts; each is a reference that a trigger keeps.
pub const NAMED_UPLOADS_MAX: usize = 50;
pub const CAPTURE_EXPIRY_AGE_MS: i64 = 30 * DAY_MS;
pub const SETTLED_CAPTURE_AGE_MS: i64 = DAY_MS;
/// Settled operations, attachments and continuations; credentials that ended.
pub const SETTLED_AGE_MS: i64 = 30 * DAY_MS;
/// Effects without a result and continuations that nobody settled.
pub const OVERDUE_AGE_MS: i64 = DAY_MS;

/// A pass ends when this much time has passed by the clock, or these units are spent. A unit is a
/// row read or written, or 4 KiB of a large value; a statement costs five.
pub const PASS_MS_MAX: i64 = 250;
pub const PASS_UNITS_MAX: u64 = 100_000;
pub const SLICE_UNITS_MAX: u64 = 5_000;
pub const BATCH_UNITS_MAX: u64 = 500;
pub const STATEMENT_UNITS: u64 = 5;
pub const OCTETS_PER_UNIT: u64 = 4_096;
/// The next pass, after one that left a backlog, and after one that did not.
pub const PASS_BACKLOG_WAIT_MS: i64 = 3 * SECOND_MS;
pub const PASS_WAIT_MS: i64 = MINUTE_MS;
pub const ALARM_WAIT_MS_MAX: i64 = DAY_MS;
pub const PASSES_KEPT: usize = 10;
pub const QUEUE_DEPTH_MAX: i64 = 10_000;
/// Rows per table are counted at most hourly, so many rows a slice.
pub const STORAGE_COUNT_AGE_MS: i64 = HOUR_MS;
pub const STORAGE_COUNT_ROWS_MAX: i64 = 4_000;

const _: () = assert!(CAPTURE_ARTIFACTS_MAX <= NAMED_UPLOADS_MAX);
const _: () = assert!(BATCH_UNITS_MAX < SLICE_UNITS_MAX && SLICE_UNITS_MAX < PASS_UNITS_MAX);
// A key-set cursor holds a hash, a revision and an id of any characters, in base64.
const _: () = assert!((32 + 16 + 4 * NAME_CHARS_MAX).div_ceil(3) * 4 <= CURSOR_CHARS_MAX);
