//! Health checks in the format of Kubernetes.
//!
//! A [`Check`] is the result of one evaluation. The caller decides what to check and when. The
//! texts are those of Kubernetes' `k8s.io/apiserver/pkg/server/healthz`, with two differences: for
//! clients that may read metrics, a failed check shows its reason in the list as well (Kubernetes
//! always withholds it), and a passing check may have a note.
//!
//! Architecture Invariant: pure. No I/O, no clock, and no HTTP types except the status code.

use std::collections::BTreeSet;

use http::StatusCode;

/// The check that always exists and passes: a client that gets a response has reached the process.
const PING: &str = "ping";

/// Replaces the reason of a failure, as in Kubernetes.
const WITHHELD: &str = "reason withheld";

/// One named health check and its result.
///
/// Names are part of URLs (`/readyz/<name>`). Use only letters, digits, `-`, `.`, `_` and `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The subject of the check, for example `informer/foos.samplecontroller.k8s.io`.
    pub name: String,
    /// The result of the check.
    pub state: HealthStatus,
}

/// The result of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HealthStatus {
    /// The check passes.
    Ok,
    /// The check passes with a note for readers of the list.
    Note(String),
    /// The check and therefore the endpoint fail for this reason. Everybody who may read metrics
    /// can read the reason, so it must not contain secrets.
    Failed(String),
}

impl Check {
    /// Returns a check that passes.
    pub fn ok(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: HealthStatus::Ok,
        }
    }

    /// Returns a check that passes with a note.
    pub fn note(name: impl Into<String>, note: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: HealthStatus::Note(note.into()),
        }
    }

    /// Returns a check that fails.
    pub fn failed(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            state: HealthStatus::Failed(reason.into()),
        }
    }
}

/// The query parameters of a health request.
#[derive(Debug, Default)]
pub(crate) struct Query {
    pub(crate) verbose: bool,
    pub(crate) exclude: BTreeSet<String>,
}

impl Query {
    /// Reads a decoded query string. `verbose` applies whatever its value, and `exclude` may be
    /// repeated.
    pub(crate) fn from_pairs(pairs: Vec<(String, String)>) -> Self {
        pairs.into_iter().fold(Self::default(), |mut query, (key, value)| {
            match key.as_str() {
                "verbose" => query.verbose = true,
                "exclude" => _ = query.exclude.insert(value),
                _ => {}
            }
            query
        })
    }
}

/// A plain-text response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HealthResponse {
    pub(crate) status: StatusCode,
    pub(crate) body: String,
}

/// Returns the caller's checks after the `ping` check.
pub(crate) fn with_ping(checks: Vec<Check>) -> Vec<Check> {
    std::iter::once(Check::ok(PING)).chain(checks).collect()
}

/// Returns the checks without notes and without the reasons of failures, for a client that may not
/// see them.
pub(crate) fn withhold_reasons(checks: Vec<Check>) -> Vec<Check> {
    let withhold = |check: Check| match check.state {
        HealthStatus::Ok | HealthStatus::Note(_) => Check::ok(check.name),
        HealthStatus::Failed(_) => Check::failed(check.name, WITHHELD),
    };
    checks.into_iter().map(withhold).collect()
}

/// Returns the response of a whole endpoint (`livez`, `readyz`, `healthz`). It lists one check per
/// line when the client asks for it or a check fails.
pub(crate) fn summary(endpoint: &str, checks: &[Check], query: &Query) -> HealthResponse {
    let mut failing = false;
    let mut unknown: BTreeSet<&str> = query.exclude.iter().map(String::as_str).collect();
    let mut list = String::new();
    for Check { name, state } in checks {
        let line = if query.exclude.contains(name) {
            unknown.remove(name.as_str());
            format!("[+]{name} excluded: ok\n")
        } else {
            match state {
                HealthStatus::Ok => format!("[+]{name} ok\n"),
                HealthStatus::Note(note) => format!("[+]{name} ok: {}\n", one_line(note)),
                HealthStatus::Failed(reason) => {
                    failing = true;
                    format!("[-]{name} failed: {}\n", one_line(reason))
                }
            }
        };
        list.push_str(&line);
    }
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
        let names = names.join(",");
        list = format!("{list}warn: some health checks cannot be excluded: no matches for {names}\n");
    }
    if failing {
        HealthResponse {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            body: format!("{list}{endpoint} check failed\n"),
        }
    } else if query.verbose {
        HealthResponse {
            status: StatusCode::OK,
            body: format!("{list}{endpoint} check passed\n"),
        }
    } else {
        HealthResponse {
            status: StatusCode::OK,
            body: "ok".to_owned(),
        }
    }
}

/// Returns the response for a single check, or `None` if the check does not exist.
pub(crate) fn single(checks: &[Check], name: &str) -> Option<HealthResponse> {
    let check = checks.iter().find(|check| check.name == name)?;
    Some(match &check.state {
        HealthStatus::Ok | HealthStatus::Note(_) => HealthResponse {
            status: StatusCode::OK,
            body: "ok".to_owned(),
        },
        HealthStatus::Failed(reason) => HealthResponse {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            body: format!("internal server error: {}\n", one_line(reason)),
        },
    })
}

/// Replaces control characters by spaces. Reasons quote errors, which may contain text of any user,
/// and a line break in them must not create a line that looks like another check.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn query(text: &str) -> Query {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Query::from_pairs(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    fn passing() -> Vec<Check> {
        with_ping(vec![
            Check::ok("informer/foos"),
            Check::note("crd/crontabs", "not installed"),
        ])
    }

    fn failing() -> Vec<Check> {
        with_ping(vec![
            Check::failed("informer/foos", "forbidden"),
            Check::ok("workers"),
            Check::failed("clock", "is 9 s off"),
        ])
    }

    fn show(response: Option<HealthResponse>) -> String {
        response.map_or_else(
            || "none".to_owned(),
            |response| format!("{} {}", response.status.as_u16(), response.body),
        )
    }

    fn check(endpoint: &str, checks: &[Check], text: &str, expected: &Expect) {
        expected.assert_eq(&show(Some(summary(endpoint, checks, &query(text)))));
    }

    fn check_single(checks: &[Check], name: &str, expected: &Expect) {
        expected.assert_eq(&show(single(checks, name)));
    }

    #[test]
    fn passing_checks_return_ok() {
        check("readyz", &passing(), "", &expect!["200 ok"]);
        check("readyz", &with_ping(vec![]), "", &expect!["200 ok"]);
        check("readyz", &passing(), "exclude=informer/foos", &expect!["200 ok"]);
        check("readyz", &passing(), "exclude=nobody&other=1", &expect!["200 ok"]);
    }

    #[test]
    fn withheld_reasons_and_notes_are_not_shown() {
        let [passing, failing] = [passing(), failing()].map(withhold_reasons);
        check(
            "readyz",
            &passing,
            "verbose",
            &expect![[r"
            200 [+]ping ok
            [+]informer/foos ok
            [+]crd/crontabs ok
            readyz check passed
        "]],
        );
        check(
            "readyz",
            &failing,
            "",
            &expect![[r"
            500 [+]ping ok
            [-]informer/foos failed: reason withheld
            [+]workers ok
            [-]clock failed: reason withheld
            readyz check failed
        "]],
        );
    }

    #[test]
    fn verbose_lists_every_check_in_order() {
        check(
            "readyz",
            &passing(),
            "verbose",
            &expect![[r"
            200 [+]ping ok
            [+]informer/foos ok
            [+]crd/crontabs ok: not installed
            readyz check passed
        "]],
        );
        check(
            "livez",
            &passing(),
            "verbose=false",
            &expect![[r"
            200 [+]ping ok
            [+]informer/foos ok
            [+]crd/crontabs ok: not installed
            livez check passed
        "]],
        );
        check(
            "healthz",
            &with_ping(vec![]),
            "verbose=true",
            &expect![[r"
            200 [+]ping ok
            healthz check passed
        "]],
        );
    }

    #[test]
    fn failing_checks_are_listed_without_verbose() {
        check(
            "readyz",
            &failing(),
            "",
            &expect![[r"
            500 [+]ping ok
            [-]informer/foos failed: forbidden
            [+]workers ok
            [-]clock failed: is 9 s off
            readyz check failed
        "]],
        );
        check(
            "healthz",
            &failing(),
            "verbose&exclude=clock",
            &expect![[r"
            500 [+]ping ok
            [-]informer/foos failed: forbidden
            [+]workers ok
            [+]clock excluded: ok
            healthz check failed
        "]],
        );
    }

    #[test]
    fn excluding_every_failed_check_passes() {
        check(
            "livez",
            &failing(),
            "exclude=clock&exclude=informer/foos",
            &expect!["200 ok"],
        );
        check(
            "livez",
            &failing(),
            "exclude=clock&verbose&exclude=informer/foos",
            &expect![[r"
                200 [+]ping ok
                [+]informer/foos excluded: ok
                [+]workers ok
                [+]clock excluded: ok
                livez check passed
            "]],
        );
    }

    #[test]
    fn unknown_exclude_adds_a_warning() {
        check(
            "readyz",
            &passing(),
            "verbose&exclude=zeta&exclude=alpha&exclude=ping",
            &expect![[r#"
                200 [+]ping excluded: ok
                [+]informer/foos ok
                [+]crd/crontabs ok: not installed
                warn: some health checks cannot be excluded: no matches for "alpha","zeta"
                readyz check passed
            "#]],
        );
        check(
            "readyz",
            &failing(),
            "exclude=",
            &expect![[r#"
            500 [+]ping ok
            [-]informer/foos failed: forbidden
            [+]workers ok
            [-]clock failed: is 9 s off
            warn: some health checks cannot be excluded: no matches for ""
            readyz check failed
        "#]],
        );
    }

    #[test]
    fn reason_cannot_forge_the_line_of_a_check() {
        check(
            "readyz",
            &with_ping(vec![Check::failed("a", "x\n[+]b ok\r\ny")]),
            "",
            &expect![[r"
                500 [+]ping ok
                [-]a failed: x [+]b ok  y
                readyz check failed
            "]],
        );
    }

    #[test]
    fn single_check_has_its_own_path() {
        check_single(&passing(), "ping", &expect!["200 ok"]);
        check_single(&passing(), "crd/crontabs", &expect!["200 ok"]);
        check_single(
            &failing(),
            "informer/foos",
            &expect![[r"
            500 internal server error: forbidden
        "]],
        );
        check_single(&failing(), "informer", &expect!["none"]);
    }
}
