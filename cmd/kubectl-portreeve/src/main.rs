//! The kubectl plugin.

use std::{io::Write, process::ExitCode};

use kubectl_portreeve::CommandLine;
use portreeve_client::error_chain;

fn main() -> ExitCode {
    let options = match CommandLine::parse_from(std::env::args_os()) {
        Ok(options) => options,
        Err(usage) => {
            usage.print().ok();
            return ExitCode::from(u8::from(usage.use_stderr()));
        }
    };
    match options.run(portreeve_cli::CONTROLLERS) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            writeln!(std::io::stderr(), "error: {}", error_chain(&error)).ok();
            ExitCode::FAILURE
        }
    }
}
