//! What goes on between an object's sockets while it is awake, and is kept nowhere: who follows
//! what, and what a request has to tell a socket that no event says.
use crate::domain::follow::State;
use crate::ids::{MachineId, SessionId, TeamId};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub struct Live {
    /// The sessions that somebody follows.
    pub followed: BTreeMap<SessionId, Followed>,
    news: Vec<News>,
}

#[derive(Debug)]
pub struct Followed {
    pub team_id: TeamId,
    /// By how many.
    pub count: usize,
    /// What they were told of it; nothing where nobody has looked yet.
    pub state: Option<State>,
}

/// Told once the request that made it has done its work. Told for nothing, it does no harm.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// A machine works by other rules now.
    Configured(MachineId),
    /// Some machine's agents do something else.
    Active,
    /// An agent says something in a session.
    Said(SessionId, String),
}

impl Live {
    pub fn tell(&mut self, news: News) {
        if news != News::Active || !self.followed.is_empty() {
            self.news.push(news);
        }
    }

    pub fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// One more follows the session. Answers whether it is the first.
    pub fn follow(&mut self, team_id: &TeamId, session_id: &SessionId) -> bool {
        let first = || Followed { team_id: team_id.clone(), count: 0, state: None };
        let followed = self.followed.entry(session_id.clone()).or_insert_with(first);
        followed.count += 1;
        followed.count == 1
    }

    /// One less does. Answers whether it was the last.
    pub fn leave(&mut self, session_id: &SessionId) -> bool {
        let Some(followed) = self.followed.get_mut(session_id) else { return false };
        followed.count -= 1;
        let was_last = followed.count == 0;
        if was_last {
            self.followed.remove(session_id);
        }
        was_last
    }
}
