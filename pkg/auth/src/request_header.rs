//! The user that a front proxy names in request headers.
//!
//! Architecture Invariant: pure.

use std::collections::BTreeMap;

use http::HeaderMap;
use percent_encoding::percent_decode_str;
use portreeve_serving::User;

/// Which headers name the user. All names are compared without case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeaderNames {
    /// The first of these headers with a value is the user's name.
    pub(crate) username: Vec<String>,
    /// The first of these headers with a value is the user's UID.
    pub(crate) uid: Vec<String>,
    /// The values of all these headers are the user's groups.
    pub(crate) group: Vec<String>,
    /// Headers that begin with one of these prefixes are extra fields of the user.
    pub(crate) extra_prefix: Vec<String>,
}

impl HeaderNames {
    /// Returns the user of the headers, or `None` if they name none. The caller must have verified
    /// that a trusted proxy has sent them.
    pub(crate) fn user(&self, headers: &HeaderMap) -> Option<User> {
        let name = first_value(headers, &self.username)?;
        Some(User {
            name,
            uid: first_value(headers, &self.uid).unwrap_or_default(),
            groups: self.group.iter().flat_map(|header| values(headers, header)).collect(),
            extra: self.extra(headers),
        })
    }

    fn extra(&self, headers: &HeaderMap) -> BTreeMap<String, Vec<String>> {
        let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for prefix in self.extra_prefix.iter().map(|prefix| prefix.to_ascii_lowercase()) {
            for header in headers.keys() {
                // Names in a `HeaderMap` are in lower case.
                let Some(key) = header.as_str().strip_prefix(&prefix) else {
                    continue;
                };
                let decoded = percent_decode_str(key).decode_utf8();
                let key = decoded.map_or_else(|_| key.to_owned(), |key| key.to_lowercase());
                extra.entry(key).or_default().extend(values(headers, header.as_str()));
            }
        }
        extra
    }
}

fn first_value(headers: &HeaderMap, names: &[String]) -> Option<String> {
    names.iter().find_map(|name| values(headers, name).next())
}

/// Returns the values of a header that are not empty. Bytes outside of UTF-8 are replaced.
fn values(headers: &HeaderMap, name: &str) -> impl Iterator<Item = String> {
    let values = headers.get_all(name).iter();
    let values = values.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    values.filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_header_is_read(headers: Vec<(usize, String, Vec<u8>)>) {
            let names_of_headers = ["x-remote-user", "x-remote-group", "x-remote-uid", "x-remote-extra-", "x-other-"];
            let mut map = HeaderMap::new();
            for (index, suffix, value) in headers {
                let name = format!("{}{suffix}", names_of_headers[index % names_of_headers.len()]);
                if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(&value)) {
                    map.append(name, value);
                }
            }
            if let Some(user) = names().user(&map) {
                prop_assert!(!user.name.is_empty() && user.groups.iter().all(|group| !group.is_empty()));
            }
        }
    }

    fn names() -> HeaderNames {
        let list = |names: &[&str]| names.iter().copied().map(str::to_owned).collect();
        HeaderNames {
            username: list(&["X-Remote-User", "X-Other-User"]),
            uid: list(&["X-Remote-Uid"]),
            group: list(&["X-Remote-Group", "X-Other-Group"]),
            extra_prefix: list(&["X-Remote-Extra-"]),
        }
    }

    fn user(headers: &[(&'static str, &'static str)]) -> Option<User> {
        let headers = headers.iter().map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_static(value))
        });
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value);
        }
        names().user(&map)
    }

    #[test]
    fn the_first_header_with_a_value_names_the_user() {
        let alice = user(&[("x-remote-user", ""), ("x-other-user", "alice")]).unwrap();
        assert_eq!(alice.name, "alice");
        assert_eq!(alice.groups, Vec::<String>::new());
        let bob = user(&[("x-other-user", "alice"), ("x-remote-user", "bob")]).unwrap();
        assert_eq!(bob.name, "bob");
    }

    #[test]
    fn without_a_name_there_is_no_user() {
        assert_eq!(user(&[("x-remote-group", "system:masters")]), None);
        assert_eq!(user(&[("x-remote-user", "")]), None);
    }

    #[test]
    fn groups_and_extra_fields_are_collected() {
        let user = user(&[
            ("x-remote-user", "alice"),
            ("x-remote-uid", "42"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-other-group", "c"),
            ("x-remote-extra-scopes", "read"),
            ("x-remote-extra-scopes", "write"),
            ("x-remote-extra-example.com%2fid", "7"),
            ("x-remote-extra-bad%zz", "8"),
        ]);
        let user = user.unwrap();
        assert_eq!((user.uid.as_str(), user.groups.join(",").as_str()), ("42", "a,b,c"));
        let extra: Vec<_> = user
            .extra
            .into_iter()
            .map(|(key, values)| (key, values.join(",")))
            .collect();
        let expected = [("bad%zz", "8"), ("example.com/id", "7"), ("scopes", "read,write")];
        assert_eq!(extra, expected.map(|(key, values)| (key.to_owned(), values.to_owned())));
    }
}
