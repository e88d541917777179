//! Checks the properties of the fuzz targets on their corpus and on mutations of it. The mutations
//! are the same in every run.

#[path = "../fuzz/properties.rs"]
mod properties;

use std::{
    fs,
    panic::catch_unwind,
    path::Path,
    time::{Duration, Instant},
};

/// The number of mutations of each corpus.
const MUTATIONS: usize = 10_000;
/// The time limit for one input, which is far above what any input takes.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// The tokens that mutations insert.
const TOKENS: [&str; 28] = [
    "*",
    "?",
    "/",
    "-",
    ",",
    " ",
    "\n",
    "H",
    "H(",
    ")",
    "@",
    "@every ",
    "TZ=",
    "CRON_TZ=",
    "0",
    "59",
    "60",
    "29",
    "31",
    "2",
    "4294967296",
    "9223372036854775807",
    "h",
    "ns",
    ".",
    "JAN",
    "\u{0}",
    "é",
];

/// The `SplitMix64` random number generator. Its sequence is the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end.max(1)).unwrap_or(u64::MAX);
        usize::try_from(self.next() % end).unwrap_or_default()
    }

    /// Changes an input in one place, or replaces its end by the end of `other`.
    fn mutate(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(input.len() + 1);
        let end = (at + 1 + self.below(4)).min(input.len());
        match self.below(7) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => drop(input.splice(at..at, input[at..end].to_vec())),
            3 => drop(input.splice(at..end, TOKENS[self.below(TOKENS.len())].bytes())),
            4 => drop(input.splice(at..at, TOKENS[self.below(TOKENS.len())].bytes())),
            5 => drop(input.splice(at.., other[self.below(other.len())..].iter().copied())),
            _ => input
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|byte| *byte ^= 1 << self.below(8)),
        }
    }
}

/// Returns the contents of a corpus, sorted by file name, without files that a fuzzer has added.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.file_name().is_some_and(|name| name.len() != 40));
    paths.sort();
    paths.into_iter().filter_map(|path| fs::read(path).ok()).collect()
}

fn check(target: &str, property: fn(&[u8])) {
    let corpus = corpus(target);
    assert!(corpus.len() > 24, "the corpus has only {} files", corpus.len());
    let mut random = Random(0);
    let mutations = (0..MUTATIONS).map(|_| {
        let mut input = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(3) {
            let other = &corpus[random.below(corpus.len())];
            random.mutate(&mut input, other);
        }
        input
    });
    for input in corpus.iter().cloned().chain(mutations) {
        let started = Instant::now();
        let held = catch_unwind(|| property(&input)).is_ok();
        assert!(held, "the property fails for {:?}", String::from_utf8_lossy(&input));
        let took = started.elapsed();
        assert!(took < TIME_LIMIT, "{took:?} for {:?}", String::from_utf8_lossy(&input));
    }
}

#[test]
fn parse_properties_hold_on_the_corpus_and_mutations() {
    check("parse", properties::parse);
}

#[test]
fn next_properties_hold_on_the_corpus_and_mutations() {
    check("next", properties::next);
}
