//! One file per group of commands.
pub mod account;
pub mod import;
pub mod service;
pub mod sessions;
pub mod status;

use clap::CommandFactory;

pub fn completions(shell: clap_complete::Shell) {
    let mut command = crate::cli::Cli::command();
    clap_complete::generate(shell, &mut command, "teamplane", &mut std::io::stdout());
}
