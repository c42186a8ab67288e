//! The connector: publishes this machine's coding agent sessions to a teamplane server.
//!
//! Reading order: `daemon` (what runs all day), `sync` (one transcript), `scan`, `transcripts` and
//! `outline` (files to messages), `capture` and `bundle` (messages and files to the plane), `link`.
//! What decides anything is pure and tested here; against the real plane in `tests/connector`.
// A text here and there is built of pieces; nothing of it is hot.
#![allow(clippy::format_push_string, clippy::format_collect)]
// Seconds read best where all others are seconds too.
#![allow(clippy::duration_suboptimal_units)]

mod account;
mod bundle;
mod capture;
mod cli;
mod client;
mod commands;
mod config;
mod daemon;
mod discover;
mod effects;
mod error;
mod files;
mod json;
mod limits;
mod lines;
mod link;
mod outline;
mod output;
mod presence;
mod redact;
mod rules;
mod scan;
mod state;
mod sync;
mod transcripts;
mod watch;

use clap::Parser;
use cli::{Cli, Command};
use error::{Error, Result};
use files::Paths;
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output { json: cli.json };
    log(cli.verbose);
    match run(cli, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if output.json {
                let value = serde_json::json!({ "error": {
                    "kind": error.name(), "code": error.code(), "message": error.to_string(),
                }});
                output.value(&value);
            } else {
                eprintln!("teamplane: {error}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(cli: Cli, output: Output) -> Result<()> {
    rustls::crypto::ring::default_provider().install_default().ok();
    let paths = Paths::new(cli.home.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("the runtime", error))?;
    runtime.block_on(async {
        match cli.command {
            Command::Login { server } => commands::account::login(&paths, output, &server).await,
            Command::Enroll { name, visibility } => {
                commands::account::enroll(&paths, output, name, visibility).await
            }
            Command::Import { paths: files, harness, restore } => {
                commands::import::import(&paths, output, &files, harness.as_deref(), restore).await
            }
            Command::Sessions(what) => commands::sessions::run(&paths, output, what).await,
            Command::Logout { keep_machine } => {
                commands::account::logout(&paths, output, keep_machine).await
            }
            Command::Status => commands::status::status(&paths, output).await,
            Command::Completions { shell } => {
                commands::completions(shell);
                Ok(())
            }
            Command::Config => {
                output.line(config::EXAMPLE.trim_end());
                Ok(())
            }
            Command::Run => daemon::run(paths).await,
            Command::InstallService { print } => {
                commands::service::install(&paths, cli.home.as_deref(), output, print)
            }
        }
    })
}

/// To standard error, so that standard output is what was asked for. `RUST_LOG` says it in detail.
fn log(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = ["info", "teamplane=debug,info", "trace"][usize::from(verbose.min(2))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}
