//! Attachments: a session attached to what an agent on a machine has open.
use crate::api::{Answer, Call};
use crate::auth::Role;
use crate::domain::{bindings, heartbeat, machines, sessions, sources, visibility};
use crate::error::{Error, Result};
use crate::guard;
use crate::ids::{AttachmentId, MachineId, PrincipalId, SessionId, TeamId};
use crate::limits::{ATTACHMENTS_OPEN_MAX, NAME_CHARS_MAX};
use crate::params;
use crate::store::{Db, Row, Tx};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Attach {
    machine_id: MachineId,
    binding_id: String,
}

#[derive(serde::Serialize)]
struct Attachment {
    id: AttachmentId,
    session_id: SessionId,
    machine_id: MachineId,
    binding_id: String,
    principal_id: PrincipalId,
    state: String,
    created_at: i64,
    settled_at: Option<i64>,
    revision: i64,
}

impl Attachment {
    fn read(row: &mut Row) -> Result<Attachment> {
        Ok(Attachment {
            id: row.get()?,
            session_id: row.get()?,
            machine_id: row.get()?,
            binding_id: row.get()?,
            principal_id: row.get()?,
            state: row.get()?,
            created_at: row.get()?,
            settled_at: row.get()?,
            revision: row.get()?,
        })
    }
}

/// `POST /sessions/{session}/attachments` attaches the session to what an agent on a machine has
/// open. `active` at once, or `pending` until the machine, which is offline, sends a heartbeat.
///
/// The same attachment, still open, is answered again (`200`). `403` unless the caller is a member
/// who may carry the session on; `404` on the field for a machine that is not active or a binding
/// that it has not; `409 conflict` when the machine has too many.
pub fn create(tx: &Tx, call: &Call) -> Result<Answer> {
    let body: Attach = call.json()?;
    guard::line("binding_id", &body.binding_id, NAME_CHARS_MAX)?;
    guard::role(&call.who, Role::Member)?;
    let session_id: SessionId = call.id(0)?;
    visibility::must_continue(tx, &call.who, &session_id)?;
    sessions::must_exist(tx, &call.who, &session_id)?;
    let team_id = &call.who.team_id;
    let machine = machines::must_be_active(tx, team_id, &body.machine_id)
        .map_err(|error| error.with("field", "machine_id"))?;
    bindings::must_exist(tx, team_id, &machine.id, &body.binding_id)?;

    if let Some(open) = open_one(tx, call, &session_id, &body)? {
        return call.versioned(200, &open, open.revision);
    }
    has_room(tx, team_id, &machine.id)?;
    let id: AttachmentId = tx.new_id();
    let state = if machine.connection == "offline" { "pending" } else { "active" };
    tx.execute(
        "INSERT INTO attachments
             (team_id, id, session_id, machine_id, binding_id, principal_id, state, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            team_id,
            &id,
            &session_id,
            &machine.id,
            &body.binding_id,
            &call.who.principal_id,
            state,
            tx.now_ms
        ],
    )?;
    let attachment = load(tx, team_id, &id)?;

    call.versioned(201, &attachment, attachment.revision)
}

/// `DELETE /attachments/{attachment}` closes it; closing again changes nothing.
///
/// `403` for a caller who sees the session but neither made the attachment, nor is the machine or
/// its custodian, nor an admin.
pub fn close(tx: &Tx, call: &Call) -> Result<Answer> {
    guard::reads(&call.who, visibility::READ_SCOPE)?;
    let (who, team_id) = (&call.who, &call.who.team_id);
    let attachment = load(tx, team_id, &call.id(0)?)?;
    let machine = machines::load(tx, team_id, &attachment.machine_id)?;
    let governs = [&attachment.principal_id, &machine.custodian_id].contains(&&who.principal_id);
    if !governs {
        visibility::must_see(tx, who, &attachment.session_id)?;
        guard::role(who, Role::Admin)?;
    }

    let closed = tx.execute_counted(
        "UPDATE attachments SET state = 'closed', settled_at = ?3, revision = revision + 1
          WHERE team_id = ?1 AND id = ?2 AND state IN ('pending', 'active')",
        params![team_id, &attachment.id, tx.now_ms],
    )?;
    if closed == 1 {
        // A binding that only this attachment held on to may go with the next heartbeat.
        let source = sources::load_of_machine(tx, team_id, &machine.id)?;
        heartbeat::forget_bindings(tx, team_id, &source.id)?;
    }

    Ok(Answer::no_content())
}

/// The machine is there, so what waited for it is attached.
pub fn activate_all_of_machine(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "UPDATE attachments SET state = 'active', revision = revision + 1
          WHERE team_id = ?1 AND machine_id = ?2 AND state = 'pending'",
        params![team_id, machine_id],
    )
}

fn open_one(
    db: &Db,
    call: &Call,
    session_id: &SessionId,
    body: &Attach,
) -> Result<Option<Attachment>> {
    // attachments_by_machine finds the open ones.
    db.query_optional(
        "SELECT id, session_id, machine_id, binding_id, principal_id, state, created_at,
                settled_at, revision
           FROM attachments
          WHERE team_id = ?1 AND machine_id = ?2 AND state IN ('pending', 'active')
            AND session_id = ?3 AND binding_id = ?4
          LIMIT 1",
        params![&call.who.team_id, &body.machine_id, session_id, &body.binding_id],
        Attachment::read,
    )
}

fn has_room(db: &Db, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    let open = db.query_one(
        "SELECT count(*) FROM (SELECT 1 FROM attachments
                                WHERE team_id = ?1 AND machine_id = ?2
                                  AND state IN ('pending', 'active')
                                LIMIT ?3)",
        params![team_id, machine_id, ATTACHMENTS_OPEN_MAX],
        |row| row.get::<i64>(),
    )?;
    guard::room("open attachments of a machine", open, ATTACHMENTS_OPEN_MAX)
}

fn load(db: &Db, team_id: &TeamId, id: &AttachmentId) -> Result<Attachment> {
    db.query_optional(
        "SELECT id, session_id, machine_id, binding_id, principal_id, state, created_at,
                settled_at, revision
           FROM attachments
          WHERE team_id = ?1 AND id = ?2",
        params![team_id, id],
        Attachment::read,
    )?
    .ok_or_else(Error::not_found)
}

/// Revokes a machine's open attachments.
pub fn revoke_all_of_machine(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "UPDATE attachments SET state = 'revoked', settled_at = ?3, revision = revision + 1
          WHERE team_id = ?1 AND machine_id = ?2 AND state IN ('pending', 'active')",
        params![team_id, machine_id, tx.now_ms],
    )
}

/// Closes the attachments of a connector's run that another has replaced.
pub fn close_all_of_machine(tx: &Tx, team_id: &TeamId, machine_id: &MachineId) -> Result<()> {
    tx.execute(
        "UPDATE attachments SET state = 'closed', settled_at = ?3, revision = revision + 1
          WHERE team_id = ?1 AND machine_id = ?2 AND state IN ('pending', 'active')",
        params![team_id, machine_id, tx.now_ms],
    )
}

/// Revokes the open attachments that a principal made, on any machine.
pub fn revoke_all_of(tx: &Tx, team_id: &TeamId, principal_id: &PrincipalId) -> Result<()> {
    // Through the team's machines, because attachments_by_machine finds the open ones.
    tx.execute(
        "UPDATE attachments SET state = 'revoked', settled_at = ?3, revision = revision + 1
          WHERE team_id = ?1 AND id IN (
                SELECT a.id
                  FROM machines m
                 CROSS JOIN attachments a
                    ON a.team_id = m.team_id AND a.machine_id = m.id
                   AND a.state IN ('pending', 'active')
                 WHERE m.team_id = ?1 AND a.principal_id = ?2)",
        params![team_id, principal_id, tx.now_ms],
    )
}
