//! Bounds the memory of a decoded body: a value takes up to a thousand times the bytes of its text.
//!
//! Architecture Invariant: pure.

/// The most values of a body. Decoded, with its copy and the patch, that takes at most about
/// 150 MiB. An object has a few thousand at most.
pub(crate) const MOST_VALUES: usize = 100_000;

/// Returns whether a JSON text has too many values, without decoding it.
pub(crate) fn is_too_complex(json: &[u8]) -> bool {
    let (mut values, mut is_text, mut is_escaped) = (0_usize, false, false);
    for byte in json {
        match (is_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (true, b'"') => is_text = false,
            (false, b'"') => is_text = true,
            (false, b'{' | b'[' | b',') => values += 1,
            _ => {}
        }
    }
    values > MOST_VALUES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_of_texts_count() {
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        assert!(!is_too_complex(list("0", MOST_VALUES).as_bytes()));
        assert!(is_too_complex(list("0", MOST_VALUES + 1).as_bytes()));
        assert!(is_too_complex("[".repeat(MOST_VALUES + 1).as_bytes()));
        assert!(is_too_complex(list("{}", MOST_VALUES / 2 + 2).as_bytes()));
        let text = format!(r#"["{}\"{}"]"#, ",".repeat(MOST_VALUES), "{".repeat(MOST_VALUES));
        assert!(!is_too_complex(text.as_bytes()));
    }
}
