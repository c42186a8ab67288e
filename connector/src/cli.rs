//! The command line.
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

const EXAMPLES: &str = "\
One minute:
  teamplane login --server https://teamplane.example.com   # asks for your token
  teamplane enroll                                         # this computer joins the team
  teamplane run                                            # publishes sessions as they grow

Exit codes:
  0 done   1 failed   2 wrong use   3 not logged in or enrolled
  4 token revoked or expired   5 server not reachable   6 already running";

/// Publishes this machine's coding agent sessions (Claude Code, Codex, Gemini CLI) to your team.
#[derive(Debug, Parser)]
#[command(name = "teamplane", version, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// Keep configuration and state in this folder instead of the system's places
    #[arg(long, env = "TEAMPLANE_HOME", global = true, value_name = "FOLDER")]
    pub home: Option<PathBuf>,
    /// Answer in JSON, one value a line
    #[arg(long, global = true)]
    pub json: bool,
    /// Say more (twice: even more)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Log in with a user token, which is read from standard input or asked for
    #[command(
        after_help = "Example:\n  teamplane login --server https://teamplane.example.com < token.txt"
    )]
    Login {
        /// The server's address
        #[arg(long, env = "TEAMPLANE_SERVER", value_name = "URL")]
        server: String,
    },
    /// Make this computer a machine of the team
    #[command(after_help = "Example:\n  teamplane enroll --name ada-laptop --visibility team")]
    Enroll {
        /// The machine's name in the team [default: this computer's]
        #[arg(long)]
        name: Option<String>,
        /// Who sees its sessions: only you and whom you grant it, or all members
        #[arg(long)]
        visibility: Option<Visibility>,
    },
    /// Publish sessions as they grow, until it is stopped
    Run,
    /// Start the connector at login: writes a systemd user unit or a launchd agent
    InstallService {
        /// Print it instead of writing it
        #[arg(long)]
        print: bool,
    },
    /// Say what is published, and how the machine stands
    Status,
    /// Publish transcripts once: files, folders, or the agents' usual folders
    #[command(
        after_help = "Examples:\n  teamplane import\n  teamplane import ~/.claude/projects/-home-ada-shop\n  teamplane import --harness codex old/rollout-*.jsonl"
    )]
    Import {
        paths: Vec<PathBuf>,
        /// Whose transcripts they are, where names do not say it
        #[arg(long, value_parser = ["claude-code", "codex", "gemini"])]
        harness: Option<String>,
        /// Publish again what was deleted on the server
        #[arg(long)]
        restore: bool,
    },
    /// Look at the team's sessions
    #[command(subcommand)]
    Sessions(Sessions),
    /// Forget the login and the enrolment, and end the machine's token
    Logout {
        /// Leave the machine enrolled; only the login is forgotten
        #[arg(long)]
        keep_machine: bool,
    },
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  teamplane completions bash > ~/.local/share/bash-completion/completions/teamplane"
    )]
    Completions { shell: clap_complete::Shell },
    /// Print a configuration file with everything that can be set
    Config,
}

#[derive(Debug, Subcommand)]
pub enum Sessions {
    /// The newest sessions
    List {
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        filters: Filters,
    },
    /// Sessions with these words in them
    Search {
        #[arg(required = true)]
        words: Vec<String>,
        #[arg(long, default_value_t = 20)]
        limit: usize,
        #[command(flatten)]
        filters: Filters,
    },
    /// A session's messages
    #[command(after_help = "Example:\n  teamplane sessions show session_0123… --last 20")]
    Show {
        session: String,
        /// Only so many of the last messages
        #[arg(long)]
        last: Option<i64>,
    },
    /// All of a session's messages as JSON lines
    Export {
        session: String,
        /// Into this file
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct Filters {
    /// Only of this agent
    #[arg(long)]
    pub harness: Option<String>,
    /// Only of this machine
    #[arg(long)]
    pub machine: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Visibility {
    Team,
    Restricted,
}
