//! UIDs in 128 bits. They are opaque strings: those that are UUIDs as Kubernetes writes them are packed, others get a number.

use std::{collections::HashMap, sync::Arc};

/// The UID of an object, within one graph.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Uid([u64; 2]);

/// The upper half of what is no packed UUID.
const ODD: u64 = u64::MAX;

/// What each byte is as a digit; 16 and more is none.
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
    /// A UUID in lower case with its four hyphens, whose upper half is not the mark of the others.
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

/// The UIDs that are no packed UUIDs, by number. Numbers are never used twice.
#[derive(Debug, Default)]
pub(crate) struct Uids {
    next: u64,
    numbers: HashMap<Arc<str>, u64>,
    texts: HashMap<u64, Arc<str>>,
}

impl Uids {
    /// The UID of this text; it is remembered until [`Uids::forget`].
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

    /// The UID of this text, unless nothing has it.
    pub(crate) fn find(&self, text: &str) -> Option<Uid> {
        Uid::packed(text).or_else(|| self.numbers.get(text).map(|number| Uid([ODD, *number])))
    }

    /// Nothing has this UID any more.
    pub(crate) fn forget(&mut self, uid: Uid) {
        if uid.0[0] == ODD
            && let Some(text) = self.texts.remove(&uid.0[1])
        {
            self.numbers.remove(&text);
        }
    }

    /// What it is written as.
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
    fn what_is_no_uuid_as_kubernetes_writes_it_keeps_its_text() {
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
    fn a_uid_that_is_forgotten_never_means_another() {
        let mut uids = Uids::default();
        let first = uids.intern("one");
        uids.forget(first);
        assert_eq!(uids.find("one"), None);
        assert_eq!(uids.text(first), "");
        assert_ne!(uids.intern("two"), first);
    }

    proptest::proptest! {
        #[test]
        fn packing_loses_nothing(high: u64, low: u64) {
            let text = Uid([high, low]).unpacked();
            let mut uids = Uids::default();
            let uid = uids.intern(&text);
            proptest::prop_assert_eq!(uids.text(uid), text);
        }
    }
}
