//! Back-pressure on the ledger: how many appends of an object wait at a time, in all and for one
//! run. An append waits from the moment its request is delivered until it is answered; the shell
//! says when. What is refused here was not looked at, so it may be sent again as it is.
use crate::api::{self, Request};
use crate::auth;
use crate::error::{Code, Error, Result};
use crate::limits::{APPENDS_PER_RUN_MAX, APPENDS_RETRY_S, APPENDS_WAITING_MAX};
use crate::store::Db;
use std::collections::HashMap;

/// Since this instance of the object began.
#[derive(Debug, Default)]
pub struct Appends {
    waiting: HashMap<String, usize>,
    count: usize,
    pub submitted: u64,
    pub committed: u64,
    pub rejected: u64,
    pub wait_ms: u64,
    pub wait_ms_max: u64,
}

/// Which run a request appends to; '' where only its body says. Nothing if it is no append.
pub fn run_of(method: &str, path: &str) -> Option<String> {
    let matched = api::find_route(method, path).ok().filter(|_| method == "POST")?;
    match matched.route.path {
        "/runs/{run}/events" => Some(matched.segment(0).to_owned()),
        "/runs" | "/run-events" => Some(String::new()),
        _ => None,
    }
}

/// Whether the request's token is good here: what the handler would refuse waits for nobody.
pub fn is_admitted(db: &Db, request: &Request) -> bool {
    let Ok((matched, token)) = api::admit(request) else { return false };
    let who = auth::authenticate(db, &token);
    who.is_ok_and(|who| matched.team_id == Some(who.team_id))
}

impl Appends {
    /// `503 overloaded` while too many wait already.
    pub fn enter(&mut self, run_id: &str) -> Result<()> {
        let of_run = self.waiting.get(run_id).copied().unwrap_or(0);
        let run_is_full = !run_id.is_empty() && of_run >= APPENDS_PER_RUN_MAX;
        if run_is_full || self.count >= APPENDS_WAITING_MAX {
            self.rejected += 1;
            let message = "too many appends are waiting; nothing of this one was stored";
            return Err(Error::new(Code::Overloaded, message)
                .with_header("Retry-After", APPENDS_RETRY_S.to_string()));
        }
        *self.waiting.entry(run_id.to_owned()).or_default() += 1;
        self.count += 1;
        self.submitted += 1;
        Ok(())
    }

    /// Ends what `enter` began.
    pub fn leave(&mut self, run_id: &str, waited_ms: u64, is_committed: bool) {
        if let Some(count) = self.waiting.get_mut(run_id) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(run_id);
            }
        }
        self.count -= 1;
        self.committed += u64::from(is_committed);
        self.wait_ms += waited_ms;
        self.wait_ms_max = self.wait_ms_max.max(waited_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_are_told_from_other_requests() {
        let team = format!("/v1/teams/team_{}", "0".repeat(32));
        let run = |method, path: &str| run_of(method, &format!("{team}{path}"));
        assert_eq!(run("POST", "/runs/a%2Fb/events"), Some("a/b".into()));
        let unknown = Some(String::new());
        assert_eq!((run("POST", "/runs"), run("POST", "/run-events")), (unknown.clone(), unknown));
        assert_eq!((run("GET", "/runs"), run("POST", "/runs/a/claim")), (None, None));
        assert_eq!((run("GET", "/runs/a/events"), run("POST", "/nothing")), (None, None));
    }

    #[test]
    fn a_run_and_an_object_have_so_many_appends_waiting_and_no_more() {
        let mut appends = Appends::default();
        for _ in 0..APPENDS_PER_RUN_MAX {
            appends.enter("a").unwrap();
        }
        assert_eq!(appends.enter("a").unwrap_err().code, Code::Overloaded);
        for _ in APPENDS_PER_RUN_MAX..APPENDS_WAITING_MAX {
            // Those whose run is not known count only for the object.
            appends.enter("").unwrap();
        }
        let error = appends.enter("").unwrap_err();
        assert_eq!((error.code, error.header.unwrap().0), (Code::Overloaded, "Retry-After"));
        appends.leave("a", 7, true);
        appends.enter("a").unwrap();
        appends.leave("a", 3, false);
        let Appends { committed, wait_ms, wait_ms_max, .. } = appends;
        assert_eq!((committed, wait_ms, wait_ms_max), (1, 10, 7));
    }
}
