//! Passes the compiler's version to the build, for the metric `portreeve_build_info`. Cargo runs
//! this again only after the compiler has changed.

use std::{env, process::Command};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let compiler = env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(compiler).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let version = text.unwrap_or_default();
    // The text is `rustc 1.95.0 (commit date)`.
    let version = version.split(' ').nth(1).unwrap_or("unknown");
    println!("cargo::rustc-env=PORTREEVE_RUSTC_VERSION={version}");
}
