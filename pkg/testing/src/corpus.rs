//! Recorded inputs from files, and mutations of them that are the same in every run.
//!
//! [`Corpus::check`] is a fuzzer without coverage feedback, so its quality depends on the corpus.
//! Add every input that has ever caused a failure.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The time limit per input, far above the normal time.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Prefixes of an input are tried up to this length in bytes.
const MAX_PREFIX: usize = 2_048;
/// The number of bytes of a failing input that the error shows.
const MAX_SHOWN: usize = 2_000;
/// Levels of nesting: two near the recursion limit of JSON parsers, and one deeper than any stack
/// allows.
const DEPTHS: [usize; 3] = [120, 130, 50_000];
/// A placeholder for bytes that a JSON tree cannot hold.
const PLACEHOLDER: &str = "@hole@";
/// Replacements for JSON values.
const ODD_VALUES: [&str; 30] = [
    "null",
    "true",
    "false",
    "0",
    "-1",
    "0.5",
    "1e999",
    "1E400",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "340282366920938463463374607431768211456",
    "\"\"",
    "\"a\"",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\u{feff}\"",
    "\"../../x\"",
    "[]",
    "[null]",
    "{}",
    "{\"\":{}}",
    "\"2026-02-30T00:00:00Z\"",
    "\"9999-12-31T23:59:59Z\"",
    "\"-009999-01-02T01:59:59Z\"",
    "\"2016-12-31T23:59:60Z\"",
    "\"9223372036854775807\"",
    "\"99999999999999999999999999999999\"",
];
/// Tokens that are inserted between bytes.
const TOKENS: [&[u8]; 16] = [
    b"\n",
    b"\r\n",
    b"\0",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"%",
    b"&",
];

/// A `SplitMix64` generator, which gives the same numbers everywhere.
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

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }
}

/// Recorded inputs, sorted by file name.
pub struct Corpus {
    inputs: Vec<(String, Vec<u8>)>,
}

impl Corpus {
    /// Reads all files of a folder.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be read, or if the folder is empty.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self> {
        let folder = folder.as_ref();
        let entries = fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?;
        let input = |entry: std::io::Result<fs::DirEntry>| {
            let path = entry?.path();
            let bytes = fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            Ok((name.into_owned(), bytes))
        };
        let mut inputs = entries.map(input).collect::<Result<Vec<_>>>()?;
        ensure!(!inputs.is_empty(), "{} holds no inputs", folder.display());
        inputs.sort();
        Ok(Self { inputs })
    }

    /// Runs `property` on every input and its mutations. The property panics when it does not hold.
    ///
    /// The mutations are the prefixes of each input up to 2 KiB, each input with one JSON value
    /// removed or replaced, and `mutations` random ones.
    ///
    /// # Errors
    ///
    /// Returns an error with the first input on which `property` panics or takes 10 s or longer. A
    /// property that never returns hangs the test.
    pub fn check(&self, mutations: usize, property: impl Fn(&[u8])) -> Result<()> {
        for (name, input) in &self.inputs {
            check_input(name, input, &property)?;
            for end in 0..input.len().min(MAX_PREFIX) {
                check_input(name, &input[..end], &property)?;
            }
            for changed in single_changes(input) {
                check_input(name, &changed, &property)?;
            }
        }
        let mut random = Random(0);
        for number in 0..mutations {
            let (name, input) = &self.inputs[random.below(self.inputs.len())];
            let mut input = input.clone();
            for _ in 0..=random.below(3) {
                let (_, other) = &self.inputs[random.below(self.inputs.len())];
                mutate(&mut random, &mut input, other);
            }
            check_input(&format!("mutation {number}, of {name}"), &input, &property)?;
        }
        Ok(())
    }
}

fn check_input(name: &str, input: &[u8], property: &impl Fn(&[u8])) -> Result<()> {
    let started = Instant::now();
    let holds = catch_unwind(AssertUnwindSafe(|| property(input))).is_ok();
    let text = || {
        let shown = &input[..input.len().min(MAX_SHOWN)];
        format!("{name}, {} bytes: {}", input.len(), String::from_utf8_lossy(shown))
    };
    ensure!(holds, "the property does not hold for {}", text());
    let took = started.elapsed();
    ensure!(took < TIME_LIMIT, "the property took {took:?} for {}", text());
    Ok(())
}

/// Returns the input with one JSON value in one line removed or replaced by each odd value. The
/// other lines stay unchanged.
fn single_changes(input: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    (0..lines.len()).flat_map(move |index| {
        let tree: Option<Value> = serde_json::from_slice(lines[index]).ok();
        let lines = lines.clone();
        let pointers = tree.as_ref().map(pointers).unwrap_or_default();
        pointers.into_iter().flat_map(move |pointer| {
            let (tree, lines) = (tree.clone().unwrap_or_default(), lines.clone());
            [None].into_iter().chain(ODD_VALUES.map(Some)).map(move |odd| {
                let mut changed = tree.clone();
                if odd.is_none() {
                    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
                    remove_at(&mut changed, parent, key);
                } else if let Some(value) = changed.pointer_mut(&pointer) {
                    *value = PLACEHOLDER.into();
                }
                with_line(&lines, index, &changed, odd.unwrap_or_default())
            })
        })
    })
}

/// Joins the lines, with one of them replaced by `tree`, whose placeholder becomes `replacement`.
fn with_line(lines: &[&[u8]], index: usize, tree: &Value, replacement: &str) -> Vec<u8> {
    let line = tree.to_string().replace(&format!("\"{PLACEHOLDER}\""), replacement);
    let mut lines = lines.to_vec();
    lines[index] = line.as_bytes();
    lines.join(&b'\n')
}

/// Changes an input in one index, as text or as JSON, or joins it with another input.
fn mutate(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) {
    if random.below(2) == 0 && mutate_json(random, input, other).is_some() {
        return;
    }
    let at = random.below(input.len() + 1);
    let end = (at + 1 + random.below(8)).min(input.len());
    match random.below(7) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..end)),
        2 => drop(input.splice(at..at, input[at..end].to_vec())),
        3 => drop(input.splice(at..end, random.one_of(&TOKENS).iter().copied())),
        4 => drop(input.splice(at..at, random.one_of(&TOKENS).iter().copied())),
        5 => drop(input.splice(at.., other[random.below(other.len())..].iter().copied())),
        _ => input
            .iter_mut()
            .skip(at)
            .take(1)
            .for_each(|byte| *byte ^= 1 << random.below(8)),
    }
}

/// Changes one value in one line of JSON. Returns `None` if the line is not JSON.
fn mutate_json(random: &mut Random, input: &mut Vec<u8>, other: &[u8]) -> Option<()> {
    let lines: Vec<&[u8]> = input.split(|byte| *byte == b'\n').collect();
    let index = random.below(lines.len());
    let mut tree: Value = serde_json::from_slice(lines.get(index)?).ok()?;
    let pointers = pointers(&tree);
    let pointer = pointers.get(random.below(pointers.len()))?;
    let (parent, key) = pointer.rsplit_once('/').unwrap_or_default();
    let old = tree.pointer(pointer)?.clone();
    let mut replacement = String::new();
    match random.below(6) {
        0 => remove_at(&mut tree, parent, key),
        1 => {
            remove_at(&mut tree, parent, key);
            if let Some(fields) = tree.pointer_mut(parent).and_then(Value::as_object_mut) {
                fields.insert(decode_key(key) + "x", old);
            }
        }
        2 => {
            let donor: Value = serde_json::from_slice(other).ok()?;
            let pointers = self::pointers(&donor);
            let value = donor.pointer(pointers.get(random.below(pointers.len()))?)?;
            *tree.pointer_mut(pointer)? = value.clone();
        }
        choice => {
            replacement = odd_value(random);
            if choice == 3 && tree.pointer(parent).is_some_and(Value::is_object) {
                // A duplicate key.
                replacement = format!("{old},{}:{replacement}", Value::from(decode_key(key)));
            }
            *tree.pointer_mut(pointer)? = PLACEHOLDER.into();
        }
    }
    let changed = with_line(&lines, index, &tree, &replacement);
    *input = changed;
    Some(())
}

fn remove_at(tree: &mut Value, parent: &str, key: &str) {
    match tree.pointer_mut(parent) {
        Some(Value::Object(fields)) => drop(fields.remove(&decode_key(key))),
        Some(Value::Array(elements)) => {
            if let Some(index) = key.parse().ok().filter(|index| *index < elements.len()) {
                elements.remove(index);
            }
        }
        _ => {}
    }
}

/// Decodes a key of a JSON pointer.
fn decode_key(key: &str) -> String {
    key.replace("~1", "/").replace("~0", "~")
}

/// Returns unusual JSON, rarely a deeply nested value because those are long.
fn odd_value(random: &mut Random) -> String {
    if random.below(20) > 0 {
        return random.one_of(&ODD_VALUES).to_owned();
    }
    let depth = random.one_of(&DEPTHS);
    if random.below(2) == 0 {
        "[".repeat(depth) + &"]".repeat(depth)
    } else {
        "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth)
    }
}

/// Returns the JSON pointers of all values of a tree, its root first.
fn pointers(tree: &Value) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut next = 0;
    while let Some(pointer) = found.get(next).cloned() {
        next += 1;
        let escaped = |key: &String| key.replace('~', "~0").replace('/', "~1");
        match tree.pointer(&pointer) {
            Some(Value::Object(fields)) => {
                found.extend(fields.keys().map(|key| format!("{pointer}/{}", escaped(key))));
            }
            Some(Value::Array(elements)) => found.extend((0..elements.len()).map(|index| format!("{pointer}/{index}"))),
            _ => {}
        }
    }
    found
}
