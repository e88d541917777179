//! UIDs in 128 bits. A UID is an opaque string. A UUID in the form that Kubernetes writes is
//! packed; any other string gets a number.

use std::{collections::HashMap, sync::Arc};

/// The UID of an object, valid within one graph. It takes 16 bytes, whatever its text.
///
/// Not a library: `uuid` holds no other strings and forgets how a UUID was spelled, and a `SmolStr`
/// of `smol_str` takes 24 bytes and allocates for the 36 characters of a UUID.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Uid([u64; 2]);

/// The upper half of every UID that is not a packed UUID.
const ODD: u64 = u64::MAX;

/// The value of each byte as a hexadecimal digit; 16 marks any other byte.
const DIGITS: [u8; 256] = {
    let mut digits = [16; 256];
    let mut digit = 0;
    while digit < 16 {
        digits[b"0123456789abcdef"[digit as usize] as usize] = digit;
        digit += 1;
    }
    digits
};

impl Uid {
    /// Packs a lower-case UUID with its four hyphens. Returns `None` for any other text, and for a
    /// UUID whose upper half equals `ODD`.
    fn packed(text: &str) -> Option<Self> {
        let bytes: &[u8; 36] = text.as_bytes().try_into().ok()?;
        if bytes[8] != b'-' || bytes[13] != b'-' || bytes[18] != b'-' || bytes[23] != b'-' {
            return None;
        }
        let mut wrong = 0;
        let mut digits = |places: std::ops::Range<usize>| {
            bytes[places].iter().fold(0, |number, byte| {
                let digit = DIGITS[usize::from(*byte)];
                wrong |= digit;
                number << 4 | u64::from(digit & 15)
            })
        };
        let high = digits(0..8) << 32 | digits(9..13) << 16 | digits(14..18);
        let low = digits(19..23) << 48 | digits(24..36);
        (wrong < 16 && high != ODD).then_some(Self([high, low]))
    }

    fn unpacked(self) -> String {
        let [high, low] = self.0;
        let (time, middle, version) = (high >> 32, high >> 16 & 0xffff, high & 0xffff);
        format!(
            "{time:08x}-{middle:04x}-{version:04x}-{:04x}-{:012x}",
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }
}

/// The UIDs that are not packed UUIDs, by number. A number is never reused.
#[derive(Debug, Default)]
pub(crate) struct Uids {
    next: u64,
    numbers: HashMap<Arc<str>, u64>,
    texts: HashMap<u64, Arc<str>>,
}

impl Uids {
    /// Returns the UID of this text, and stores the text until [`Uids::forget`].
    pub(crate) fn intern(&mut self, text: &str) -> Uid {
        if let Some(known) = self.find(text) {
            return known;
        }
        let number = self.next;
        self.next += 1;
        let text: Arc<str> = text.into();
        self.numbers.insert(Arc::clone(&text), number);
        self.texts.insert(number, text);
        Uid([ODD, number])
    }

    /// Returns the UID of this text, or `None` if it is neither a packed UUID nor stored.
    pub(crate) fn find(&self, text: &str) -> Option<Uid> {
        Uid::packed(text).or_else(|| self.numbers.get(text).map(|number| Uid([ODD, *number])))
    }

    /// Drops the stored text of a UID that no node has any more.
    pub(crate) fn forget(&mut self, uid: Uid) {
        if uid.0[0] == ODD
            && let Some(text) = self.texts.remove(&uid.0[1])
        {
            self.numbers.remove(&text);
        }
    }

    /// Returns the text of a UID.
    pub(crate) fn text(&self, uid: Uid) -> String {
        if uid.0[0] == ODD {
            return self
                .texts
                .get(&uid.0[1])
                .map_or_else(String::new, |text| text.as_ref().to_owned());
        }
        uid.unpacked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uids_of_every_form_keep_their_text() {
        let mut uids = Uids::default();
        for text in [
            "",
            "a",
            "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
            "6BA7B810-9DAD-11D1-80B4-00C04FD430C8",
            "6ba7b8109dad11d180b400c04fd430c8",
            "6ba7b810-9dad-11d1-80b4-00c04fd430c80",
            "6ba7b810-9dad-11d1-80b40-0c04fd430c8",
            "ffffffff-ffff-ffff-0000-000000000000",
        ] {
            let uid = uids.intern(text);
            assert_eq!(uids.text(uid), text);
            assert_eq!(uids.intern(text), uid, "{text}");
        }
        assert_eq!(uids.texts.len(), 7);
    }

    #[test]
    fn number_of_a_forgotten_uid_is_not_reused() {
        let mut uids = Uids::default();
        let first = uids.intern("one");
        uids.forget(first);
        assert_eq!(uids.find("one"), None);
        assert_eq!(uids.text(first), "");
        assert_ne!(uids.intern("two"), first);
    }

    proptest::proptest! {
        #[test]
        fn packing_is_lossless(high: u64, low: u64) {
            let text = Uid([high, low]).unpacked();
            let mut uids = Uids::default();
            let uid = uids.intern(&text);
            proptest::prop_assert_eq!(uids.text(uid), text);
        }
    }
}
