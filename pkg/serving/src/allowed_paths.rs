//! The paths that need no authorization: `--authorization-always-allow-paths`.
//!
//! The flag takes exact paths and prefixes (with a trailing `*`). They are matched as in
//! Kubernetes, except that a path which is not in its plain form is never allowed. With `%`, `//`,
//! `.` or `..` in a path, two parsers may disagree about its meaning.
//!
//! Architecture Invariant: pure. An ambiguous path is not allowed.

use std::str::FromStr;

/// The paths that are served without authorization.
///
/// ```
/// let open: portreeve_serving::AllowedPaths = "/livez,/debug/*".parse()?;
/// assert!(open.allow("/livez") && open.allow("/debug/graph") && !open.allow("/metrics"));
/// # Ok::<(), portreeve_serving::InvalidPath>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedPaths(Vec<Pattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    Exact(String),
    Prefix(String),
}

/// An invalid item of `--authorization-always-allow-paths`, which could never match or would match
/// unexpectedly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// The path is not absolute, but request paths are.
    #[error("the path {path:?} must start with /, as in /metrics")]
    NotAbsolute {
        /// The path as given.
        path: String,
    },
    /// The path contains a `*` before its end, but globs are not supported.
    #[error("the path {path:?} has a * before its end: only a trailing * is supported, as in /debug/*")]
    InnerStar {
        /// The path as given.
        path: String,
    },
    /// A request for this path would be rejected.
    #[error("the path {path:?} can never be allowed: write it without %, //, \\, . and .. segments, ? and #")]
    NotPlain {
        /// The path as given.
        path: String,
    },
}

impl AllowedPaths {
    /// Returns whether this request path (without its query) needs no authorization.
    pub fn allow(&self, path: &str) -> bool {
        is_plain(path)
            && self.0.iter().any(|pattern| match pattern {
                Pattern::Exact(exact) => path == exact,
                Pattern::Prefix(prefix) => path.starts_with(prefix),
            })
    }
}

/// Returns whether the path is unambiguous. A `*` is allowed, because it has no meaning in a
/// request.
pub(crate) fn is_plain(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else {
        return false;
    };
    let ambiguous = |c: char| matches!(c, '%' | '\\' | '?' | '#') || c.is_control() || c.is_whitespace();
    // The last segment is empty when the path has a trailing slash.
    let (parents, last) = rest
        .rsplit_once('/')
        .map_or((None, rest), |(parents, last)| (Some(parents), last));
    !path.contains(ambiguous)
        && parents.is_none_or(|parents| parents.split('/').all(|segment| !matches!(segment, "" | "." | "..")))
        && !matches!(last, "." | "..")
}

impl FromStr for AllowedPaths {
    type Err = InvalidPath;

    /// Parses a comma-separated list. Empty entries are skipped, so `""` is the empty list.
    fn from_str(list: &str) -> Result<Self, InvalidPath> {
        let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Pattern {
    type Err = InvalidPath;

    fn from_str(path: &str) -> Result<Self, InvalidPath> {
        let prefix = path.strip_suffix('*');
        let text = prefix.unwrap_or(path);
        let path = path.to_owned();
        if !text.starts_with('/') {
            return Err(InvalidPath::NotAbsolute { path });
        }
        if text.contains('*') {
            return Err(InvalidPath::InnerStar { path });
        }
        if !is_plain(text) {
            return Err(InvalidPath::NotPlain { path });
        }
        let text = text.to_owned();
        Ok(if prefix.is_some() {
            Self::Prefix(text)
        } else {
            Self::Exact(text)
        })
    }
}

impl FromIterator<Self> for AllowedPaths {
    fn from_iter<I: IntoIterator<Item = Self>>(lists: I) -> Self {
        Self(lists.into_iter().flat_map(|list| list.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A path that a parser could shorten to another one, or decode, is not allowed.
        #[test]
        fn an_allowed_path_has_only_one_meaning(
            parts in prop::collection::vec("[/.%?#*a-b\\\\]{0,3}|debug|\\.\\./|\\PC", 0..8),
        ) {
            let allowed: AllowedPaths = "/debug/*,/livez".parse().unwrap();
            let path = parts.concat();
            for path in [format!("/debug/{path}"), format!("/livez{path}"), path] {
                if allowed.allow(&path) {
                    prop_assert!(path == "/livez" || path.starts_with("/debug/"));
                    prop_assert!(!path.contains("//") && !path.contains("/./") && !path.contains("/../"));
                    prop_assert!(!path.ends_with("/.") && !path.ends_with("/.."));
                    prop_assert!(!path.contains(['%', '\\', '?', '#', ' ']));
                }
            }
        }
    }

    fn check(list: &str, rows: &[(&str, bool)]) {
        let allowed: AllowedPaths = list.parse().unwrap();
        for (path, open) in rows {
            assert_eq!(allowed.allow(path), *open, "{path:?} under {list:?}");
        }
    }

    fn check_error(list: &str, expected: &Expect) {
        expected.assert_eq(&list.parse::<AllowedPaths>().unwrap_err().to_string());
    }

    #[test]
    fn exact_path_matches_only_itself() {
        check(
            "/healthz,/readyz,/livez",
            &[
                ("/healthz", true),
                ("/livez", true),
                ("/", false),
                ("", false),
                ("*", false),
                ("healthz", false),
                ("/healthz/", false),
                ("/healthz/ping", false),
                ("/healthzz", false),
                ("/health", false),
                ("/HEALTHZ", false),
                ("//healthz", false),
                ("/./healthz", false),
                ("/healthz/.", false),
                ("/healthz/..", false),
                ("/healthz/../metrics", false),
                ("/metrics/../healthz", false),
                ("/%68ealthz", false),
                ("/healthz%00", false),
                ("/healthz%2f", false),
                ("/healthz;x", false),
                ("/healthz?verbose", false),
                ("/healthz\\", false),
                ("/metrics", false),
            ],
        );
    }

    #[test]
    fn trailing_star_matches_every_path_with_the_prefix() {
        check(
            "/debug/*",
            &[
                ("/debug", false),
                ("/debug/", true),
                ("/debug/graph", true),
                ("/debug/controllers/foo/graph", true),
                ("/debug/*", true),
                ("/debug/..", false),
                ("/debug/../metrics", false),
                ("/debug/./graph", false),
                ("/debug//graph", false),
                ("/debug//", false),
                ("/debug/%2e%2e/metrics", false),
                ("/debug/%2E%2E%2Fmetrics", false),
                ("/debug/..%2fmetrics", false),
                ("/debug/..\\metrics", false),
                ("/debug/...", true),
                ("/debug/a..b", true),
            ],
        );
        check(
            "/debug*",
            &[
                ("/debug", true),
                ("/debugger", true),
                ("/debug/x", true),
                ("/debu", false),
            ],
        );
    }

    #[test]
    fn root_and_wildcard_paths_are_matched() {
        check(
            "/",
            &[("/", true), ("", false), ("//", false), ("/livez", false), ("*", false)],
        );
        check(
            "/*",
            &[
                ("/", true),
                ("/metrics", true),
                ("//metrics", false),
                ("", false),
                ("*", false),
            ],
        );
        check("", &[("/", false), ("", false), ("/livez", false)]);
        check(
            " /livez , ,/metrics,",
            &[("/livez", true), ("/metrics", true), ("/", false)],
        );
    }

    #[test]
    fn invalid_list_is_rejected() {
        check_error(
            "metrics",
            &expect![[r#"the path "metrics" must start with /, as in /metrics"#]],
        );
        check_error("*", &expect![[r#"the path "*" must start with /, as in /metrics"#]]);
        check_error(
            "/livez,/debug/*/graph",
            &expect![[
                r#"the path "/debug/*/graph" has a * before its end: only a trailing * is supported, as in /debug/*"#
            ]],
        );
        check_error(
            "/debug/**",
            &expect![[
                r#"the path "/debug/**" has a * before its end: only a trailing * is supported, as in /debug/*"#
            ]],
        );
        check_error(
            "/a/../b",
            &expect![[
                r#"the path "/a/../b" can never be allowed: write it without %, //, \, . and .. segments, ? and #"#
            ]],
        );
        check_error(
            "//",
            &expect![[r#"the path "//" can never be allowed: write it without %, //, \, . and .. segments, ? and #"#]],
        );
        check_error(
            "/%6detrics",
            &expect![[
                r#"the path "/%6detrics" can never be allowed: write it without %, //, \, . and .. segments, ? and #"#
            ]],
        );
    }
}
