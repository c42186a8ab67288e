//! Content of runs, and the bodies that it is kept in.
use crate::team::{Got, Team};
use sha2::{Digest, Sha256};
use teamplane::auth::Role;
use teamplane::ids::hex;
use teamplane::limits::{BODY_CHUNK_BYTES, CONTENT_BYTES_MAX, MINUTE_MS, STAGED_BODY_AGE_MS};

const GRACE_MS: i64 = 15 * MINUTE_MS;

fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn named(bytes: &[u8]) -> String {
    format!("sha256:{}", digest(bytes))
}

/// Bytes that no two places of have alike.
fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 31 % 251).to_le_bytes()[0]).collect()
}

impl Team {
    fn put_content(&self, name: &str, bytes: &[u8]) -> Got {
        self.send(&self.owner, "PUT", &format!("/content/{name}"), &[], Some(bytes))
    }

    fn content_of(&self, name: &str, headers: &[(&'static str, &str)]) -> Got {
        self.send(&self.owner, "GET", &format!("/content/{name}"), headers, None)
    }

    fn names(&self, name: &str) {
        self.sql(&format!("INSERT INTO content_refs VALUES ('{}', '{name}', 1)", self.id));
    }

    fn count_of(&self, table: &str) -> i64 {
        self.count(&format!("SELECT count(*) FROM {table}"))
    }
}

#[test]
fn content_comes_back_whole_and_in_ranges() {
    let team = Team::new();
    let chunk = usize::try_from(BODY_CHUNK_BYTES).unwrap();
    for length in [1, chunk - 1, chunk, chunk + 1, 2 * chunk + 7] {
        let file = bytes(length);
        for name in [named(&file), format!("ref:output:{}", digest(&file))] {
            assert_eq!(team.put_content(&name, &file).status, 204);
            let got = team.content_of(&name, &[]);
            assert_eq!((got.status, &got.bytes), (200, &file));
            assert_eq!(got.header("etag"), Some(format!("\"{}\"", digest(&file)).as_str()));
            let got = team.content_of(&name, &[("range", &format!("bytes={}-", length - 1))]);
            assert_eq!((got.status, &got.bytes[..]), (206, &file[length - 1..]));
            let got = team.content_of(&name, &[("range", &format!("bytes={length}-"))]);
            assert_eq!(got.refusal().0, 416);
            let got = team.send(&team.owner, "HEAD", &format!("/content/{name}"), &[], None);
            assert_eq!((got.status, got.bytes.len()), (200, 0));
            assert_eq!(got.header("content-length"), Some(length.to_string().as_str()));
        }
    }
    let middle = bytes(2 * chunk + 7);
    let range = format!("bytes={}-{}", chunk - 2, chunk + 1);
    let got = team.content_of(&named(&middle), &[("range", &range)]);
    assert_eq!(got.bytes, middle[chunk - 2..chunk + 2], "over the border of two chunks");
    assert_eq!(team.count_of("staged_bodies"), 0);
}

#[test]
fn a_name_is_the_digest_of_its_content() {
    let team = Team::new();
    let (file, other) = (bytes(700_000), bytes(700_001));
    let got = team.put_content(&named(&file), &other);
    assert_eq!(got.refusal(), (409, "digest_mismatch", ""));
    assert_eq!(got.json["error"]["details"]["sha256"], digest(&other));
    assert_eq!(team.content_of(&named(&file), &[]).status, 404);
    let upper = named(&file).to_uppercase();
    for name in ["x", "sha256:", "ref:other:00", "sha256:00", &upper, "sha512:00"] {
        let got = team.put_content(name, &file);
        assert_eq!(got.refusal(), (400, "invalid_request", "ref"), "{name}");
        assert_eq!(team.content_of(name, &[]).status, 404);
    }
    assert_eq!(team.put_content(&named(&file), &file).status, 204);
    assert_eq!(team.put_content(&named(&file), &file).status, 204, "again");
    assert_eq!(team.count_of("content"), 1);
    team.settle();
    assert_eq!(team.count_of("body_prune_queue"), 0);
    assert_eq!(team.count_of("body_chunks"), 3, "those of the two others went");
    assert_eq!(team.content_of(&named(&file), &[]).bytes, file);
}

#[test]
fn of_nothing_nothing_is_stored() {
    let team = Team::new();
    assert_eq!(team.put_content(&named(b""), b"").status, 204);
    assert_eq!(team.content_of(&named(b""), &[]).status, 404);
    team.settle();
    assert_eq!(team.count_of("body_chunks"), 0);
}

#[test]
fn a_body_over_the_limit_leaves_nothing() {
    let team = Team::new();
    let file = bytes(CONTENT_BYTES_MAX + 1);
    assert_eq!(team.put_content(&named(&file), &file).refusal().0, 413);
    team.settle();
    assert_eq!(team.count_of("body_chunks") + team.count_of("staged_bodies"), 0);
    let largest = &file[..CONTENT_BYTES_MAX];
    assert_eq!(team.put_content(&named(largest), largest).status, 204);
}

#[test]
fn a_body_that_breaks_off_or_dies_anywhere_is_removed_after_an_hour() {
    let file = bytes(600_000);
    for cut in 0..14 {
        let team = Team::new();
        team.settle();
        team.driver.fail_after(Some(cut));
        let got = team.put_content(&named(&file), &file);
        team.driver.fail_after(None);
        assert_eq!(got.status, 500, "statement {cut}");
        assert_eq!(team.content_of(&named(&file), &[]).status, 404);
        team.advance(STAGED_BODY_AGE_MS - 1);
        team.settle();
        let staged = team.count_of("staged_bodies");
        assert_eq!(team.count_of("body_chunks") > 0, staged > 0, "statement {cut}");
        team.advance(1);
        team.settle();
        for table in ["staged_bodies", "body_chunks", "body_prune_queue", "content"] {
            assert_eq!(team.count_of(table), 0, "statement {cut}: {table}");
        }
    }
}

#[test]
fn content_goes_when_nothing_names_it_and_it_is_old_enough() {
    let team = Team::new();
    let files = [bytes(1), bytes(2), bytes(3), bytes(4)];
    let [free, of_event, granted, written_again] = files.each_ref().map(|file| named(file));
    for file in &files {
        assert_eq!(team.put_content(&named(file), file).status, 204);
    }
    team.names(&of_event);
    let grant = format!("/content/{granted}/grants/agent-1");
    let there = |name: &str| team.content_of(name, &[]).status == 200;
    assert_eq!(team.send(&team.owner, "PUT", &grant, &[], None).data(200)["granted"], true);
    team.advance(GRACE_MS - 1);
    team.settle();
    assert!(there(&free), "it is not old enough");
    assert_eq!(team.put_content(&written_again, &files[3]).status, 204);
    team.advance(1);
    team.settle();
    assert!(!there(&free));
    assert!(there(&of_event) && there(&granted));
    assert!(there(&written_again), "its producer is about to name it");
    team.advance(GRACE_MS);
    team.settle();
    assert!(!there(&written_again));
    team.sql("DELETE FROM content_refs");
    team.settle();
    assert!(!there(&of_event), "its event went, and it is old");
    assert!(there(&granted));
    assert_eq!(team.count_of("body_chunks"), 1);
}

#[test]
fn grants_are_kept_whether_or_not_the_content_is_there() {
    let team = Team::new();
    let path = |session: &str| format!("/content/{}/grants/{session}", named(b"x"));
    let granted =
        |session: &str| team.get(&team.owner, &path(session)).data(200)["granted"] == true;
    assert!(!granted("a"));
    for _ in 0..2 {
        assert_eq!(team.send(&team.owner, "PUT", &path("a"), &[], None).status, 200);
    }
    assert!(granted("a") && !granted("b"));
    let long = "x".repeat(129);
    let got = team.send(&team.owner, "PUT", &path(&long), &[], None);
    assert_eq!(got.refusal(), (400, "invalid_request", "session"));
}

#[test]
fn a_writer_whose_token_ends_meanwhile_publishes_nothing() {
    use teamplane::api::{Reply, Request, handle};
    let team = Team::new();
    let grace = team.person("Grace", Role::Member);
    let file = bytes(600_000);
    let path = format!("/v1/teams/{}/content/{}", team.id, named(&file));
    let headers = [("authorization", format!("Bearer {}", grace.token))];
    let request = Request {
        method: "PUT",
        path: &path,
        query: "",
        headers: &headers,
        body: Some(&[]),
        request_id: "request_1",
    };
    let Reply::Intake(mut intake) = handle(&team.plane(), &request) else { panic!("refused") };
    assert!(matches!(intake(&team.db(), Some(&file[..300_000])), Ok(None)));
    team.sql("UPDATE memberships SET active = 0 WHERE role = 'member'");
    let refused = intake(&team.db(), Some(&file[300_000..]));
    assert!(refused.is_err_and(|error| error.code.status() == 401));
    team.settle();
    assert_eq!(team.count_of("body_chunks") + team.count_of("staged_bodies"), 0);
}
