//! An error and its sources, as one line for a log or a report.

use std::error::Error;

/// `what failed: why: why that`.
///
/// kube's errors repeat their source in their own text; a source that the text already ends with is not said twice.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        source = error.source();
    }
    text
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
