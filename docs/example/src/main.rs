//! A daemon with one custom controller. To run the built-in controllers too, pass
//! `[portreeve_cli::CONTROLLERS, &[DESCRIPTOR]].concat().leak()`.
//!
//! A binary in a repository of its own depends on the same crates by path, chooses the version of
//! the API with the feature of `k8s-openapi` in its Cargo.toml, and needs the flags of
//! `.cargo/config.toml` for CPU profiles.

fn main() -> std::process::ExitCode {
    portreeve_daemon::main(&[copy_controller::DESCRIPTOR])
}
