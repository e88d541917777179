//! The protobuf format of pprof, as far as a CPU profile needs it.
//!
//! Architecture Invariant: pure.

use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use pprof::Frames;
use prost::Message;

#[derive(Clone, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    time_nanos: i64,
    #[prost(int64, tag = "10")]
    duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    period: i64,
}

/// A kind of value. Both fields are indexes of strings.
#[derive(Clone, Copy, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

/// A stack, whose innermost location is the first, and a value of each kind.
#[derive(Clone, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

/// A frame of stacks, with the functions that are inlined there. The innermost is the first.
#[derive(Clone, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

/// A function. The names and the file are indexes of strings.
#[derive(Clone, Copy, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// Distinct values, numbered in the order in which they were added.
struct Table<T>(HashMap<T, usize>);

impl<T: Eq + Hash> Table<T> {
    /// Returns the number of a value, from 0, and adds the value if it is new.
    fn add(&mut self, value: T) -> usize {
        let next = self.0.len();
        *self.0.entry(value).or_insert(next)
    }

    /// Returns the values in order.
    fn into_values(self) -> Vec<T> {
        let mut values: Vec<_> = self.0.into_iter().collect();
        values.sort_by_key(|(_, number)| *number);
        values.into_iter().map(|(value, _)| value).collect()
    }
}

/// Encodes stacks with the number of their samples, and compresses the result.
pub(super) fn encode(
    stacks: &HashMap<Frames, isize>,
    frequency: i32,
    from: Timestamp,
    duration: Duration,
) -> io::Result<Vec<u8>> {
    let profile = profile(stacks, frequency, from, duration);
    let mut file = GzEncoder::new(Vec::new(), Compression::fast());
    file.write_all(&profile.encode_to_vec())?;
    file.finish()
}

fn profile(stacks: &HashMap<Frames, isize>, frequency: i32, from: Timestamp, duration: Duration) -> Profile {
    let period = 1_000_000_000 / i64::from(frequency.max(1));
    let mut strings = Table(HashMap::new());
    // The first string must be empty.
    let mut string = |text: String| signed(strings.add(text));
    string(String::new());
    let mut kind = |kind: &str, unit: &str| ValueType {
        kind: string(kind.to_owned()),
        unit: string(unit.to_owned()),
    };
    let (samples, cpu) = (kind("samples", "count"), kind("cpu", "nanoseconds"));
    let mut functions = Table(HashMap::new());
    let mut locations = Table(HashMap::new());
    let mut sample = Vec::with_capacity(stacks.len());
    for (stack, count) in stacks {
        let count = i64::try_from(*count).unwrap_or_default();
        let frames = stack.frames.iter().map(|frame| {
            let lines = frame.iter().map(|symbol| {
                let function = [
                    string(symbol.name()),
                    string(symbol.sys_name().into_owned()),
                    string(symbol.filename().into_owned()),
                ];
                (id(functions.add(function)), symbol.lineno())
            });
            id(locations.add(lines.collect::<Vec<_>>()))
        });
        sample.push(Sample {
            location_id: frames.collect(),
            value: vec![count, count.saturating_mul(period)],
        });
    }
    let function = functions.into_values().into_iter().enumerate();
    let function = function.map(|(number, [name, system_name, filename])| Function {
        id: id(number),
        name,
        system_name,
        filename,
    });
    let location = locations.into_values().into_iter().enumerate();
    let location = location.map(|(number, lines)| Location {
        id: id(number),
        line: lines
            .into_iter()
            .map(|(function_id, line)| Line {
                function_id,
                line: line.into(),
            })
            .collect(),
    });
    Profile {
        sample_type: vec![samples, cpu],
        sample,
        location: location.collect(),
        function: function.collect(),
        string_table: strings.into_values(),
        time_nanos: i64::try_from(from.as_nanosecond()).unwrap_or_default(),
        duration_nanos: i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX),
        period_type: Some(cpu),
        period,
    }
}

fn signed(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the ID of an item of a table. No ID may be 0.
fn id(number: usize) -> u64 {
    u64::try_from(number).map_or(u64::MAX, |number| number + 1)
}
