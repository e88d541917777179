//! Fuzzes the parser of expressions.
#![no_main]

#[path = "../properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::parse(input));
