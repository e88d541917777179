//! A daemon with one controller of its own; add `portreeve::CONTROLLERS` to have the others too.

fn main() -> std::process::ExitCode {
    portreeve::main(&[portreeve_example::DESCRIPTOR])
}
