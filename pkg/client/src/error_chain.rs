//! An error and its sources, as one line for a log or a report.

use std::error::Error;

use kube::{client::AuthError, core::Status};

/// `what failed: why: why that`.
///
/// kube's errors repeat their source in their own text; a source that the text already ends with is not said twice. Of credentials that
/// cannot be had only the kind of failure is told: kube's text holds what a plugin printed, tokens and all.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = said(error);
    let mut last = error;
    while let (false, Some(source)) = (is_told_whole(last), last.source()) {
        let next = said(source);
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        last = source;
    }
    text
}

/// kube prints a refusal with every field of its Status; its message and reason say it all.
fn said(error: &(dyn Error + 'static)) -> String {
    match refusal(error) {
        Some(status) if status.reason.is_empty() => status.message.clone(),
        Some(status) => format!("{} ({})", status.message, status.reason),
        None => credentials(error).map_or_else(|| error.to_string(), redacted_auth_error),
    }
}

fn is_told_whole(error: &(dyn Error + 'static)) -> bool {
    refusal(error).is_some() || credentials(error).is_some()
}

fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    match of_kube(error) {
        Some(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

fn credentials<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a AuthError> {
    match of_kube(error) {
        Some(kube::Error::Auth(source)) => Some(source),
        // A token that is refreshed on the way to the apiserver.
        Some(kube::Error::Service(source)) => source.downcast_ref(),
        _ => error.downcast_ref(),
    }
}

fn of_kube<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a kube::Error> {
    let boxed = || error.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
    error.downcast_ref().or_else(boxed)
}

/// What kind of failure it was, and the exit status if there is one. Nothing that a plugin printed or a file holds.
pub(crate) fn redacted_auth_error(error: &AuthError) -> String {
    let kind = match error {
        AuthError::AuthExecRun { status, .. } => return format!("the credential plugin failed ({status})"),
        AuthError::AuthExecStart(source) => {
            return format!("failed to start the credential plugin ({})", source.kind());
        }
        AuthError::AuthExecParse(_) => "failed to parse what the credential plugin printed",
        AuthError::AuthExec(_) => "failed to run the credential plugin",
        AuthError::AuthExecSerialize(_) | AuthError::ExecMissingClusterInfo => {
            "failed to tell the credential plugin of the cluster"
        }
        AuthError::MissingCommand => "the credential plugin has no command",
        AuthError::ExecPluginFailed => "the credential plugin's answer has no status",
        AuthError::UnrefreshableTokenResponse => "the credential plugin's new credential is of another kind",
        AuthError::MalformedTokenExpirationDate(_) => "the credential's date of expiry is none",
        AuthError::InvalidBasicAuth(_) => "the user name or password cannot stand in a header",
        AuthError::InvalidBearerToken(_) => "the token cannot stand in a header",
        AuthError::ReadTokenFile(source, _) => return format!("failed to read the token file ({})", source.kind()),
        _ => "failed to find credentials",
    };
    kind.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Step {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    fn step(text: &'static str, source: Option<Step>) -> Step {
        Step {
            text,
            source: source.map(Box::new),
        }
    }

    #[test]
    fn a_refusal_is_told_by_its_message_and_reason() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to list")]
        struct List(#[source] kube::Error);

        let status = Status::failure("pods is forbidden", "Forbidden").with_code(403);
        let error = List(kube::Error::Api(status.boxed()));
        assert_eq!(error_chain(&error), "failed to list: pods is forbidden (Forbidden)");
        let status = Status::failure("404 page not found", "").with_code(404);
        assert_eq!(error_chain(&kube::Error::Api(status.boxed())), "404 page not found");
    }

    #[test]
    fn credentials_that_cannot_be_had_are_told_without_what_a_plugin_printed() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to list")]
        struct List(#[source] Box<kube::Error>);

        let failed = || AuthError::AuthExec("it printed hunter2".to_owned());
        let told = "failed to run the credential plugin";
        assert_eq!(error_chain(&failed()), told);
        assert_eq!(error_chain(&kube::Error::Auth(failed())), told);
        assert_eq!(error_chain(&kube::Error::Service(Box::new(failed()))), told);
        let boxed = List(Box::new(kube::Error::Auth(failed())));
        assert_eq!(error_chain(&boxed), format!("failed to list: {told}"));
        // Nor is its source told.
        let unread = AuthError::ReadTokenFile(std::io::Error::other("hunter2"), "token".into());
        assert_eq!(error_chain(&unread), "failed to read the token file (other error)");
    }

    #[test]
    fn each_cause_is_said_once() {
        let plain = step("failed to list", Some(step("refused", Some(step("no rights", None)))));
        assert_eq!(error_chain(&plain), "failed to list: refused: no rights");
        let repeated = step(
            "failed to list",
            Some(step("refused: no rights", Some(step("no rights", None)))),
        );
        assert_eq!(error_chain(&repeated), "failed to list: refused: no rights");
    }
}
