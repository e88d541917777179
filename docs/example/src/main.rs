//! A daemon with one custom controller. To run the built-in controllers too, pass a slice that also
//! contains those of `portreeve_cli::CONTROLLERS`.

fn main() -> std::process::ExitCode {
    portreeve_daemon::main(&[copy_controller::DESCRIPTOR])
}
