//! Which form of a page a client asks for, as in Kubernetes' content negotiation.
//!
//! Architecture Invariant: pure.

/// The message of a 406.
pub(super) const NOT_ACCEPTABLE: &str = "only the following media types are accepted: text/plain, application/json, \
     application/yaml, application/cbor; the last three need the parameters g=config.k8s.io, v and as";

const GROUP: &str = "config.k8s.io";

/// A form of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Representation {
    /// Text for people.
    Text,
    /// An object.
    Object(Format, Version),
}

/// An encoding of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
    Cbor,
}

/// A version of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V1Alpha1,
    V1Beta1,
}

impl Format {
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
            Self::Cbor => "application/cbor",
        }
    }
}

impl Version {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::V1Alpha1 => "v1alpha1",
            Self::V1Beta1 => "v1beta1",
        }
    }
}

/// Returns the form that the header `Accept` prefers, or `None` if there is none that it accepts.
/// Without the header, it is text. `kind` is the kind of the object.
pub(super) fn negotiate(accept: &str, kind: &str) -> Option<Representation> {
    if accept.trim().is_empty() {
        return Some(Representation::Text);
    }
    let mut ranges: Vec<_> = accept.split(',').filter_map(MediaRange::parse).collect();
    // Stable: of equal ranges, the first counts.
    ranges.sort_by(|one, other| other.preference().total_cmp(&one.preference()));
    ranges.iter().find_map(|range| range.choose(kind))
}

/// One item of the header `Accept`.
struct MediaRange<'a> {
    main: &'a str,
    sub: &'a str,
    quality: f64,
    group: Option<&'a str>,
    version: Option<&'a str>,
    kind: Option<&'a str>,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let (main, sub) = parts.next()?.split_once('/')?;
        let mut range = Self {
            main,
            sub,
            quality: 1.0,
            group: None,
            version: None,
            kind: None,
        };
        for parameter in parts {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name.trim() {
                "q" => {
                    let quality = value.trim().parse().ok();
                    range.quality = quality.filter(|quality| (0.0..=1.0).contains(quality))?;
                }
                "g" => range.group = Some(value.trim()),
                "v" => range.version = Some(value.trim()),
                "as" => range.kind = Some(value.trim()),
                _ => {}
            }
        }
        Some(range)
    }

    /// Returns a number that is higher for a better quality, and then for a more specific range.
    fn preference(&self) -> f64 {
        let specific = |part: &str, weight: f64| if part == "*" { 0.0 } else { weight };
        self.quality + specific(self.main, 1e-4) + specific(self.sub, 1e-5)
    }

    fn choose(&self, kind: &str) -> Option<Representation> {
        if self.quality <= 0.0 {
            return None;
        }
        let includes = |main: &str, sub: &str| {
            self.main == "*" && self.sub == "*" || self.main == main && (self.sub == sub || self.sub == "*")
        };
        if self.kind.is_none() {
            return includes("text", "plain").then_some(Representation::Text);
        }
        let version = match self.version {
            Some("v1alpha1") => Version::V1Alpha1,
            Some("v1beta1") => Version::V1Beta1,
            _ => return None,
        };
        let formats = [Format::Json, Format::Yaml, Format::Cbor].into_iter();
        let mut formats = formats.filter(|format| {
            let (main, sub) = format.media_type().split_once('/').unwrap_or_default();
            includes(main, sub)
        });
        let is_known = self.kind == Some(kind) && self.group == Some(GROUP);
        formats
            .next()
            .filter(|_| is_known)
            .map(|format| Representation::Object(format, version))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns headers of valid, almost valid and arbitrary items.
    fn headers() -> impl Strategy<Value = String> {
        let word = || {
            prop::sample::select(vec![
                "*",
                "text",
                "plain",
                "application",
                "json",
                "yaml",
                "cbor",
                "Flagz",
                "Statusz",
                "config.k8s.io",
                "v1beta1",
                "v1alpha1",
                "q",
                "g",
                "v",
                "as",
                "0",
                "1",
                "0.5",
                "-1",
                "2",
                "NaN",
                "inf",
                "1e999",
                "",
            ])
        };
        let separator = || prop::sample::select(vec!["/", ";", "=", ",", " ", "; ", ";q=", ";as=", "/*", "\u{a0}"]);
        let pairs = prop::collection::vec((word(), separator()), 0..12);
        let built = pairs.prop_map(|pairs| {
            pairs
                .into_iter()
                .map(|(word, separator)| word.to_owned() + separator)
                .collect()
        });
        prop_oneof![built, any::<String>()]
    }

    proptest! {
        #[test]
        fn a_chosen_form_is_one_that_the_header_accepts(accept in headers()) {
            match negotiate(&accept, "Flagz") {
                None => prop_assert!(!accept.trim().is_empty()),
                Some(Representation::Text) => {
                    prop_assert!(accept.trim().is_empty() || accept.contains("text/") || accept.contains("*/*"));
                }
                Some(Representation::Object(format, version)) => {
                    let (main, _) = format.media_type().split_once('/').unwrap();
                    prop_assert!(accept.contains(main) || accept.contains("*/*"));
                    for part in [version.name(), GROUP, "Flagz"] {
                        prop_assert!(accept.contains(part));
                    }
                }
            }
            // Further forms that do not exist change nothing.
            let longer = format!("{accept},application/xml");
            if !accept.trim().is_empty() {
                prop_assert_eq!(negotiate(&longer, "Flagz"), negotiate(&accept, "Flagz"));
            }
        }
    }

    /// The cases of Kubernetes' `TestKubeControllerManagerServingZPages`, and others.
    #[test]
    fn the_preferred_form_is_chosen() {
        let beta = |format| Some(Representation::Object(format, Version::V1Beta1));
        let alpha = |format| Some(Representation::Object(format, Version::V1Alpha1));
        let text = Some(Representation::Text);
        let table = [
            ("", text),
            ("  ", text),
            ("text/plain", text),
            ("text/*", text),
            ("*/*", text),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
                beta(Format::Json),
            ),
            (
                "application/yaml; v=v1beta1; g=config.k8s.io; as=Flagz",
                beta(Format::Yaml),
            ),
            (
                "application/cbor;v=v1beta1;g=config.k8s.io;as=Flagz",
                beta(Format::Cbor),
            ),
            ("application/*;v=v1beta1;g=config.k8s.io;as=Flagz", beta(Format::Json)),
            ("application/xml", None),
            ("application/json", None),
            ("application/json;v=v1beta1;g=config.k8s.io", None),
            ("application/json;v=v1beta1;as=Flagz", None),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", None),
            ("application/json;v=foo;g=config.k8s.io;as=Flagz,*/*", text),
            (
                "application/json;v=v1alpha1;g=config.k8s.io;as=Flagz,application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
                alpha(Format::Json),
            ),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Flagz,application/json;v=v1alpha1;g=config.k8s.io;as=Flagz",
                beta(Format::Json),
            ),
            (
                "*/*,application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
                beta(Format::Json),
            ),
            (
                "text/plain;q=0.5,application/json;v=v1beta1;g=config.k8s.io;as=Flagz;q=0.4",
                text,
            ),
            ("text/plain;q=0", None),
            ("text/plain;q=NaN", None),
            ("text/plain;q=2", None),
            ("nonsense", None),
        ];
        for (accept, expected) in table {
            assert_eq!(negotiate(accept, "Flagz"), expected, "{accept:?}");
        }
    }
}
