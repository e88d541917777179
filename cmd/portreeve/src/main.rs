//! The portreeve binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    portreeve::main(portreeve::CONTROLLERS)
}
