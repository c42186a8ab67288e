//! Log in, enrol, log out.
use crate::account::{self, Login, Machine};
use crate::cli::Visibility;
use crate::client::{Body, Client};
use crate::error::{Error, Result};
use crate::files::{self, Paths};
use crate::output::{Output, plain};
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use std::io::{IsTerminal, Read};

#[derive(Deserialize)]
pub struct Me {
    principal: Person,
    role: Option<String>,
    credential: Credential,
    team: Team,
}

#[derive(Deserialize)]
struct Person {
    name: String,
}

#[derive(Deserialize)]
struct Credential {
    kind: String,
    expires_at: i64,
}

#[derive(Deserialize)]
struct Team {
    id: String,
    name: String,
}

pub async fn login(paths: &Paths, output: Output, server: &str) -> Result<()> {
    let server = server.trim_end_matches('/');
    if !server.starts_with("https://") && !server.starts_with("http://") {
        return Err(Error::usage(format!("--server {server}: write it as https://host")));
    }
    let token = read_token()?;
    let client = Client::new(server, &token)?.once();
    let me: Me = client.json(Method::GET, "/me", Body::none()).await?;
    if me.credential.kind != "user" {
        let kind = me.credential.kind;
        return Err(Error::usage(format!(
            "this is a token of kind {kind}; log in with a user token"
        )));
    }
    let is_local = ["http://127.", "http://localhost", "http://[::1]"];
    if server.starts_with("http://") && !is_local.iter().any(|local| server.starts_with(local)) {
        tracing::warn!("{server} is not https: the token and all sessions can be read on the way");
    }

    let known = files::read_json::<Login>(&paths.login()).unwrap_or_default();
    let enrollment_key = known.map_or_else(files::random_hex, |login| login.enrollment_key);
    let login = Login {
        server: server.to_owned(),
        token,
        name: me.principal.name,
        team_name: me.team.name,
        role: me.role,
        expires_at: me.credential.expires_at,
        enrollment_key,
    };
    files::write_json(&paths.login(), &login)?;

    let (name, team) = (plain(&login.name), plain(&login.team_name));
    output.say(
        &format!("Logged in as {name}, team {team}. Next: teamplane enroll"),
        &json!({ "name": login.name, "team": login.team_name, "team_id": me.team.id, "role": login.role }),
    );
    Ok(())
}

/// The first line of standard input, or what a person types without seeing it.
fn read_token() -> Result<String> {
    let stdin = std::io::stdin();
    let text = if stdin.is_terminal() {
        rpassword::prompt_password("Token (tp_user_…): ")
            .map_err(|error| Error::io("the token", error))?
    } else {
        let mut text = String::new();
        stdin
            .lock()
            .take(4_096)
            .read_to_string(&mut text)
            .map_err(|error| Error::io("the token on standard input", error))?;
        text
    };
    let token = text.lines().next().unwrap_or_default().trim().to_owned();
    if token.is_empty() {
        return Err(Error::usage("no token came on standard input: teamplane login … < token.txt"));
    }
    Ok(token)
}

#[derive(Deserialize)]
struct Enrolled {
    machine: Named,
    source: Named,
    credential: Issued,
}

#[derive(Deserialize)]
struct Named {
    id: String,
    name: String,
}

#[derive(Deserialize)]
pub struct Issued {
    pub token: Option<String>,
    pub expires_at: i64,
}

pub async fn enroll(
    paths: &Paths,
    output: Output,
    name: Option<String>,
    visibility: Option<Visibility>,
) -> Result<()> {
    let login = account::login(paths)?;
    let client = Client::new(&login.server, &login.token)?;
    let name = name.unwrap_or_else(host_name);
    let mut body = json!({ "name": name, "enrollment_key": login.enrollment_key });
    if let Some(visibility) = visibility {
        body["visibility"] = match visibility {
            Visibility::Team => json!("team"),
            Visibility::Restricted => json!("restricted"),
        };
    }
    let enrolled: Enrolled = client
        .json(Method::POST, "/machines", Body::json(&body))
        .await
        .map_err(|error| match error.code() {
            "conflict" => Error::other(format!("{error}; choose another with --name")),
            _ => error,
        })?;
    let token =
        enrolled.credential.token.ok_or_else(|| Error::other("the server sent no token"))?;
    let machine = Machine {
        server: login.server,
        token,
        expires_at: enrolled.credential.expires_at,
        machine_id: enrolled.machine.id,
        source_id: enrolled.source.id,
        name: enrolled.machine.name,
    };
    files::write_json(&paths.machine(), &machine)?;

    output.say(
        &format!("Enrolled as {}. Next: teamplane run", plain(&machine.name)),
        &json!({ "machine_id": machine.machine_id, "source_id": machine.source_id, "name": machine.name }),
    );
    Ok(())
}

fn host_name() -> String {
    let file = || std::fs::read_to_string("/etc/hostname").ok();
    let asked = || {
        let output = std::process::Command::new("hostname").output().ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let name = file().or_else(asked).unwrap_or_default();
    let name = name.trim().trim_end_matches(".local");
    let name: String = name.chars().filter(|c| !c.is_control()).take(128).collect();
    if name.is_empty() { "machine".into() } else { name }
}

/// Ends the machine on the server too, where it can be reached.
pub async fn logout(paths: &Paths, output: Output, keep_machine: bool) -> Result<()> {
    let login = files::read_json::<Login>(&paths.login()).unwrap_or_default();
    let machine = files::read_json::<Machine>(&paths.machine()).unwrap_or_default();
    let mut revoked = false;
    if let (Some(login), Some(machine), false) = (&login, &machine, keep_machine) {
        match revoke(login, machine).await {
            Ok(()) => revoked = true,
            Err(error) => tracing::warn!("the machine stays enrolled on the server: {error}"),
        }
    }
    let forgot_login = files::remove(&paths.login())?;
    let forgot_machine = !keep_machine && files::remove(&paths.machine())?;

    let text = match (forgot_login, forgot_machine) {
        (false, false) => "There was no login.",
        (true, false) => "The login is forgotten.",
        (_, true) if revoked => {
            "Login and enrolment are forgotten, and the machine's token has ended."
        }
        (_, true) => "Login and enrolment are forgotten.",
    };
    output.say(text, &json!({
        "login_forgotten": forgot_login, "machine_forgotten": forgot_machine, "machine_revoked": revoked,
    }));
    Ok(())
}

#[derive(Deserialize)]
struct Revision {
    revision: i64,
}

async fn revoke(login: &Login, machine: &Machine) -> Result<()> {
    let client = Client::new(&login.server, &login.token)?.once();
    let path = format!("/machines/{}", machine.machine_id);
    let Revision { revision } = client.json(Method::GET, &path, Body::none()).await?;
    let body = Body::raw_json("").with("if-match", format!("\"{revision}\""));
    client.send(Method::DELETE, &path, body).await.map(drop)
}
