//! The Directory: one object that says which teams a server has, and has their objects make them.
use super::host::Host;
use super::http::{self, Head};
use super::{ASK_AFTER, BACKLOG_AGE, DELETE_TEAM, MAKE_TEAM, TEAM_DELETED, alarm, config};
use crate::api::{self, Answer, Payload};
use crate::domain::registry::{self, Begun, DeleteTeam, MakeTeam, Wanted};
use crate::error::{Error, Result};
use crate::ids::{Id, ServerId, System, TeamId};
use crate::json;
use crate::limits::{JSON_BYTES_MAX, MAKE_TEAM_MS_MAX};
use crate::store::{Tx, migrate};
use std::cell::RefCell;
use std::collections::HashMap;
use worker::{
    DurableObject, Env, Headers, Method, Request, RequestInit, Response, State, durable_object,
};

#[durable_object]
pub struct Directory {
    host: Host,
    env: Env,
    /// The keys under which a team is being made in this instance, and since when.
    running: RefCell<HashMap<String, i64>>,
}

impl std::panic::UnwindSafe for Directory {}
impl std::panic::RefUnwindSafe for Directory {}

impl DurableObject for Directory {
    fn new(state: State, env: Env) -> Directory {
        Directory { host: Host::new(state, &env), env, running: RefCell::default() }
    }

    /// The edge sends only requests that carry the operator's token.
    async fn fetch(&self, mut request: Request) -> worker::Result<Response> {
        let head = Head::read(&request)?;
        let before = self.host.test_hooks(&request)?;
        let written = self.host.cost().rows_written;
        let answer = self.answer(&head, &mut request).await;
        let answer = answer.unwrap_or_else(|error| Answer::refusal(error, &head.request_id));
        alarm::see_to(&self.host, self.host.cost().rows_written > written).await;
        self.host.show_cost(http::whole(answer, &head.request_id)?, before)
    }

    /// Removes what has expired, and asks after teams that are neither active nor gone.
    async fn alarm(&self) -> worker::Result<Response> {
        alarm::run(&self.host, async || Ok(())).await;
        if !self.host.clock.is_by_test()
            && let Err(error) = self.ask_after_teams().await
        {
            worker::console_error!("who is left? {}", error.message);
        }
        Response::empty()
    }
}

impl Directory {
    async fn answer(&self, head: &Head, request: &mut Request) -> Result<Answer> {
        if head.path == BACKLOG_AGE {
            return self.host.backlog_age().await;
        }
        let server_id = self.open()?;
        if let Some(team_id) = head.path.strip_prefix(TEAM_DELETED) {
            let team_id = TeamId::parse(team_id).ok_or_else(Error::not_found)?;
            self.host.run(|db| db.transaction(|tx| registry::mark_deleting(tx, &team_id)))?;
            return Ok(Answer::json(200, "true".into()));
        }
        let body = http::body(request).await?;
        let asked = head.with_body(body.as_deref());
        match asked.method {
            "DELETE" => self.delete(&server_id, &asked, request.headers()).await,
            "GET" => self.host.run(|db| registry::list(db, &server_id, &asked)),
            _ => self.create(&server_id, &asked, request.headers()).await,
        }
    }

    /// The server's id, made by the first request.
    fn open(&self) -> Result<ServerId> {
        if let Some(server_id) = self.host.open()? {
            return Ok(server_id);
        }
        let server_id = ServerId::random(&System);
        self.host.initialise(&server_id)?;
        Ok(server_id)
    }

    /// `POST /v1/teams` makes a team with its owner.
    async fn create(
        &self,
        server_id: &ServerId,
        asked: &api::Request<'_>,
        headers: &Headers,
    ) -> Result<Answer> {
        let wanted = registry::wanted(asked)?;
        let now_ms = self.host.clock.now_ms();
        let running = wanted.key.as_ref().is_some_and(|key| self.is_running(key, now_ms));
        let begun =
            self.host.run(|db| db.transaction(|tx| registry::begin(tx, &wanted, running)))?;
        let team_id = match begun {
            Begun::Answered(answer) => return Ok(answer),
            Begun::Team(team_id) => team_id,
        };
        let _ends = wanted.key.clone().map(|key| Running::begin(&self.running, key, now_ms));

        let made = self.have_made(server_id, &team_id, &wanted, asked, headers).await;
        let ended = |tx: &Tx| {
            migrate::store_clock(tx)?;
            match made {
                Ok(Made::Team(created)) => {
                    registry::finish(tx, server_id, &wanted, &team_id, &created)
                }
                Ok(Made::Refused(answer)) => {
                    registry::abandon(tx, &wanted, Some(&team_id)).map(|()| answer)
                }
                Err(error) => {
                    registry::abandon(tx, &wanted, None)?;
                    Ok(Answer::refusal(error, asked.request_id))
                }
            }
        };
        self.host.run(|db| db.transaction(ended))
    }

    /// `DELETE /v1/teams/{team}` has its object delete the team.
    async fn delete(
        &self,
        server_id: &ServerId,
        asked: &api::Request<'_>,
        headers: &Headers,
    ) -> Result<Answer> {
        let team_id = asked.path.rsplit('/').next().and_then(TeamId::parse);
        let team_id = team_id.ok_or_else(Error::not_found)?;
        let body = asked.payload(Payload::Json(JSON_BYTES_MAX))?;
        asked.no_query()?;
        let confirmed = json::body(body)?;
        let state = self.host.run(|db| registry::state(db, &team_id))?;
        if state != "deleting" {
            let wanted = DeleteTeam { team_id: team_id.clone(), confirmed };
            let wanted = json::to_string(&wanted)?;
            let sent = self.send(&team_id, DELETE_TEAM, wanted, asked.request_id, headers);
            let (status, body) = sent.await.map_err(|error| http::thrown(&error))?;
            // An object that holds no such team: it was never made, or is gone already.
            if !matches!(status, 202 | 401 | 404) {
                return Ok(Answer::json(status, body));
            }
        }
        self.host.run(|db| db.transaction(|tx| registry::mark_deleting(tx, &team_id)))?;
        registry::deleting(server_id, &team_id)
    }

    /// One after the other: the alarm comes again while any is left.
    async fn ask_after_teams(&self) -> Result<()> {
        if self.host.open()?.is_none() {
            return Ok(());
        }
        for asked in self.host.run(registry::unsettled)? {
            let body = json::to_string(&asked)?;
            let sent = self.send(&asked.team_id, ASK_AFTER, body, "", &Headers::new()).await;
            let is_gone = match sent {
                Ok((200, body)) => body == "true",
                Ok((status, body)) => {
                    worker::console_error!("{}: {status} {body}", asked.team_id);
                    continue;
                }
                Err(error) => {
                    worker::console_error!("{}: {error}", asked.team_id);
                    continue;
                }
            };
            let team_id = &asked.team_id;
            self.host.run(|db| db.transaction(|tx| registry::asked(tx, team_id, is_gone)))?;
        }
        Ok(())
    }

    fn is_running(&self, key: &str, now_ms: i64) -> bool {
        let running = self.running.borrow();
        running.get(key).is_some_and(|since_ms| now_ms < since_ms + MAKE_TEAM_MS_MAX)
    }

    /// Has the team's object make the team.
    async fn have_made(
        &self,
        server_id: &ServerId,
        team_id: &TeamId,
        wanted: &Wanted,
        asked: &api::Request<'_>,
        headers: &Headers,
    ) -> Result<Made> {
        let make = MakeTeam { server_id, team_id, team: &wanted.team };
        let body = json::to_string(&make)?;
        let sent = self.send(team_id, MAKE_TEAM, body, asked.request_id, headers);
        let (status, body) = sent.await.map_err(|error| http::thrown(&error))?;
        if status != 201 {
            return Ok(Made::Refused(Answer::json(status, body)));
        }
        let created = serde_json::from_str(&body).map_err(|e| Error::internal(e.to_string()))?;
        Ok(Made::Team(created))
    }

    /// Asks the object that holds the team; what it answers.
    async fn send(
        &self,
        team_id: &TeamId,
        path: &str,
        body: String,
        request_id: &str,
        headers: &Headers,
    ) -> worker::Result<(u16, String)> {
        let inner = Headers::new();
        inner.set(http::REQUEST_ID, request_id)?;
        for name in [http::LOOPBACK, http::TEST_NOW_MS] {
            if let Some(value) = headers.get(name)? {
                inner.set(name, &value)?;
            }
        }
        let mut init = RequestInit::new();
        init.with_method(Method::Post).with_headers(inner).with_body(Some(body.into()));
        let request = Request::new_with_init(&format!("http://team{path}"), &init)?;
        let name = config::sharding(&self.env).object_name(team_id).to_owned();
        let team = self.env.durable_object(config::TEAM)?.get_by_name(&name)?;
        let mut response = team.fetch_with_request(request).await?;
        Ok((response.status_code(), response.text().await?))
    }
}

enum Made {
    Team(serde_json::Value),
    /// The object answered a refusal in its envelope.
    Refused(Answer),
}

/// Notes that a key's request is under way, for as long as it lives.
struct Running<'a> {
    all: &'a RefCell<HashMap<String, i64>>,
    key: String,
    since_ms: i64,
}

impl<'a> Running<'a> {
    fn begin(all: &'a RefCell<HashMap<String, i64>>, key: String, since_ms: i64) -> Self {
        all.borrow_mut().insert(key.clone(), since_ms);
        Running { all, key, since_ms }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut all = self.all.borrow_mut();
        // Another request may have taken the work over, and the note with it.
        if all.get(&self.key) == Some(&self.since_ms) {
            all.remove(&self.key);
        }
    }
}
