//! A daemon with one custom controller. To run the built-in controllers too, pass a slice that also
//! contains those of `portreeve::CONTROLLERS`.

fn main() -> std::process::ExitCode {
    portreeve::main(&[copy_controller::DESCRIPTOR])
}
