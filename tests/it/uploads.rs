use crate::team::{Got, Team};
use base64::Engine as _;
use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};
use teamplane::api::{self, Answer, Body, Plane, Reply, Request};
use teamplane::auth::Role;
use teamplane::ids::hex;
use teamplane::limits::{
    CHUNK_BYTES_MIN, CHUNKS_MAX, CHUNKS_MISSING_LISTED_MAX, SLICE_BYTES_MAX, UPLOAD_AGE_MS,
};

const CHUNK: usize = 64 << 10;
/// One chunk more than is hashed at once.
const TWO_SLICES: usize = (4 << 20) + CHUNK;
const _: () = assert!(CHUNK_BYTES_MIN == 64 << 10);
const _: () = assert!(SLICE_BYTES_MAX == 4 << 20);

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn content_digest(bytes: &[u8]) -> String {
    let base64 = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(bytes));
    format!("sha-256=:{base64}:")
}

/// Bytes that differ from chunk to chunk.
fn file(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251 + at / CHUNK).to_le_bytes()[0]).collect()
}

impl Team {
    fn begin_upload(&self, token: &str, file: &[u8]) -> String {
        let (size, sha256, media_type) = (file.len(), sha256(file), "application/zip");
        let body = json!({ "size": size, "sha256": sha256, "media_type": media_type,
                           "chunk_size": CHUNK });
        self.post(token, "/uploads", body).data(201)["id"].as_str().unwrap().to_owned()
    }

    fn put_chunk(&self, token: &str, upload: &str, index: usize, bytes: &[u8]) -> Got {
        let digest = content_digest(bytes);
        let path = format!("/uploads/{upload}/chunks/{index}");
        self.send(token, "PUT", &path, &[("content-digest", &digest)], Some(bytes))
    }

    fn put_all(&self, token: &str, upload: &str, file: &[u8]) {
        for (index, bytes) in file.chunks(CHUNK).enumerate() {
            assert_eq!(self.put_chunk(token, upload, index, bytes).status, 204);
        }
    }

    fn commit_upload(&self, token: &str, upload: &str) -> Got {
        self.send(token, "POST", &format!("/uploads/{upload}/commit"), &[], None)
    }

    /// A committed upload of the file.
    fn uploaded(&self, token: &str, file: &[u8]) -> String {
        let upload = self.begin_upload(token, file);
        self.put_all(token, &upload, file);
        assert_eq!(self.commit_upload(token, &upload).data(200)["state"], "committed");
        upload
    }

    fn upload(&self, token: &str, upload: &str) -> Got {
        self.get(token, &format!("/uploads/{upload}"))
    }

    fn content(&self, token: &str, upload: &str, headers: &[(&'static str, &str)]) -> Got {
        self.send(token, "GET", &format!("/uploads/{upload}/content"), headers, None)
    }

    fn attach(&self, token: &str, upload: &str, chunks: Json) -> Got {
        self.post(token, &format!("/uploads/{upload}/chunks"), json!({ "chunks": chunks }))
    }

    /// Changes the store from outside.
    fn meddle(&self, sql: &str) {
        self.driver.connection().execute_batch(sql).unwrap();
    }

    fn rows(&self) -> (i64, i64, i64) {
        (
            self.count("SELECT count(*) FROM uploads"),
            self.count("SELECT count(*) FROM artifact_chunk_refs"),
            self.count("SELECT count(*) FROM artifact_blobs"),
        )
    }

    fn import_source(&self, token: &str, name: &str) -> String {
        let body = json!({ "name": name, "kind": "import", "visibility": "restricted" });
        self.post(token, "/sources", body).data(201)["id"].as_str().unwrap().to_owned()
    }

    /// A session with the upload as its artifact.
    fn session_with(&self, token: &str, upload: &str, native_id: &str) -> String {
        let artifacts = json!([{ "bundle_id": "b", "upload_id": upload, "name": "bundle.zip" }]);
        let body = json!({ "harness": "codex", "native_id": native_id, "artifacts": artifacts });
        let got = self.post(token, "/captures", body);
        let capture = got.data(201)["id"].as_str().unwrap();
        let part = r#"{"messages":[{"ordinal":0,"role":"user","text":"hello"}]}"#;
        assert_eq!(self.put(token, &format!("/captures/{capture}/parts/0"), part).status, 204);
        let got = self.post(token, &format!("/captures/{capture}/commit"), json!({ "parts": 1 }));
        got.data(200)["session_id"].as_str().unwrap().to_owned()
    }

    /// The first steps of a request, whose job or body the test carries on itself.
    fn open(&self, token: &str, method: &str, path: &str) -> Reply {
        let limiter = std::cell::RefCell::default();
        let plane = Plane {
            db: self.db(),
            server_id: &self.server_id,
            config: &self.config,
            limiter: &limiter,
            runner: &self.runner,
            live: &self.live,
        };
        let headers = [("authorization", format!("Bearer {token}"))];
        let path = format!("/v1/teams/{}{path}", self.id);
        let request = Request {
            method,
            path: &path,
            query: "",
            headers: &headers,
            body: Some(&[]),
            request_id: "request_00000000000000000000000000000000",
        };
        api::handle(&plane, &request)
    }

    fn open_commit(&self, token: &str, upload: &str) -> api::Job {
        match self.open(token, "POST", &format!("/uploads/{upload}/commit")) {
            Reply::Job(job) => job,
            _ => panic!("the commit was refused"),
        }
    }

    fn finish(&self, mut job: api::Job) -> teamplane::error::Result<Answer> {
        loop {
            if let Some(answer) = job(&self.db())? {
                return Ok(answer);
            }
        }
    }
}

#[test]
fn a_file_goes_up_in_any_order_and_comes_back_whole() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(2 * CHUNK + 1);
    let body = json!({ "size": file.len(), "sha256": sha256(&file), "media_type": "application/zip",
                       "chunk_size": CHUNK });
    let got = team.post(&machine.token, "/uploads", body);
    let id = got.data(201)["id"].as_str().unwrap().to_owned();
    let created_at = team.now_ms.get();
    let expected = json!({
        "id": id, "state": "pending", "size": file.len(), "sha256": sha256(&file),
        "media_type": "application/zip", "chunk_size": CHUNK, "missing": [0, 1, 2],
        "created_at": created_at, "expires_at": created_at + UPLOAD_AGE_MS,
    });
    assert_eq!(*got.data(201), expected);

    assert_eq!(team.put_chunk(&machine.token, &id, 2, &file[2 * CHUNK..]).status, 204);
    assert_eq!(team.put_chunk(&machine.token, &id, 0, &file[..CHUNK]).status, 204);
    assert_eq!(team.upload(&machine.token, &id).data(200)["missing"], json!([1]));
    assert_eq!(team.put_chunk(&machine.token, &id, 1, &file[CHUNK..2 * CHUNK]).status, 204);
    assert_eq!(team.upload(&machine.token, &id).data(200)["missing"], json!([]));

    let committed = team.commit_upload(&machine.token, &id);
    assert_eq!(committed.data(200)["state"], "committed");
    assert_eq!(committed.data(200)["expires_at"], Json::Null);
    assert_eq!(committed.json["context"]["team_id"], team.id.to_string());
    let again = team.commit_upload(&machine.token, &id);
    assert_eq!((again.status, &again.json), (200, &committed.json));
    assert_eq!(team.upload(&machine.token, &id).data(200), committed.data(200));

    let got = team.content(&machine.token, &id, &[]);
    assert_eq!((got.status, got.bytes == file), (200, true));
    for (name, value) in [
        ("Content-Type", "application/zip"),
        ("Content-Length", &file.len().to_string()),
        ("Accept-Ranges", "bytes"),
        ("ETag", &format!("\"{}\"", sha256(&file))),
        ("Content-Disposition", "attachment"),
        ("X-Content-Type-Options", "nosniff"),
    ] {
        assert_eq!(got.header(name), Some(value), "{name}");
    }
}

#[test]
fn an_upload_that_cannot_be_is_refused_and_leaves_nothing() {
    let mut team = Team::new();
    team.config.upload_bytes_max = 300 << 20;
    let machine = team.publisher("laptop");
    let good = json!({ "size": 1, "sha256": sha256(b"a"), "media_type": "text/plain" });
    let with = |field: &str, value: Json| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    for (body, status, code, field) in [
        (json!({}), 400, "invalid_request", "size"),
        (with("size", json!(-1)), 400, "invalid_request", "size"),
        (with("size", json!("1")), 400, "invalid_request", "size"),
        (with("size", json!((300 << 20) + 1)), 413, "too_large", ""),
        (with("size", json!(257 << 20)), 201, "", ""),
        (with("sha256", json!("ab")), 400, "invalid_request", "sha256"),
        (with("sha256", json!("A".repeat(64))), 400, "invalid_request", "sha256"),
        (with("sha256", json!("g".repeat(64))), 400, "invalid_request", "sha256"),
        (with("media_type", json!("")), 400, "invalid_request", "media_type"),
        (with("media_type", json!("text")), 400, "invalid_request", "media_type"),
        (with("media_type", json!("text/")), 400, "invalid_request", "media_type"),
        (with("media_type", json!("a/b/c")), 400, "invalid_request", "media_type"),
        (with("media_type", json!("a/b\r\nX: 1")), 400, "invalid_request", "media_type"),
        (with("media_type", json!("text/plain; a=ü")), 400, "invalid_request", "media_type"),
        (
            with("media_type", json!(format!("a/{}", "b".repeat(127)))),
            400,
            "invalid_request",
            "media_type",
        ),
        (with("media_type", json!("text/plain; charset=utf-8")), 201, "", ""),
        (with("chunk_size", json!((64 << 10) - 1)), 400, "invalid_request", "chunk_size"),
        (with("chunk_size", json!((1 << 20) + 1)), 400, "invalid_request", "chunk_size"),
        (with("chunk_size", json!(1 << 20)), 201, "", ""),
        (with("source_id", json!("source_1")), 400, "invalid_request", "source_id"),
        (with("colour", json!(1)), 400, "invalid_request", "colour"),
    ] {
        let before = team.rows().0;
        let got = team.post(&machine.token, "/uploads", body.clone());
        assert_eq!(got.refusal(), (status, code, field), "{body}");
        assert_eq!(team.rows().0 - before, i64::from(status == 201), "{body}");
    }
    let got = team.post(&machine.token, "/uploads", with("sha256", json!("A".repeat(64))));
    assert!(got.json["error"]["message"].as_str().unwrap().contains("upper-case"));
    let got = team.post(&machine.token, "/uploads", with("size", json!(1_i64 << 40)));
    assert_eq!(got.json["error"]["details"]["limit"], 300 << 20);
}

#[test]
fn a_large_upload_needs_large_enough_chunks() {
    let mut team = Team::new();
    team.config.upload_bytes_max = 1 << 40;
    let machine = team.publisher("laptop");
    let size = CHUNKS_MAX * CHUNK_BYTES_MIN;
    let begin = |size: i64, chunk_size: i64| {
        let body = json!({ "size": size, "sha256": "0".repeat(64), "media_type": "a/b",
                           "chunk_size": chunk_size });
        team.post(&machine.token, "/uploads", body)
    };
    assert_eq!(begin(size, CHUNK_BYTES_MIN).status, 201);
    assert_eq!(begin(size + 1, CHUNK_BYTES_MIN).refusal(), (400, "invalid_request", "chunk_size"));
    assert_eq!(begin(size + 1, CHUNK_BYTES_MIN + 1).status, 201);
    assert_eq!(begin(CHUNKS_MAX << 20, 1 << 20).status, 201);
    assert_eq!(begin((CHUNKS_MAX << 20) + 1, 1 << 20).refusal(), (413, "too_large", ""));
}

#[test]
fn who_may_publish_to_a_source() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let other = team.publisher("desktop");
    let (viewer, member) = (team.person("V", Role::Viewer), team.person("M", Role::Member));
    let app = team.app("writer", &["captures:write"]).token;
    let reader = team.app("reader", &["sessions:read"]).token;
    let app_source = team.import_source(&app, "of the app");
    let import = team.import_source(&member.token, "of the member");
    let of_machine = machine.source_id.to_string();
    let unknown = format!("source_{}", "9".repeat(32));
    let other_source = other.source_id.to_string();
    for (token, source, expected) in [
        (&machine.token, None, (201, "", "")),
        (&machine.token, Some(&of_machine), (201, "", "")),
        (&machine.token, Some(&other_source), (404, "not_found", "source_id")),
        (&machine.token, Some(&unknown), (404, "not_found", "source_id")),
        (&member.token, None, (400, "invalid_request", "source_id")),
        (&member.token, Some(&import), (201, "", "")),
        (&member.token, Some(&other_source), (404, "not_found", "source_id")),
        (&team.owner, Some(&other_source), (403, "forbidden", "")),
        (&viewer.token, Some(&import), (403, "forbidden", "")),
        (&app, None, (400, "invalid_request", "source_id")),
        (&app, Some(&app_source), (201, "", "")),
        (&app, Some(&import), (404, "not_found", "source_id")),
        (&reader, Some(&app_source), (403, "forbidden", "")),
    ] {
        let body =
            json!({ "size": 0, "sha256": sha256(b""), "media_type": "a/b", "source_id": source });
        let got = team.post(token, "/uploads", body);
        assert_eq!(got.refusal(), expected, "{source:?}");
    }
    assert_eq!(team.rows().0, 4);

    team.meddle("UPDATE sources SET visibility = 'team'");
    let body =
        json!({ "size": 0, "sha256": sha256(b""), "media_type": "a/b", "source_id": other_source });
    assert_eq!(team.post(&member.token, "/uploads", body.clone()).refusal().0, 403);
    assert_eq!(team.post(&machine.token, "/uploads", body).refusal().0, 403);
    team.meddle("UPDATE memberships SET role = 'viewer' WHERE role = 'member'");
    let body = json!({ "size": 0, "sha256": sha256(b""), "media_type": "a/b" });
    assert_eq!(team.post(&machine.token, "/uploads", body).refusal().0, 403);
}

#[test]
fn nothing_comes_into_a_source_that_is_not_active() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(CHUNK);
    let id = team.begin_upload(&machine.token, &file);
    for state in ["UPDATE sources SET state = 'paused'", "UPDATE sources SET state = 'revoked'"] {
        team.meddle(state);
        let body = json!({ "size": 0, "sha256": sha256(b""), "media_type": "a/b" });
        for got in [
            team.post(&machine.token, "/uploads", body),
            team.put_chunk(&machine.token, &id, 0, &file),
            team.attach(&machine.token, &id, json!([])),
            team.commit_upload(&machine.token, &id),
        ] {
            assert_eq!(got.refusal(), (409, "conflict", ""));
        }
    }
    assert_eq!(team.rows(), (1, 0, 0));
    team.meddle("UPDATE sources SET state = 'active'");
    assert_eq!(team.put_chunk(&machine.token, &id, 0, &file).status, 204);
}

#[test]
fn creating_again_with_the_same_key_makes_one_upload() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let body = json!({ "size": 1, "sha256": sha256(b"a"), "media_type": "a/b" }).to_string();
    let send = || {
        let key = [("idempotency-key", "k")];
        team.send(&machine.token, "POST", "/uploads", &key, Some(body.as_bytes()))
    };
    let (first, second) = (send(), send());
    assert_eq!(first.data(201), second.data(201));
    assert_eq!(team.rows().0, 1);
}

#[test]
fn a_chunk_is_stored_once_and_never_changes() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(CHUNK + 7);
    let id = team.begin_upload(&machine.token, &file);
    for _ in 0..2 {
        assert_eq!(team.put_chunk(&machine.token, &id, 0, &file[..CHUNK]).status, 204);
    }
    let other = vec![9; CHUNK];
    assert_eq!(team.put_chunk(&machine.token, &id, 0, &other).refusal(), (409, "conflict", ""));
    assert_eq!(team.rows(), (1, 1, 1));
    assert_eq!(team.put_chunk(&machine.token, &id, 1, &file[CHUNK..]).status, 204);
    team.commit_upload(&machine.token, &id).data(200);

    // The retry of a lost reply may come after the commit.
    assert_eq!(team.put_chunk(&machine.token, &id, 0, &file[..CHUNK]).status, 204);
    assert_eq!(team.put_chunk(&machine.token, &id, 0, &other).refusal(), (409, "conflict", ""));
    assert_eq!(team.content(&machine.token, &id, &[]).bytes, file);
}

#[test]
fn a_chunk_that_does_not_fit_is_refused_and_leaves_nothing() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(CHUNK + 7);
    let id = team.begin_upload(&machine.token, &file);
    let (first, last) = file.split_at(CHUNK);
    let longer = [last, b"x"].concat();
    let nothing: &[u8] = &[];
    let upper = format!("sha-256=:{}:", sha256(first).to_uppercase());
    let good = content_digest(first);
    let other = content_digest(last);
    let mismatch = (409, "digest_mismatch", "");
    let header = (400, "invalid_request", "Content-Digest");
    let length = (400, "invalid_request", "body");
    let index = (400, "invalid_request", "index");
    for (path, digest, bytes, expected) in [
        ("0", None, first, header),
        ("0", Some("sha-512=:AAAA:"), first, header),
        ("0", Some(upper.as_str()), first, header),
        ("0", Some(&other), first, mismatch),
        ("0", Some(&content_digest(&file[1..CHUNK])), &file[1..CHUNK], length),
        ("0", Some(&content_digest(&file[..=CHUNK])), &file[..=CHUNK], length),
        ("1", Some(&good), first, length),
        ("1", Some(&content_digest(&last[1..])), &last[1..], length),
        ("1", Some(&content_digest(&longer)), &longer, length),
        ("1", Some(&content_digest(nothing)), nothing, length),
        ("2", Some(&other), last, index),
        ("999999999999999", Some(&other), last, index),
        ("9999999999999999", Some(&other), last, (404, "not_found", "")),
        ("-1", Some(&other), last, (404, "not_found", "")),
    ] {
        let headers: Vec<_> = digest.iter().map(|value| ("content-digest", *value)).collect();
        let path = format!("/uploads/{id}/chunks/{path}");
        let got = team.send(&machine.token, "PUT", &path, &headers, Some(bytes));
        assert_eq!(got.refusal(), expected, "{path} {digest:?}");
        assert_eq!(team.rows(), (1, 0, 0));
    }
    let two = format!("sha-512=:AAAA:, {good}");
    let path = format!("/uploads/{id}/chunks/0");
    let got = team.send(&machine.token, "PUT", &path, &[("content-digest", &two)], Some(first));
    assert_eq!(got.status, 204);
    let huge = vec![0; (1 << 20) + 1];
    assert_eq!(team.put_chunk(&machine.token, &id, 0, &huge).refusal().1, "too_large");
}

#[test]
fn the_largest_chunk_fits_a_row() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = vec![7; 1 << 20];
    let body = json!({ "size": file.len(), "sha256": sha256(&file), "media_type": "a/b",
                       "chunk_size": 1 << 20 });
    let got = team.post(&machine.token, "/uploads", body);
    let id = got.data(201)["id"].as_str().unwrap();
    assert_eq!(team.put_chunk(&machine.token, id, 0, &file).status, 204);
    assert_eq!(team.commit_upload(&machine.token, id).status, 200);
    assert_eq!(team.content(&machine.token, id, &[]).bytes, file);
}

#[test]
fn equal_chunks_are_kept_once_per_team() {
    let team = Team::new();
    let (machine, other) = (team.publisher("laptop"), team.publisher("desktop"));
    let file = vec![1; 3 * CHUNK];
    let (a, b) = (team.uploaded(&machine.token, &file), team.uploaded(&other.token, &file));
    assert_eq!(team.rows(), (2, 6, 1));
    assert_eq!(team.content(&machine.token, &a, &[]).bytes, file);
    assert_eq!(team.content(&other.token, &b, &[]).bytes, file);
}

#[test]
fn an_empty_file_is_committed_without_chunks() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let id = team.begin_upload(&machine.token, b"");
    assert_eq!(team.upload(&machine.token, &id).data(200)["missing"], json!([]));
    let got = team.put_chunk(&machine.token, &id, 0, b"");
    assert_eq!(got.refusal(), (400, "invalid_request", "index"));
    assert_eq!(team.commit_upload(&machine.token, &id).data(200)["state"], "committed");
    let got = team.content(&machine.token, &id, &[]);
    assert_eq!((got.status, got.header("content-length"), got.bytes.len()), (200, Some("0"), 0));
    let got = team.content(&machine.token, &id, &[("range", "bytes=0-")]);
    assert_eq!(
        (got.refusal().1, got.header("content-range")),
        ("range_not_satisfiable", Some("bytes */0"))
    );

    let body = json!({ "size": 0, "sha256": sha256(b"a"), "media_type": "a/b" });
    let got = team.post(&machine.token, "/uploads", body);
    let wrong = got.data(201)["id"].as_str().unwrap();
    assert_eq!(team.commit_upload(&machine.token, wrong).refusal(), (409, "digest_mismatch", ""));
}

#[test]
fn a_commit_names_the_first_missing_chunks() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(3 * CHUNK);
    let id = team.begin_upload(&machine.token, &file);
    team.put_chunk(&machine.token, &id, 0, &file[..CHUNK]);
    team.put_chunk(&machine.token, &id, 2, &file[2 * CHUNK..]);
    let got = team.commit_upload(&machine.token, &id);
    assert_eq!(got.refusal(), (409, "upload_incomplete", ""));
    assert_eq!(got.json["error"]["details"]["missing"], json!([1]));
    let got = team.upload(&machine.token, &id);
    assert_eq!(got.data(200)["state"], "pending");
    let got = team.content(&machine.token, &id, &[]);
    assert_eq!(got.refusal(), (409, "upload_incomplete", ""));

    team.put_chunk(&machine.token, &id, 1, &file[CHUNK..2 * CHUNK]);
    assert_eq!(team.commit_upload(&machine.token, &id).status, 200);

    let body = json!({ "size": CHUNKS_MAX * CHUNK_BYTES_MIN, "sha256": "0".repeat(64),
                       "media_type": "a/b", "chunk_size": CHUNK });
    let got = team.post(&machine.token, "/uploads", body);
    let first: Vec<_> = (0..CHUNKS_MISSING_LISTED_MAX).collect();
    assert_eq!(got.data(201)["missing"], json!(first));
    let id = got.data(201)["id"].as_str().unwrap();
    let got = team.commit_upload(&machine.token, id);
    assert_eq!(got.json["error"]["details"]["missing"], json!(first));
}

#[test]
fn a_commit_takes_no_fields() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let id = team.begin_upload(&machine.token, b"");
    let path = format!("/uploads/{id}/commit");
    let got = team.post(&machine.token, &path, json!({ "parts": 1 }));
    assert_eq!(got.refusal(), (400, "invalid_request", "parts"));
    assert_eq!(team.post(&machine.token, &path, json!({})).status, 200);
}

#[test]
fn a_file_that_is_not_the_declared_one_is_never_committed() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let body = json!({ "size": CHUNK, "sha256": sha256(b"else"), "media_type": "a/b",
                       "chunk_size": CHUNK });
    let got = team.post(&machine.token, "/uploads", body);
    let id = got.data(201)["id"].as_str().unwrap();
    team.put_chunk(&machine.token, id, 0, &file(CHUNK));
    for _ in 0..2 {
        let got = team.commit_upload(&machine.token, id);
        assert_eq!(got.refusal(), (409, "digest_mismatch", ""));
        assert_eq!(got.json["error"]["details"]["sha256"], sha256(&file(CHUNK)));
        assert_eq!(team.upload(&machine.token, id).data(200)["state"], "pending");
    }
}

#[test]
fn a_commit_hashes_at_most_a_slice_between_two_yields() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(2 * TWO_SLICES);
    let id = team.begin_upload(&machine.token, &file);
    team.put_all(&machine.token, &id, &file);
    let mut job = team.open_commit(&machine.token, &id);
    assert_eq!(team.upload(&machine.token, &id).data(200)["state"], "verifying");
    let mut yields = 0;
    while job(&team.db()).unwrap().is_none() {
        yields += 1;
    }
    assert_eq!(yields, 2);
    assert_eq!(team.upload(&machine.token, &id).data(200)["state"], "committed");
}

#[test]
fn two_commits_at_once_end_alike() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(TWO_SLICES);
    let id = team.begin_upload(&machine.token, &file);
    team.put_all(&machine.token, &id, &file);
    let (mut a, mut b) =
        (team.open_commit(&machine.token, &id), team.open_commit(&machine.token, &id));
    assert!(a(&team.db()).unwrap().is_none());
    assert!(b(&team.db()).unwrap().is_none());
    assert_eq!(team.finish(a).unwrap().status, 200);
    let committed_at = team.count("SELECT committed_at FROM uploads");
    team.advance(5);
    assert_eq!(team.finish(b).unwrap().status, 200);
    assert_eq!(team.count("SELECT committed_at FROM uploads"), committed_at);
}

#[test]
fn a_commit_that_died_is_begun_again() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(TWO_SLICES);
    let id = team.begin_upload(&machine.token, &file);
    team.put_all(&machine.token, &id, &file);
    let mut job = team.open_commit(&machine.token, &id);
    assert!(job(&team.db()).unwrap().is_none());
    drop(job);
    assert_eq!(team.upload(&machine.token, &id).data(200)["state"], "verifying");
    assert_eq!(team.put_chunk(&machine.token, &id, 0, &file[..CHUNK]).status, 204);
    assert_eq!(team.put_chunk(&machine.token, &id, 0, &vec![1; CHUNK]).refusal().1, "conflict");
    assert_eq!(team.commit_upload(&machine.token, &id).data(200)["state"], "committed");
}

#[test]
fn a_commit_sees_what_changed_between_its_slices() {
    let incomplete = (409, "upload_incomplete");
    let cases = [
        ("DELETE FROM artifact_chunk_refs WHERE chunk_index = 1", incomplete),
        (
            "DELETE FROM artifact_blobs
              WHERE sha256 = (SELECT sha256 FROM artifact_chunk_refs WHERE chunk_index = 64)",
            incomplete,
        ),
        ("UPDATE uploads SET state = 'removing'", (410, "expired")),
        ("DELETE FROM uploads", (404, "not_found")),
        ("UPDATE credentials SET revoked_at = 1 WHERE kind = 'machine'", (401, "unauthenticated")),
        ("UPDATE sources SET state = 'paused'", (409, "conflict")),
    ];
    for (sql, expected) in cases {
        let team = Team::new();
        let machine = team.publisher("laptop");
        let file = file(TWO_SLICES);
        let id = team.begin_upload(&machine.token, &file);
        team.put_all(&machine.token, &id, &file);
        let mut job = team.open_commit(&machine.token, &id);
        assert!(job(&team.db()).unwrap().is_none());
        team.meddle(sql);
        let error = team.finish(job).err().expect("it is refused");
        assert_eq!((error.code.status(), error.code.text()), expected, "{sql}");
        assert_eq!(
            team.count("SELECT count(*) FROM uploads WHERE state = 'committed'"),
            0,
            "{sql}"
        );
    }
}

#[test]
fn a_chunk_whose_bytes_are_lost_is_named_and_can_be_sent_again() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(2 * CHUNK);
    let id = team.begin_upload(&machine.token, &file);
    team.put_all(&machine.token, &id, &file);
    team.meddle(
        "DELETE FROM artifact_blobs
          WHERE sha256 = (SELECT sha256 FROM artifact_chunk_refs WHERE chunk_index = 1)",
    );
    let got = team.commit_upload(&machine.token, &id);
    assert_eq!(got.json["error"]["details"]["missing"], json!([1]));
    assert_eq!(team.put_chunk(&machine.token, &id, 1, &file[CHUNK..]).status, 204);
    assert_eq!(team.commit_upload(&machine.token, &id).status, 200);
}

#[test]
fn chunks_that_the_source_holds_are_attached_without_sending_them() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let old = file(3 * CHUNK);
    team.uploaded(&machine.token, &old);
    let new = [&old[..2 * CHUNK], &vec![9; CHUNK + 5]].concat();
    let id = team.begin_upload(&machine.token, &new);
    let names: Vec<_> = new
        .chunks(CHUNK)
        .enumerate()
        .map(|(index, bytes)| json!({ "index": index, "sha256": sha256(bytes) }))
        .collect();
    let got = team.attach(&machine.token, &id, json!(names));
    assert_eq!(*got.data(200), json!({ "attached": [0, 1], "missing": [2, 3] }));
    assert_eq!(team.upload(&machine.token, &id).data(200)["missing"], json!([2, 3]));
    let again = team.attach(&machine.token, &id, json!(names));
    assert_eq!(again.data(200), got.data(200));

    team.put_chunk(&machine.token, &id, 2, &new[2 * CHUNK..3 * CHUNK]);
    team.put_chunk(&machine.token, &id, 3, &new[3 * CHUNK..]);
    assert_eq!(team.commit_upload(&machine.token, &id).status, 200);
    assert_eq!(team.content(&machine.token, &id, &[]).bytes, new);
    let all = team.attach(&machine.token, &id, json!(names));
    assert_eq!(*all.data(200), json!({ "attached": [0, 1, 2, 3], "missing": [] }));
}

#[test]
fn another_sources_chunk_is_not_had_for_its_hash() {
    let team = Team::new();
    let owner = team.publisher("laptop");
    let thief = team.publisher("desktop");
    let sibling = team.publisher_of(&owner.custodian_id, "phone");
    let secret = file(CHUNK);
    team.uploaded(&owner.token, &secret);
    for token in [&thief.token, &sibling.token] {
        let id = team.begin_upload(token, &secret);
        let got = team.attach(token, &id, json!([{ "index": 0, "sha256": sha256(&secret) }]));
        assert_eq!(*got.data(200), json!({ "attached": [], "missing": [0] }));
        assert_eq!(team.commit_upload(token, &id).refusal().1, "upload_incomplete");
    }
}

#[test]
fn a_chunk_that_retention_took_is_missing_until_it_is_sent_again() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let bytes = file(CHUNK);
    team.uploaded(&machine.token, &bytes);
    let id = team.begin_upload(&machine.token, &bytes);
    let name = json!([{ "index": 0, "sha256": sha256(&bytes) }]);
    for blob_is_gone in [false, true] {
        team.meddle("DELETE FROM artifact_chunk_refs");
        if blob_is_gone {
            team.meddle("DELETE FROM artifact_blobs");
        }
        let got = team.attach(&machine.token, &id, name.clone());
        assert_eq!(*got.data(200), json!({ "attached": [], "missing": [0] }));
        let got = team.commit_upload(&machine.token, &id);
        assert_eq!(got.json["error"]["details"]["missing"], json!([0]));
        assert_eq!(team.put_chunk(&machine.token, &id, 0, &bytes).status, 204);
    }
    assert_eq!(team.commit_upload(&machine.token, &id).status, 200);
}

#[test]
fn attaching_what_does_not_fit_is_refused_and_attaches_nothing() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let held = file(2 * CHUNK + 5);
    team.uploaded(&machine.token, &held);
    let new = file(2 * CHUNK + 6);
    let id = team.begin_upload(&machine.token, &new);
    let (good, short) = (sha256(&held[..CHUNK]), sha256(&held[2 * CHUNK..]));
    team.put_chunk(&machine.token, &id, 1, &vec![3; CHUNK]);
    let before = team.rows();
    let many: Vec<_> = (0..513).map(|n| json!({ "index": n, "sha256": good })).collect();
    let first = json!({ "index": 0, "sha256": good });
    for (chunks, expected) in [
        (json!(many), (400, "invalid_request", "chunks")),
        (
            json!([first, { "index": 0, "sha256": short }]),
            (400, "invalid_request", "chunks[1].index"),
        ),
        (
            json!([first, { "index": 3, "sha256": good }]),
            (400, "invalid_request", "chunks[1].index"),
        ),
        (
            json!([first, { "index": -1, "sha256": good }]),
            (400, "invalid_request", "chunks[1].index"),
        ),
        (
            json!([first, { "index": 1, "sha256": good.to_uppercase() }]),
            (400, "invalid_request", "chunks[1].sha256"),
        ),
        (
            json!([first, { "index": 1, "sha256": good, "x": 1 }]),
            (400, "invalid_request", "chunks[1].x"),
        ),
        (json!([first, { "index": 1, "sha256": good }]), (409, "conflict", "")),
    ] {
        let got = team.attach(&machine.token, &id, chunks.clone());
        assert_eq!(got.refusal(), expected, "{chunks}");
        assert_eq!(team.rows(), before, "{chunks}");
    }
    // Bytes of another length than the chunk's are not attached.
    let chunks = json!([{ "index": 2, "sha256": short }, { "index": 0, "sha256": short }]);
    let got = team.attach(&machine.token, &id, chunks);
    assert_eq!(*got.data(200), json!({ "attached": [], "missing": [2, 0] }));
}

#[test]
fn attaching_512_chunks_reads_a_few_rows_each() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let body = json!({ "size": 512 * CHUNK, "sha256": "0".repeat(64), "media_type": "a/b",
                       "chunk_size": CHUNK });
    team.post(&machine.token, "/uploads", body.clone());
    team.meddle(
        "INSERT INTO artifact_chunk_refs
             (team_id, upload_id, chunk_index, sha256, size, source_id)
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 511)
         SELECT u.team_id, u.id, i, printf('%064x', i), 65536, u.source_id FROM uploads u, n",
    );
    let got = team.post(&machine.token, "/uploads", body);
    let id = got.data(201)["id"].as_str().unwrap();
    let names: Vec<_> = (0..512)
        .map(|index| json!({ "index": index, "sha256": format!("{index:064x}") }))
        .collect();
    let before = team.db().cost();
    let got = team.attach(&machine.token, id, json!(names));
    let cost = team.db().cost() - before;
    assert_eq!(got.data(200)["attached"].as_array().unwrap().len(), 512);
    assert!(cost.rows_read < 20 * 512 && cost.statements < 12, "{cost:?}");
}

#[test]
fn asking_for_missing_chunks_reads_no_more_than_the_chunks() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let body = json!({ "size": CHUNKS_MAX * CHUNK_BYTES_MIN, "sha256": "0".repeat(64),
                       "media_type": "a/b", "chunk_size": CHUNK });
    let got = team.post(&machine.token, "/uploads", body);
    let id = got.data(201)["id"].as_str().unwrap();
    team.meddle(
        "INSERT INTO artifact_chunk_refs
             (team_id, upload_id, chunk_index, sha256, size, source_id)
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 4094)
         SELECT u.team_id, u.id, i, 'x', 65536, u.source_id FROM uploads u, n",
    );
    let before = team.db().cost();
    let got = team.upload(&machine.token, id);
    let cost = team.db().cost() - before;
    assert_eq!(got.data(200)["missing"], json!([4095]));
    assert!(cost.rows_read < 5_000, "{cost:?}");
}

#[test]
fn a_range_is_sent_as_asked() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(2 * CHUNK + 10);
    let size = file.len();
    let id = team.uploaded(&machine.token, &file);
    let tag = format!("\"{}\"", sha256(&file));
    for (range, first, end) in [
        ("bytes=0-0".to_owned(), 0, 1),
        (format!("bytes={}-{}", CHUNK - 1, CHUNK), CHUNK - 1, CHUNK + 1),
        (format!("bytes={CHUNK}-{}", 2 * CHUNK - 1), CHUNK, 2 * CHUNK),
        (format!("bytes={}-", size - 1), size - 1, size),
        ("bytes=-11".to_owned(), size - 11, size),
        ("bytes=5-999999999999".to_owned(), 5, size),
    ] {
        let got = team.content(&machine.token, &id, &[("range", &range)]);
        assert_eq!((got.status, got.bytes == file[first..end]), (206, true), "{range}");
        let content_range = format!("bytes {first}-{}/{size}", end - 1);
        assert_eq!(got.header("content-range"), Some(&*content_range));
        assert_eq!(got.header("content-length"), Some(&*(end - first).to_string()));
    }
    let whole: [&[(&'static str, &str)]; 5] = [
        &[("range", "bytes=0-1,5-6")],
        &[("range", "bytes=6-5")],
        &[("range", "pages=1-2")],
        &[("range", "bytes=0-1"), ("if-range", "\"else\"")],
        &[("if-none-match", "\"else\"")],
    ];
    for headers in whole {
        let got = team.content(&machine.token, &id, headers);
        assert_eq!((got.status, got.bytes == file), (200, true), "{headers:?}");
        assert_eq!(got.header("content-range"), None);
    }
    let got = team.content(&machine.token, &id, &[("range", "bytes=0-1"), ("if-range", &tag)]);
    assert_eq!(got.status, 206);
    let got = team.content(&machine.token, &id, &[("range", &format!("bytes={size}-"))]);
    assert_eq!(got.refusal(), (416, "range_not_satisfiable", ""));
    assert_eq!(got.header("content-range"), Some(&*format!("bytes */{size}")));
    for tags in [tag.clone(), format!("\"x\", W/{tag}"), "*".to_owned()] {
        let got = team.content(&machine.token, &id, &[("if-none-match", &tags)]);
        assert_eq!((got.status, got.bytes.len()), (304, 0), "{tags}");
    }
}

#[test]
fn a_body_breaks_off_when_its_upload_or_token_goes() {
    let cases: [&'static str; 3] = [
        "UPDATE uploads SET state = 'removing'",
        "DELETE FROM uploads",
        "UPDATE credentials SET revoked_at = 1 WHERE kind = 'machine'",
    ];
    for sql in cases {
        let team = Team::new();
        let machine = team.publisher("laptop");
        let id = team.uploaded(&machine.token, &file(2 * CHUNK));
        let Reply::Answer(answer) =
            team.open(&machine.token, "GET", &format!("/uploads/{id}/content"))
        else {
            panic!("content is an answer")
        };
        let Body::Chunks(mut next) = answer.body else { panic!("content comes in chunks") };
        assert_eq!(next(&team.db()).unwrap().unwrap().len(), CHUNK);
        team.meddle(sql);
        assert!(next(&team.db()).is_err(), "{sql}");
    }
}

#[test]
fn others_do_not_know_of_an_upload() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let sibling = team.publisher_of(&machine.custodian_id, "phone");
    let stranger = team.publisher("desktop");
    let (member, viewer) = (team.person("M", Role::Member), team.person("V", Role::Viewer));
    let app = team.app("writer", &["captures:write", "sessions:read"]).token;
    let events_app = team.app("listener", &["events:read"]).token;
    let file = file(CHUNK);
    let id = team.begin_upload(&machine.token, &file);
    let missing = (404, "not_found", "");
    for token in [&stranger.token, &member.token, &team.owner, &app] {
        assert_eq!(team.upload(token, &id).refusal(), missing);
        assert_eq!(team.content(token, &id, &[]).refusal(), missing);
        assert_eq!(team.put_chunk(token, &id, 0, &file).refusal(), missing);
        assert_eq!(team.attach(token, &id, json!([])).refusal(), missing);
        assert_eq!(team.commit_upload(token, &id).refusal(), missing);
    }
    assert_eq!(team.upload(&viewer.token, &id).refusal(), missing);
    assert_eq!(team.put_chunk(&viewer.token, &id, 0, &file).refusal().0, 403);
    assert_eq!(team.upload(&events_app, &id).refusal().0, 403);
    assert_eq!(team.upload(&sibling.token, &id).status, 200);
    assert_eq!(team.put_chunk(&sibling.token, &id, 0, &file).refusal().0, 403);
    assert_eq!(team.rows(), (1, 0, 0));
    for unknown in [format!("upload_{}", "0".repeat(32)), "upload_1".into(), "x".into()] {
        assert_eq!(team.upload(&machine.token, &unknown).refusal(), missing);
    }

    let (other_team, other_owner) = team.another("Other");
    let got = team.get(&other_owner, &format!("/uploads/{id}"));
    assert_eq!(got.refusal().0, 404);
    let address = format!("/v1/teams/{other_team}/uploads/{id}");
    let got = team.send_to(&address, &other_owner, "GET", &[], None);
    assert_eq!(got.refusal(), missing);
}

#[test]
fn who_sees_a_session_reads_its_artifacts_and_changes_none() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let (reader, stranger) = (team.person("R", Role::Viewer), team.person("S", Role::Member));
    let app = team.app("reader", &["sessions:read"]).token;
    let writer = team.app("writer", &["captures:write"]).token;
    let file = file(CHUNK);
    let id = team.uploaded(&machine.token, &file);
    let sessions: Vec<_> =
        (0..3).map(|n| team.session_with(&machine.token, &id, &n.to_string())).collect();
    assert_eq!(team.upload(&reader.token, &id).refusal(), (404, "not_found", ""));
    // A grant for whichever comes last: the others are passed over.
    let last = sessions.iter().max().unwrap();
    team.meddle(&format!(
        "INSERT INTO session_grants
             (team_id, session_id, subject_kind, subject_id, access, created_at)
         VALUES ('{}', '{last}', 'principal', '{}', 'read', 1)",
        team.id, reader.id
    ));
    assert_eq!(team.upload(&reader.token, &id).data(200)["state"], "committed");
    assert_eq!(team.content(&reader.token, &id, &[]).bytes, file);
    assert_eq!(team.upload(&stranger.token, &id).refusal().0, 404);

    team.meddle("UPDATE sources SET visibility = 'team'");
    for token in [&stranger.token, &app] {
        assert_eq!(team.content(token, &id, &[]).bytes, file);
    }
    assert_eq!(team.upload(&writer, &id).refusal(), (404, "not_found", ""));
    assert_eq!(team.put_chunk(&stranger.token, &id, 0, &file).refusal().0, 403);
    assert_eq!(team.attach(&stranger.token, &id, json!([])).refusal().0, 403);
    assert_eq!(team.commit_upload(&stranger.token, &id).refusal().0, 403);

    for session in &sessions {
        assert_eq!(team.delete(&team.owner, &format!("/sessions/{session}")).status, 204);
    }
    assert_eq!(team.upload(&stranger.token, &id).refusal().0, 404);
    assert_eq!(team.upload(&machine.token, &id).status, 200);
}

#[test]
fn an_uncommitted_upload_ends_after_its_day() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let stranger = team.publisher("desktop");
    let file = file(CHUNK);
    let committed = team.uploaded(&machine.token, &file);
    let id = team.begin_upload(&machine.token, &file);
    team.put_chunk(&machine.token, &id, 0, &file);
    team.advance(UPLOAD_AGE_MS - 1);
    assert_eq!(team.upload(&machine.token, &id).status, 200);
    team.advance(1);
    let all_expired = || {
        for got in [
            team.upload(&machine.token, &id),
            team.content(&machine.token, &id, &[]),
            team.put_chunk(&machine.token, &id, 0, &file),
            team.attach(&machine.token, &id, json!([])),
            team.commit_upload(&machine.token, &id),
        ] {
            assert_eq!(got.refusal(), (410, "expired", ""));
        }
        assert_eq!(team.upload(&stranger.token, &id).refusal().0, 404);
    };
    all_expired();
    team.meddle("UPDATE uploads SET state = 'removing' WHERE committed_at IS NULL");
    all_expired();
    team.meddle(
        "INSERT INTO capture_expiries (team_id, source_id, id, expired_at)
         SELECT team_id, source_id, id, 1 FROM uploads WHERE committed_at IS NULL",
    );
    team.meddle("DELETE FROM uploads WHERE committed_at IS NULL");
    all_expired();

    assert_eq!(team.content(&machine.token, &committed, &[]).bytes, file);
    team.meddle("UPDATE uploads SET state = 'removing'");
    assert_eq!(team.upload(&machine.token, &committed).refusal().0, 404);
}

#[test]
fn a_write_that_dies_half_way_leaves_nothing() {
    let team = Team::new();
    let machine = team.publisher("laptop");
    let file = file(CHUNK);
    let id = team.begin_upload(&machine.token, &file);
    let mut cut = 0;
    loop {
        team.driver.fail_after(Some(cut));
        let got = team.put_chunk(&machine.token, &id, 0, &file);
        team.driver.fail_after(None);
        if got.status == 204 {
            break;
        }
        assert_eq!((got.status, team.rows()), (500, (1, 0, 0)));
        cut += 1;
    }
    assert_eq!(team.rows(), (1, 1, 1));
    assert_eq!(team.commit_upload(&machine.token, &id).status, 200);
}
