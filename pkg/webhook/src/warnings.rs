//! Warnings within the limits of the apiserver.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeSet;

/// The longest warning, in characters. The apiserver cuts longer ones if all together are long.
const LONGEST: usize = 256;
/// The most characters of all warnings of one response. The apiserver drops what exceeds it.
const MOST_CHARACTERS: usize = 4_096;

/// Returns each warning once, as one line, until the limits are reached.
pub(crate) fn within_limits(warnings: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut left = MOST_CHARACTERS;
    let mut kept = Vec::new();
    for warning in warnings {
        let line: String = warning.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let line = shortened(line.trim());
        let length = line.chars().count();
        if line.is_empty() || length > left || !seen.insert(line.clone()) {
            continue;
        }
        left -= length;
        kept.push(line);
    }
    kept
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(LONGEST) {
        None => line.to_owned(),
        Some(_) => line.chars().take(LONGEST - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kept(warnings: &[&str]) -> Vec<String> {
        within_limits(&warnings.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn each_warning_is_one_line_and_sent_once() {
        assert_eq!(
            kept(&["a\r\nWarning: 299", "b", "", "\n", "b"]),
            ["a  Warning: 299", "b"]
        );
        let long = kept(&[&"ü".repeat(257)]);
        assert_eq!(long[0].chars().count(), 256);
        assert!(long[0].ends_with('…'));
    }

    proptest! {
        #[test]
        fn limits_hold(warnings in proptest::collection::vec("(?s).{0,400}", 0..64)) {
            let kept = within_limits(&warnings);
            prop_assert!(kept.iter().map(|warning| warning.chars().count()).sum::<usize>() <= MOST_CHARACTERS);
            prop_assert!(kept.iter().all(|warning| warning.chars().count() <= LONGEST));
            prop_assert!(kept.iter().flat_map(|warning| warning.chars()).all(|c| !c.is_control()));
        }
    }
}
