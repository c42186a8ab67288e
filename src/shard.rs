//! Which object holds a team: the one place that decides it.
use crate::ids::{Id, TeamId};

/// Names the only team object of a server that keeps all teams in one.
const SERVER_OBJECT: &str = "server";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharding {
    /// An object per team.
    #[default]
    Team,
    /// One object for all teams; for small self-hosted servers.
    Server,
}

impl Sharding {
    pub fn parse(text: &str) -> Option<Sharding> {
        match text {
            "team" => Some(Sharding::Team),
            "server" => Some(Sharding::Server),
            _ => None,
        }
    }

    /// The team object that stands for the server; with an object per team none does.
    pub fn server_object(self) -> Option<&'static str> {
        (self == Sharding::Server).then_some(SERVER_OBJECT)
    }

    /// The name of the object that holds `team_id`.
    pub fn object_name(self, team_id: &TeamId) -> &str {
        match self {
            Sharding::Team => team_id.as_str(),
            Sharding::Server => SERVER_OBJECT,
        }
    }
}
