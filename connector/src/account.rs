//! Who this machine speaks for: the person's login and the machine's enrolment, each in a file that
//! only its owner may read.
use crate::client::Client;
use crate::error::{Error, Result};
use crate::files::{self, Paths};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Login {
    pub server: String,
    pub token: String,
    pub name: String,
    pub team_name: String,
    pub role: Option<String>,
    pub expires_at: i64,
    /// Tells this computer from others of the same person.
    pub enrollment_key: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    pub server: String,
    pub token: String,
    pub expires_at: i64,
    pub machine_id: String,
    pub source_id: String,
    pub name: String,
}

pub fn login(paths: &Paths) -> Result<Login> {
    files::read_json(&paths.login())?.ok_or_else(|| {
        Error::NotSetUp("not logged in: run teamplane login --server https://… first".into())
    })
}

pub fn machine(paths: &Paths) -> Result<Machine> {
    files::read_json(&paths.machine())?.ok_or_else(|| {
        Error::NotSetUp("this machine is not enrolled: run teamplane enroll first".into())
    })
}

pub fn machine_client(paths: &Paths) -> Result<(Machine, Client)> {
    let machine = machine(paths)?;
    let client = Client::new(&machine.server, &machine.token)?;
    Ok((machine, client))
}

/// For reading what this person sees: by their own token, or else by the machine's.
pub fn reading_client(paths: &Paths) -> Result<Client> {
    match login(paths) {
        Ok(login) => Client::new(&login.server, &login.token),
        Err(error) => machine_client(paths).map(|(_, client)| client).map_err(|_| error),
    }
}
