//! The kubectl plugin.

use std::{io::Write, process::ExitCode};

use clap::Parser;
use kubectl_portreeve::CommandLine;
use portreeve_client::error_chain;

fn main() -> ExitCode {
    let command_line = match CommandLine::try_parse() {
        Ok(command_line) => command_line,
        Err(usage) => {
            usage.print().ok();
            return ExitCode::from(u8::from(usage.use_stderr()));
        }
    };
    match command_line.run(portreeve_cli::CONTROLLERS) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(std::io::stderr(), "error: {}", error_chain(&error)).ok();
            ExitCode::FAILURE
        }
    }
}
