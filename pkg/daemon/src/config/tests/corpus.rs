//! Tests real config files and mutations of them: nothing panics, each mistake has a line number
//! within the file, and the flags' parsers accept every value of a valid file.

use clap::error::ErrorKind;
use portreeve_testing::Corpus;

use super::*;

/// The number of mutations. Each value goes through its flag's own parser.
const MUTATIONS: usize = 1_500;

fn check_input(input: &[u8], command: &Command) {
    match rules::settings(input, command, Path::new(FOLDER)) {
        Ok(given) => {
            let command = given.iter().fold(command.clone(), rules::with_default);
            if let Err(error) = command.try_get_matches_from(["portreeve"]) {
                let is_value_error = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
                assert!(!is_value_error, "{error}");
            }
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            let last = 1 + input.split(|byte| matches!(byte, b'\n' | b'\r')).count() as u64;
            for problem in &problems {
                assert!((1..=last).contains(&problem.line), "{problem:?} of {last} lines");
                assert!(!problem.text.is_empty());
            }
        }
    }
}

#[test]
fn every_file_is_accepted_completely_or_its_mistakes_are_reported() -> anyhow::Result<()> {
    let command = command(CONTROLLERS);
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/config"))?;
    corpus.check(MUTATIONS, |input| check_input(input, &command))
}
