//! An error and its sources, as one line for a log or a report.

use std::error::Error;

use kube::core::Status;

/// `what failed: why: why that`.
///
/// kube's errors repeat their source in their own text; a source that the text already ends with is not said twice.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = said(error);
    let mut last = error;
    while let (None, Some(source)) = (refusal(last), last.source()) {
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
        None => error.to_string(),
    }
}

fn refusal<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Status> {
    let boxed = || error.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
    match error.downcast_ref().or_else(boxed) {
        Some(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
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
        assert_eq!(chain(&error), "failed to list: pods is forbidden (Forbidden)");
        let status = Status::failure("404 page not found", "").with_code(404);
        assert_eq!(chain(&kube::Error::Api(status.boxed())), "404 page not found");
    }

    #[test]
    fn each_cause_is_said_once() {
        let plain = step("failed to list", Some(step("refused", Some(step("no rights", None)))));
        assert_eq!(chain(&plain), "failed to list: refused: no rights");
        let repeated = step(
            "failed to list",
            Some(step("refused: no rights", Some(step("no rights", None)))),
        );
        assert_eq!(chain(&repeated), "failed to list: refused: no rights");
    }
}
