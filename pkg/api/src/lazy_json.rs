//! JSON that is decoded one level at a time, where it is read or changed. Everything else stays the
//! text that it was, whatever its depth and size.
//!
//! Architecture Invariant: pure. Nothing recurses into text.

use std::{borrow::Cow, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::value::{RawValue, to_raw_value};

/// A JSON value.
#[derive(Clone, Debug)]
pub enum LazyValue<'a> {
    /// Not decoded.
    Text(Cow<'a, RawValue>),
    /// An object whose fields are known.
    Object(LazyObject<'a>),
    /// An array whose elements are known.
    Array(Vec<Self>),
}

/// The fields of a JSON object, in their order.
#[derive(Clone, Debug, Default)]
pub struct LazyObject<'a>(Vec<(Cow<'a, str>, LazyValue<'a>)>);

impl<'a> LazyValue<'a> {
    /// Returns a text.
    pub fn string(text: &str) -> Self {
        Self::of(&text)
    }

    /// Returns a value as text.
    pub fn of(value: &impl Serialize) -> Self {
        // Fails only for maps whose keys are no texts.
        to_raw_value(value).map_or_else(|_| Self::null(), |text| Self::Text(Cow::Owned(text)))
    }

    /// Returns `null`.
    pub fn null() -> Self {
        Self::Text(Cow::Borrowed(RawValue::NULL))
    }

    /// Returns whether this is an object.
    pub fn is_object(&self) -> bool {
        matches!(self, Self::Object(_)) || self.starts_with('{')
    }

    /// Returns whether this is an array.
    pub fn is_array(&self) -> bool {
        matches!(self, Self::Array(_)) || self.starts_with('[')
    }

    /// Returns whether this is `null`.
    pub fn is_null(&self) -> bool {
        self.starts_with('n')
    }

    /// Returns whether this is `true`.
    pub fn is_true(&self) -> bool {
        self.starts_with('t')
    }

    /// Returns whether this is the text `text`.
    pub fn is_string(&self, text: &str) -> bool {
        self.as_str().is_some_and(|own| own == text)
    }

    /// Returns the text; `None` if this is another value.
    pub fn as_str(&self) -> Option<Cow<'_, str>> {
        let Self::Text(raw) = self else { return None };
        let encoded = raw.get();
        let plain = encoded.strip_prefix('"')?.strip_suffix('"')?;
        if plain.contains('\\') {
            serde_json::from_str(encoded).ok().map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(plain))
        }
    }

    /// Returns the fields, and decodes one level for that; `None` if this is another value.
    pub fn as_object_mut(&mut self) -> Option<&mut LazyObject<'a>> {
        if self.starts_with('{') {
            let Self::Text(raw) = self else { return None };
            let decoded = match raw {
                Cow::Borrowed(raw) => serde_json::from_str::<LazyObject<'a>>(raw.get()),
                Cow::Owned(raw) => serde_json::from_str::<LazyObject<'_>>(raw.get()).map(LazyObject::into_owned),
            };
            *self = Self::Object(decoded.ok()?);
        }
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// Returns the elements, and decodes one level for that; `None` if this is another value.
    pub fn as_array_mut(&mut self) -> Option<&mut Vec<Self>> {
        if self.starts_with('[') {
            let Self::Text(raw) = self else { return None };
            let decoded = match raw {
                Cow::Borrowed(raw) => serde_json::from_str::<Vec<LazyValue<'a>>>(raw.get()),
                Cow::Owned(raw) => {
                    let decoded = serde_json::from_str::<Vec<LazyValue<'_>>>(raw.get());
                    decoded.map(|elements| elements.into_iter().map(LazyValue::into_owned).collect())
                }
            };
            *self = Self::Array(decoded.ok()?);
        }
        match self {
            Self::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// Returns the value of a field; `None` if this is no object or has no such field.
    pub fn get_mut(&mut self, field: &str) -> Option<&mut Self> {
        self.as_object_mut()?.get_mut(field)
    }

    /// Returns the value without borrowed text.
    pub fn into_owned<'b>(self) -> LazyValue<'b> {
        match self {
            Self::Text(raw) => LazyValue::Text(Cow::Owned(raw.into_owned())),
            Self::Object(object) => LazyValue::Object(object.into_owned()),
            Self::Array(elements) => LazyValue::Array(elements.into_iter().map(LazyValue::into_owned).collect()),
        }
    }

    fn starts_with(&self, first: char) -> bool {
        matches!(self, Self::Text(raw) if raw.get().starts_with(first))
    }
}

impl<'a> LazyObject<'a> {
    /// Returns whether the object has no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of fields.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the value of a field.
    pub fn get(&self, field: &str) -> Option<&LazyValue<'a>> {
        let found = self.0.iter().rfind(|(name, _)| name == field);
        found.map(|(_, value)| value)
    }

    /// Returns the value of a field.
    pub fn get_mut(&mut self, field: &str) -> Option<&mut LazyValue<'a>> {
        let found = self.0.iter_mut().rfind(|(name, _)| name == field);
        found.map(|(_, value)| value)
    }

    /// Sets a field.
    pub fn insert(&mut self, field: impl Into<Cow<'a, str>>, value: LazyValue<'a>) {
        let field = field.into();
        match self.get_mut(&field) {
            Some(present) => *present = value,
            None => self.0.push((field, value)),
        }
    }

    /// Returns the value at a path of names.
    pub fn at_mut(&mut self, path: &[&str]) -> Option<&mut LazyValue<'a>> {
        let (first, rest) = path.split_first()?;
        let value = self.get_mut(first)?;
        rest.iter().try_fold(value, |value, name| value.get_mut(name))
    }

    /// Returns the text at a path of names; `None` if there is another value or none.
    pub fn text_at(&mut self, path: &[&str]) -> Option<String> {
        self.at_mut(path)?.as_str().map(Cow::into_owned)
    }

    /// Sets the value at a path of names, and creates missing objects on it. Does nothing if one of
    /// them has another value.
    pub fn set_at(&mut self, path: &[&'static str], value: impl Serialize) {
        let Some((field, parents)) = path.split_last() else {
            return;
        };
        let mut parent = self;
        for name in parents {
            if parent.get(name).is_none_or(LazyValue::is_null) {
                parent.insert(*name, LazyObject::default().into());
            }
            let Some(child) = parent.get_mut(name).and_then(LazyValue::as_object_mut) else {
                return;
            };
            parent = child;
        }
        if let Ok(value) = to_raw_value(&value) {
            parent.insert(*field, LazyValue::Text(Cow::Owned(value)));
        }
    }

    /// Adds fields that the object does not have.
    pub fn extend(&mut self, fields: impl IntoIterator<Item = (Cow<'a, str>, LazyValue<'a>)>) {
        self.0.extend(fields);
    }

    /// Removes a field, and returns its value.
    pub fn remove(&mut self, field: &str) -> Option<LazyValue<'a>> {
        let index = self.0.iter().rposition(|(name, _)| name == field)?;
        let (_, value) = self.0.remove(index);
        // A text may have a field twice, of which the last one counts.
        self.0.retain(|(name, _)| name != field);
        Some(value)
    }

    /// Removes the fields for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &mut LazyValue<'a>) -> bool) {
        self.0.retain_mut(|(name, value)| keep(name, value));
    }

    /// Iterates over the fields.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &LazyValue<'a>)> {
        self.0.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns the object without borrowed text.
    pub fn into_owned<'b>(self) -> LazyObject<'b> {
        let fields = self.0.into_iter();
        LazyObject(
            fields
                .map(|(name, value)| (Cow::Owned(name.into_owned()), value.into_owned()))
                .collect(),
        )
    }
}

impl<'a> IntoIterator for LazyObject<'a> {
    type Item = (Cow<'a, str>, LazyValue<'a>);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> FromIterator<(Cow<'a, str>, LazyValue<'a>)> for LazyObject<'a> {
    fn from_iter<I: IntoIterator<Item = (Cow<'a, str>, LazyValue<'a>)>>(fields: I) -> Self {
        Self(fields.into_iter().collect())
    }
}

impl From<bool> for LazyValue<'_> {
    fn from(value: bool) -> Self {
        Self::Text(Cow::Borrowed(if value { RawValue::TRUE } else { RawValue::FALSE }))
    }
}

impl<'a> From<LazyObject<'a>> for LazyValue<'a> {
    fn from(object: LazyObject<'a>) -> Self {
        Self::Object(object)
    }
}

impl<'a> From<&'a RawValue> for LazyValue<'a> {
    fn from(raw: &'a RawValue) -> Self {
        Self::Text(Cow::Borrowed(raw))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for LazyValue<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(Self::from)
    }
}

impl Serialize for LazyValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(raw) => raw.serialize(serializer),
            Self::Object(object) => object.serialize(serializer),
            Self::Array(elements) => elements.serialize(serializer),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for LazyObject<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = LazyObject<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(RawName(name)) = map.next_key()? {
                    let raw: &RawValue = map.next_value()?;
                    fields.push((name, LazyValue::from(raw)));
                }
                Ok(LazyObject(fields))
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

/// The name of a field, borrowed if it has no escapes.
#[derive(Deserialize)]
struct RawName<'a>(#[serde(borrow)] Cow<'a, str>);

impl Serialize for LazyObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(text: &str) -> LazyValue<'_> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn only_what_is_changed_is_written_anew() {
        let text = r#"{ "a" : { "x":1,  "y":[1.0e2 ,2] }, "b":12345678901234567890123, "c":"d" }"#;
        let mut value = parse(text);
        assert_eq!(serde_json::to_string(&value).unwrap(), text);
        let a = value.get_mut("a").unwrap().as_object_mut().unwrap();
        assert_eq!(a.len(), 2);
        a.remove("x");
        a.insert("z", LazyValue::string("\"é\""));
        assert_eq!(
            serde_json::to_string(&value).unwrap(),
            r#"{"a":{"y":[1.0e2 ,2],"z":"\"é\""},"b":12345678901234567890123,"c":"d"}"#
        );
        let owned = value.into_owned();
        assert!(serde_json::to_string(&owned).unwrap().contains("1.0e2 ,2"));
    }

    #[test]
    fn values_tell_their_type() {
        let mut array = parse("[1, {}, \"a\\u0062\", null]");
        assert!(array.is_array() && array.as_object_mut().is_none() && array.as_str().is_none());
        let [number, object, text, null] = &mut array.as_array_mut().unwrap()[..] else {
            panic!("four elements");
        };
        assert!(!number.is_object() && number.as_array_mut().is_none());
        assert!(object.is_object() && object.as_object_mut().unwrap().is_empty());
        assert!(text.is_string("ab") && null.is_null());
        assert!(LazyValue::null().is_null());
    }

    #[test]
    fn paths_lead_through_objects() {
        let mut value = parse(r#"{"a":{"b":"c","d":null,"e":[]}}"#);
        let object = value.as_object_mut().unwrap();
        assert_eq!(object.text_at(&["a", "b"]).as_deref(), Some("c"));
        for path in [&["a"][..], &["a", "d"], &["a", "b", "c"], &["x", "y"], &[]] {
            assert_eq!(object.text_at(path), None, "{path:?}");
        }
        object.set_at(&["a", "d", "f"], 1);
        object.set_at(&["a", "e", "f"], 2);
        object.set_at(&["g", "h"], "i");
        assert_eq!(
            serde_json::to_string(&value).unwrap(),
            r#"{"a":{"b":"c","d":{"f":1},"e":[]},"g":{"h":"i"}}"#
        );
    }

    #[test]
    fn the_last_of_several_fields_of_one_name_counts() {
        let mut value = parse(r#"{"a":1,"b":2,"a":3}"#);
        let object = value.as_object_mut().unwrap();
        assert_eq!(serde_json::to_string(object.get("a").unwrap()).unwrap(), "3");
        let removed = object.remove("a").unwrap();
        assert_eq!(serde_json::to_string(&removed).unwrap(), "3");
        assert_eq!(serde_json::to_string(&value).unwrap(), r#"{"b":2}"#);
    }

    /// `serde_json` decodes 128 levels, and a thread of a server has a small stack.
    #[test]
    fn depth_is_no_limit() {
        const DEPTH: usize = 500_000;
        let deep = format!("{}{}", "[".repeat(DEPTH), "]".repeat(DEPTH));
        let text = format!(r#"{{"deep":{deep},"a":{{"b":{deep}}}}}"#);
        assert!(serde_json::from_str::<Value>(&text).is_err());
        let mut value = parse(&text);
        value
            .get_mut("a")
            .unwrap()
            .as_object_mut()
            .unwrap()
            .insert("c", parse("1"));
        let written = serde_json::to_string(&value).unwrap();
        assert_eq!(written.len(), text.len() + r#","c":1"#.len());
        drop(value.into_owned());
        assert_eq!(json!(parse("{}")), json!({}));
    }
}
