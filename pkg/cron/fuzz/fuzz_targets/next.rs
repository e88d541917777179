//! Fuzzes the search for runs, from any time and in any zone.
#![no_main]

#[path = "../properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::next(input));
