//! Formats an error and its sources as one line.

use std::error::Error;

use kube::{client::AuthError, core::Status};
use tower::BoxError;

/// Returns the error and its sources in the form `failed to list: connection error: timed out`.
///
/// kube's errors repeat their source in their own text, so a source is left out if the text already
/// ends with it. A credential error is reduced to the kind of failure, because kube's text contains
/// the output of the plugin, including tokens.
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = own_text(error);
    let mut last = error;
    while let (false, Some(source)) = (omits_sources(last), last.source()) {
        let next = own_text(source);
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        last = source;
    }
    text
}

/// Returns the text of one error without its sources. Of a Status, these are the message and the
/// reason; kube would print every field.
fn own_text(error: &(dyn Error + 'static)) -> String {
    match api_status(error) {
        Some(status) if status.reason.is_empty() => status.message.clone(),
        Some(status) => format!("{} ({})", status.message, status.reason),
        None => auth_error(error).map_or_else(|| error.to_string(), redacted_auth_error),
    }
}

/// Returns whether [`own_text`] is complete without the error's sources.
fn omits_sources(error: &(dyn Error + 'static)) -> bool {
    api_status(error).is_some() || auth_error(error).is_some()
}

fn api_status<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    match as_kube_error(error) {
        Some(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

fn auth_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a AuthError> {
    match as_kube_error(error) {
        Some(kube::Error::Auth(source)) => Some(source),
        // The auth layer refreshes tokens during a call, so its errors arrive as service errors.
        Some(kube::Error::Service(source)) => source.downcast_ref(),
        _ => error.downcast_ref(),
    }
}

fn as_kube_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a kube::Error> {
    let boxed = || error.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
    error.downcast_ref().or_else(boxed)
}

/// A credential error without secrets. The text and the `Debug` output of kube's error contain what
/// a plugin printed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RedactedAuthError(String);

impl RedactedAuthError {
    pub(crate) fn of(error: &AuthError) -> BoxError {
        Box::new(Self(redacted_auth_error(error)))
    }

    pub(crate) fn of_call(error: BoxError) -> BoxError {
        error
            .downcast::<AuthError>()
            .map_or_else(|other| other, |error| Self::of(&error))
    }
}

/// Returns the kind of the failure, and the exit status if there is one, without any output of a
/// plugin or content of a file.
fn redacted_auth_error(error: &AuthError) -> String {
    let kind = match error {
        AuthError::AuthExecRun { status, .. } => return format!("the credential plugin failed ({status})"),
        AuthError::AuthExecStart(source) => {
            return format!("failed to start the credential plugin ({})", source.kind());
        }
        AuthError::AuthExecParse(_) => "failed to parse the output of the credential plugin",
        AuthError::AuthExec(_) => "failed to run the credential plugin",
        AuthError::AuthExecSerialize(_) | AuthError::ExecMissingClusterInfo => {
            "failed to pass the cluster information to the credential plugin"
        }
        AuthError::MissingCommand => "the credential plugin has no command",
        AuthError::ExecPluginFailed => "the credential plugin returned no status",
        AuthError::UnrefreshableTokenResponse => {
            "the credential plugin returned another kind of credential in a refresh"
        }
        AuthError::MalformedTokenExpirationDate(_) => "the credential's expiration timestamp is invalid",
        AuthError::InvalidBasicAuth(_) => "the user name or password is not a valid header value",
        AuthError::InvalidBearerToken(_) => "the token is not a valid header value",
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
    fn api_error_is_formatted_as_message_and_reason() {
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
    fn credential_errors_omit_the_output_of_a_plugin() {
        #[derive(Debug, thiserror::Error)]
        #[error("failed to list")]
        struct List(#[source] Box<kube::Error>);

        let failed = || AuthError::AuthExec("it printed hunter2".to_owned());
        let expected = "failed to run the credential plugin";
        assert_eq!(error_chain(&failed()), expected);
        assert_eq!(error_chain(&kube::Error::Auth(failed())), expected);
        assert_eq!(error_chain(&kube::Error::Service(Box::new(failed()))), expected);
        let boxed = List(Box::new(kube::Error::Auth(failed())));
        assert_eq!(error_chain(&boxed), format!("failed to list: {expected}"));
        // The source is left out as well.
        let unread = AuthError::ReadTokenFile(std::io::Error::other("hunter2"), "token".into());
        assert_eq!(error_chain(&unread), "failed to read the token file (other error)");
    }

    #[test]
    fn repeated_causes_are_printed_once() {
        let plain = step("failed to list", Some(step("refused", Some(step("no rights", None)))));
        assert_eq!(error_chain(&plain), "failed to list: refused: no rights");
        let repeated = step(
            "failed to list",
            Some(step("refused: no rights", Some(step("no rights", None)))),
        );
        assert_eq!(error_chain(&repeated), "failed to list: refused: no rights");
    }
}
