//! Bounds the memory of a decoded body: a value takes up to a thousand times the bytes of its text.
//!
//! Architecture Invariant: pure.

/// The most memory that the values of a review may take, in bytes. Its objects are decoded, and one
/// of them copied. Two objects of the largest size that etcd stores have less, unless they have
/// tens of thousands of small objects in them.
pub(crate) const MOST_IN_REVIEW: usize = 64 << 20;
/// The most memory that the values of a conversion may take, in bytes. Nothing is copied. No object
/// that etcd stores has more, because a conversion that fails would fail every list.
pub(crate) const MOST_IN_CONVERSION: usize = 128 << 20;
/// The memory of an object with one field.
const OBJECT: usize = 700;
/// The memory of a value with a short text.
const VALUE: usize = 64;

/// Returns about how much memory the values of a JSON text take, in bytes, without decoding it.
pub(crate) fn memory(json: &[u8]) -> usize {
    let (mut memory, mut is_text, mut is_escaped) = (0, false, false);
    for byte in json {
        match (is_text, byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (true, b'"') => is_text = false,
            (false, b'"') => is_text = true,
            (false, b'{') => memory += OBJECT,
            (false, b'[' | b',') => memory += VALUE,
            _ => {}
        }
    }
    memory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_of_texts_count() {
        let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
        assert_eq!(memory(list("0", 1000).as_bytes()), 1000 * VALUE);
        assert_eq!(memory("[".repeat(1000).as_bytes()), 1000 * VALUE);
        assert_eq!(memory(list("{}", 1000).as_bytes()), 1000 * (OBJECT + VALUE));
        let text = format!(r#"["{}\"{}"]"#, ",".repeat(1000), "{".repeat(1000));
        assert_eq!(memory(text.as_bytes()), VALUE);
    }

    /// The apiserver accepts such a CronTab, and etcd stores at most 1.5 MiB.
    #[test]
    fn a_conversion_has_room_for_every_object_in_etcd() {
        const STORED: usize = 3 << 19;
        for item in [r#""""#, r#"{"name":"aaaa"}"#] {
            let list = format!("[{}]", vec![item; STORED / (item.len() + 1)].join(","));
            assert!(memory(list.as_bytes()) < MOST_IN_CONVERSION, "{item}");
        }
    }
}
