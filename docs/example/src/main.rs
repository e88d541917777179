//! A daemon with one custom controller. Append `portreeve::CONTROLLERS` to run the built-in ones,
//! too.

fn main() -> std::process::ExitCode {
    portreeve::main(&[portreeve_example::DESCRIPTOR])
}
