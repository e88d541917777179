//! The portreeve binary.

use std::process::ExitCode;

use dlmalloc::GlobalDlmalloc;

/// With the static binary's own libc, all that it does takes a tenth more CPU time.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    portreeve::main(portreeve::CONTROLLERS)
}
