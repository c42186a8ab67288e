//! No statement reads a table that it cannot bound: every statement that any test runs has its
//! plan looked at when the test's `Team` goes out of scope.
use rusqlite::Connection;
use std::collections::HashSet;
use std::sync::Mutex;
use teamplane::store::native::Native;

/// Statements that may walk a whole table, and why.
const ALLOWED: &[(&str, &str)] = &[("FROM server", "one row"), ("UPDATE server", "one row")];

static CHECKED: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);

/// Fails for a statement that has scanned a table, among all that `driver` has run.
pub fn check(driver: &Native) {
    for sql in driver.statements() {
        let Ok(mut checked) = CHECKED.lock() else { return };
        if checked.get_or_insert_default().insert(sql) {
            drop(checked);
            let scans = scans(driver.connection(), sql);
            assert!(scans.is_empty(), "a statement walks a table: {scans:?} in: {sql}");
        }
    }
}

/// The lines of a statement's plan that walk a whole table.
pub fn scans(connection: &Connection, sql: &str) -> Vec<String> {
    if ALLOWED.iter().any(|(part, _)| sql.contains(part)) {
        return Vec::new();
    }
    let lines = column(connection, &format!("EXPLAIN QUERY PLAN {sql}"), "detail");
    let tables = column(connection, "SELECT name FROM sqlite_schema WHERE type = 'table'", "name");
    lines.into_iter().filter(|line| walks(line, sql, &tables)).collect()
}

fn column(connection: &Connection, sql: &str, name: &str) -> Vec<String> {
    let mut statement = connection.prepare(sql).expect("the statement is good");
    let rows = statement.raw_query().mapped(|row| row.get(name));
    rows.collect::<Result<_, _>>().expect("a text in each row")
}

/// Whether a plan's line says that a stored table is read from end to end, rather than rows that
/// another part of the statement makes.
fn walks(line: &str, sql: &str, tables: &[String]) -> bool {
    let Some(what) = line.strip_prefix("SCAN ") else { return false };
    let (name, how) = what.split_once(' ').unwrap_or((what, ""));
    let words: Vec<&str> = sql.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let words: Vec<&str> = words.into_iter().filter(|w| !w.is_empty() && *w != "AS").collect();
    let stored = tables
        .iter()
        .any(|table| table == name || words.windows(2).any(|pair| pair == [table, name]));
    // Full-text search that has something to match.
    let matches = how.starts_with("VIRTUAL TABLE") && !how.ends_with("INDEX 0:");
    stored && !matches
}

fn scans_of(sql: &str) -> Vec<String> {
    let connection = Connection::open_in_memory().expect("SQLite opens in memory");
    connection
        .execute_batch(
            "CREATE TABLE a (id INTEGER PRIMARY KEY, x TEXT);
             CREATE INDEX a_by_x ON a (x);
             CREATE VIRTUAL TABLE f USING fts5 (t)",
        )
        .expect("the tables are made");
    scans(&connection, sql)
}

#[test]
fn a_walk_over_a_table_an_index_or_a_search_table_is_found() {
    for sql in [
        "SELECT x FROM a",
        "SELECT m.x FROM a m WHERE m.x || '' = ?1",
        "SELECT count(*) FROM a",
        "DELETE FROM a WHERE id % 2 = 1",
        "UPDATE a SET x = ?1 WHERE coalesce(x, '') = ?2",
        "SELECT j.value FROM json_each(?1) j LEFT JOIN a ON a.x LIKE j.value",
        "SELECT id FROM a WHERE id IN (SELECT id FROM a WHERE x > '' OR id % 2)",
        "SELECT t FROM f",
    ] {
        assert_ne!(scans_of(sql), Vec::<String>::new(), "{sql}");
    }
}

#[test]
fn what_is_bounded_by_a_key_or_by_its_input_is_no_walk() {
    for sql in [
        "SELECT x FROM a WHERE id = ?1",
        "SELECT x FROM a WHERE x > ?1 ORDER BY x LIMIT ?2",
        "SELECT j.value FROM json_each(?1) j CROSS JOIN a ON a.x = j.value",
        "SELECT count(*) FROM (SELECT 1 FROM a WHERE x = ?1 LIMIT ?2)",
        "INSERT INTO a (id, x) SELECT value, key FROM json_each(?1) WHERE true",
        "INSERT INTO a (id, x) VALUES (?1, ?2)",
        "SELECT t FROM f WHERE f MATCH ?1",
        "WITH near AS MATERIALIZED (SELECT id FROM a WHERE x > ?1 LIMIT 9)
         SELECT a.x FROM near CROSS JOIN a ON a.id = near.id",
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?1)
         SELECT (SELECT x FROM a WHERE id = w.i) FROM n w",
    ] {
        assert_eq!(scans_of(sql), Vec::<String>::new(), "{sql}");
    }
}
