//! The schema's history: applied once, never edited after it has landed, safe on data.
use crate::capture::messages;
use crate::team::{Seeded, Team};
use sha2::{Digest, Sha256};
use teamplane::ids::{Id, ServerId, hex};
use teamplane::store::Db;
use teamplane::store::migrate::{self, MIGRATIONS, SCHEMA_VERSION};
use teamplane::store::native::Native;

/// The schema before the retention migration.
const BASE_SCHEMA_VERSION: i64 = 7;

/// SHA-256 of each file. A landed one never changes: what it did not say, a new one says.
const LANDED: &[(&str, &str)] = &[
    ("0001_teams", "e9e797060e494934a2555d4977f9f73d4f70c24e5008b28596ee6942a1ed9fd7"),
    ("0002_machines", "fee4aefa275f32e30b728fca7847fda738e3b37d85d331ff29b29f2081e53511"),
    ("0003_sessions", "4c160128e95f4084489163a983cc99fbc9941d19ef1ebec97a06e3447f31cf38"),
    ("0004_uploads", "ed0455ecc7966389800f8bfe4ed8bb070d745cecf02f9a775ca28243a7532161"),
    ("0005_work", "f43a764e5136b8b073a9b280005800df63115b2dfe49d6a176415b8f6e1d5342"),
    ("0006_events", "3b3dab7769471da5440750f79584c8056d58bc8b186ff65adb82dd34df2eb7f4"),
    ("0007_apps", "4388a3eb4365eca6ea47298799c80dc913fb2e261759cc9574d2799f017bb438"),
    ("0008_retention", "1c3b85ed41d049ae9e207ee0e5cf171f9f064f21c7af8ebe6973a840318d6159"),
    ("0009_transfer", "2f117abb26c437903fa93e4055630949bdb7c73267612fd79dd2b2b9dda9eb06"),
    ("0010_ledger", "3d138454f82cc9630e208f8dd39fe23f83b8d9570d61deca9f37e4a953a849e1"),
    ("0011_content", "63d104a12603d2f7e13ed6ea6e1fd1efc728b517b4067270b0946373737d6eff"),
    ("0012_webhooks", "890b3f72f8b69745183c885c068179eaa7097907d33d43bf4a25bd661840da02"),
    ("0013_contexts", "0891e1152f788eb13ccd130036de87e34defc29a7c079928ae731c5faa6bb901"),
];

#[test]
fn landed_migrations_are_never_edited() {
    for ((name, sql), landed) in MIGRATIONS.iter().zip(LANDED) {
        assert_eq!((*name, hex(&Sha256::digest(sql)).as_str()), *landed);
    }
    assert_eq!(MIGRATIONS.len(), LANDED.len(), "add the new migration's hash");
}

#[test]
fn the_schema_is_the_same_however_it_was_reached() {
    let schema = |driver: &Native| -> Vec<String> {
        let mut statement = driver
            .connection()
            .prepare("SELECT coalesce(sql, name) FROM sqlite_schema ORDER BY name")
            .unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let entropy = Seeded::default();
    let server_id = ServerId::random(&entropy);
    let whole = Team::new();
    for first in 1..SCHEMA_VERSION {
        let driver = Native::open_in_memory();
        let db = Db::new(&driver, &entropy, 0);
        migrate::upgrade(&db, 0, &server_id, first).unwrap();
        assert_eq!(migrate::read(&db).unwrap().unwrap().schema_version, first);
        migrate::initialise(&db, &server_id).unwrap();
        assert_eq!(schema(&driver), schema(&whole.driver), "from version {first}");
    }
}

#[test]
fn a_store_filled_under_the_base_schema_reads_as_before() {
    let team = Team::over(Native::open_in_memory(), BASE_SCHEMA_VERSION);
    let laptop = team.publisher("laptop");
    let id = team.publish(&laptop.token, "n1", &messages(0, 5, "a"))["session_id"].clone();
    team.publish(&laptop.token, "n1", &messages(0, 6, "b"));
    let read = |revision: i64| {
        let path = format!("/sessions/{}/messages?revision={revision}", id.as_str().unwrap());
        team.get(&laptop.token, &path).items().clone()
    };
    let before = (read(1), read(2));
    team.migrate();
    assert_eq!((read(1), read(2)), before);
    // Applying what is applied already changes nothing.
    migrate::initialise(&team.db(), &team.server_id).unwrap();
    assert_eq!(team.count("SELECT count(*) FROM server"), 1);
    assert_eq!(team.count("SELECT schema_version FROM server"), SCHEMA_VERSION);
}

#[test]
fn an_object_that_nobody_initialised_holds_nothing() {
    let driver = Native::open_in_memory();
    let entropy = Seeded::default();
    let db = Db::new(&driver, &entropy, 0);
    assert!(migrate::read(&db).unwrap().is_none());
    migrate::initialise(&db, &ServerId::random(&entropy)).unwrap();
    assert!(migrate::read(&db).unwrap().is_some());
}
