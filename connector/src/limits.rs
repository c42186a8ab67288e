//! Every limit, interval and age, its unit last. Those of the server are of its API, version 1.
use std::time::Duration;

// The server's.
pub const PART_BYTES_MAX: usize = 1 << 20;
pub const PART_MESSAGES_MAX: usize = 1_000;
pub const PARTS_MAX: usize = 2_000;
pub const MESSAGE_BYTES_MAX: usize = 512 << 10;
pub const UPLOAD_BYTES_MAX: u64 = 256 << 20;
pub const CHUNKS_NAMED_MAX: usize = 512;
pub const ARTIFACTS_MAX: usize = 32;
pub const BINDINGS_MAX: usize = 256;
pub const FRAME_BYTES_MAX: usize = 1 << 20;
pub const NATIVE_ID_CHARS_MAX: usize = 256;
pub const PAGE_ITEMS_MAX: usize = 200;

// Captures. Below what the server takes, so that a crash in the middle of a long one costs little.
pub const CAPTURE_MESSAGES_MAX: usize = 20_000;
pub const CAPTURE_BYTES_MAX: usize = 32 << 20;
/// A part is closed before it would pass this.
pub const PART_BYTES_AIM: usize = 960 << 10;
/// What the text of a message may have: as much as the server searches.
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// A longer string inside a message, such as a tool's result, is cut; the bundle has it whole.
pub const STRING_BYTES_MAX: usize = 256 << 10;
/// What the row inside a message may have.
pub const ROW_BYTES_MAX: usize = 400 << 10;
pub const TITLE_CHARS_MAX: usize = 120;
pub const CWDS_REMEMBERED_MAX: usize = 64;

// Transcripts.
/// A longer line is read in pieces, and only its beginning is looked at.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// What is kept of such a line.
pub const LINE_HEAD_BYTES: usize = 64 << 10;
/// A transcript that is one JSON document is read whole.
pub const DOCUMENT_BYTES_MAX: u64 = 16 << 20;
pub const CHUNK_BYTES: usize = 256 << 10;
/// How much before the end of what was read must be as it was for the rest to be new.
pub const TAIL_BYTES: usize = 4 << 10;
pub const FOLLOWED_FILES_MAX: usize = 64;
/// Scans of files above this run one at a time: an outline takes some 40 bytes a message.
pub const LARGE_FILE_BYTES: u64 = 64 << 20;
pub const FOLDER_DEPTH_MAX: usize = 8;
pub const FILES_MAX: usize = 100_000;

// Times.
pub const SETTLE: Duration = Duration::from_millis(200);
/// A file that keeps being written is captured all the same.
pub const SETTLE_MAX: Duration = Duration::from_millis(1_000);
pub const QUIET: Duration = Duration::from_secs(10);
/// A file that is never quiet gets a new bundle all the same.
pub const BUNDLE_AGE_MAX: Duration = Duration::from_secs(5 * 60);
pub const RESCAN: Duration = Duration::from_secs(30);
/// After a folder came to be: what was written into it before the system watched it is found so.
pub const RESCAN_NEW: Duration = Duration::from_millis(500);
pub const RESCANS_NEW: u8 = 3;
/// Where the system cannot watch folders.
pub const RESCAN_UNWATCHED: Duration = Duration::from_secs(1);
pub const HEARTBEAT: Duration = Duration::from_secs(15);
/// A link that says nothing for so long is taken for broken.
pub const LINK_SILENCE_MAX: Duration = Duration::from_secs(40);
pub const CONFIGURATION: Duration = Duration::from_secs(60);
pub const BACKOFF_FIRST: Duration = Duration::from_millis(250);
pub const BACKOFF_MAX: Duration = Duration::from_secs(30);
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
pub const REQUEST_TRIES: u32 = 5;
pub const CONNECT: Duration = Duration::from_secs(10);
pub const REQUEST: Duration = Duration::from_secs(120);
/// A machine's token is renewed when it has less than this.
pub const TOKEN_LEFT_MS: i64 = 10 * 24 * 60 * 60 * 1_000;
pub const GOODBYE: Duration = Duration::from_secs(5);
/// A session written to more recently counts as open.
pub const OPEN_AGE_MS: i64 = 30 * 60 * 1_000;
pub const EFFECT: Duration = Duration::from_secs(10 * 60);
pub const EFFECT_OUTPUT_BYTES_MAX: usize = 64 << 10;
pub const EFFECTS_REMEMBERED_MAX: usize = 256;
pub const WORKERS: usize = 3;

const _: () = assert!(PART_BYTES_AIM < PART_BYTES_MAX);
const _: () = assert!(ROW_BYTES_MAX + TEXT_BYTES_MAX < MESSAGE_BYTES_MAX);
const _: () = assert!(MESSAGE_BYTES_MAX < PART_BYTES_AIM);
const _: () = assert!(CAPTURE_BYTES_MAX / (PART_BYTES_AIM - MESSAGE_BYTES_MAX) < PARTS_MAX);
const _: () = assert!(CAPTURE_MESSAGES_MAX.div_ceil(PART_MESSAGES_MAX) < PARTS_MAX);
