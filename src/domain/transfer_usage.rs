//! How an import puts records of usage in.
use crate::domain::transfer_rows::{Into, Row};
use crate::error::{Error, Result};
use crate::ids::TeamId;
use crate::limits::{SAFE_INTEGER_MAX, USAGE_IDS_APART};
use crate::params;
use crate::store::{Cell, Tx};

/// A record's number is unique in the object: where another team has it, it is moved up, so that
/// the records keep their order.
pub fn put(tx: &Tx, into: &Into, row: &Row) -> Result<()> {
    let mut id: i64 = row.get("id")?;
    loop {
        if !(0..=SAFE_INTEGER_MAX).contains(&id) {
            return Err(Error::field("id", "is no record's number"));
        }
        let holder = tx.query_optional(
            "SELECT team_id FROM usage_records WHERE id = CAST(?1 AS INTEGER)",
            params![id],
            |row| row.get::<TeamId>(),
        )?;
        match holder {
            Some(team_id) if team_id == *into.team_id => return Ok(()),
            Some(_) => id += USAGE_IDS_APART,
            None => {
                let moved = Row { table: row.table, cells: &row.with("id", Cell::Int(id)) };
                return moved.insert(tx, into).map(drop);
            }
        }
    }
}
