//! `--controllers`: the selection of the controllers that run.
//!
//! The rules are exactly those of kube-controller-manager (`IsControllerEnabled`). `*` enables all
//! controllers that are on by default, `foo` enables one, and `-foo` disables one. The first item
//! that names a controller decides. A controller without such an item runs only if the list
//! contains `*` and the controller is on by default. Aliases are resolved first.
//!
//! Architecture Invariant: pure.

use std::{collections::HashMap, fmt};

use portreeve_reconcile::Descriptor;

/// A checked `--controllers` list.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Selection(Vec<Item>);

#[derive(Clone, Debug, Eq, PartialEq)]
enum Item {
    /// `*`
    Defaults,
    /// `foo`, by its full name
    On(&'static str),
    /// `-foo`, by its full name
    Off(&'static str),
}

/// All names in the list that belong to no controller.
#[derive(Debug, Eq, PartialEq)]
pub struct UnknownNames(Vec<(String, Option<&'static str>)>);

impl UnknownNames {
    /// Returns the names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| &**name)
    }
}

impl std::error::Error for UnknownNames {}

impl fmt::Display for UnknownNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, nearest)) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(", ")?;
            }
            write!(f, "unknown controller {name:?}")?;
            if let Some(nearest) = nearest {
                write!(f, " (did you mean {nearest:?}?)")?;
            }
        }
        f.write_str("; --list-controllers prints the known names")
    }
}

impl Selection {
    /// Checks the items of `--controllers` against the known controllers. An empty list enables
    /// none.
    ///
    /// # Errors
    ///
    /// Returns [`UnknownNames`] with the nearest known name for each unknown one.
    pub fn parse<S: AsRef<str>>(items: &[S], known: &[Descriptor]) -> Result<Self, UnknownNames> {
        let mut names: HashMap<&str, &'static str> = HashMap::new();
        for descriptor in known {
            names.insert(descriptor.name, descriptor.name);
            names.extend(descriptor.aliases.iter().map(|alias| (*alias, descriptor.name)));
        }
        let mut selected = Vec::new();
        let mut unknown = Vec::new();
        let items = items.iter().map(|item| item.as_ref().trim());
        for item in items.filter(|item| !item.is_empty()) {
            let (name, off) = match item.strip_prefix('-') {
                Some(name) => (name, true),
                None => (item, false),
            };
            match (item, names.get(name)) {
                ("*", _) => selected.push(Item::Defaults),
                (_, Some(name)) if off => selected.push(Item::Off(name)),
                (_, Some(name)) => selected.push(Item::On(name)),
                (_, None) => unknown.push((name.to_owned(), nearest(name, ids(known)))),
            }
        }
        if unknown.is_empty() {
            Ok(Self(selected))
        } else {
            Err(UnknownNames(unknown))
        }
    }

    /// Returns whether this controller runs.
    pub fn enables(&self, descriptor: &Descriptor) -> bool {
        let spoken = self.0.iter().find_map(|item| match item {
            Item::On(name) if *name == descriptor.name => Some(true),
            Item::Off(name) if *name == descriptor.name => Some(false),
            _ => None,
        });
        spoken.unwrap_or_else(|| descriptor.on_by_default && self.0.contains(&Item::Defaults))
    }
}

/// A mistake in the names of the known controllers.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidRegistry {
    /// A controller has an empty name.
    #[error("a controller has no name")]
    Unnamed,
    /// A name or an alias is used twice.
    #[error("{id:?} is used by {first:?} and by {second:?}")]
    Duplicate {
        /// The name or alias.
        id: &'static str,
        /// The name of the first controller that uses it.
        first: &'static str,
        /// The name of the next one, which is the same for an alias of itself.
        second: &'static str,
    },
}

/// Checks that names and aliases are unique and not empty. A violation is a programming error,
/// which a test catches.
///
/// # Errors
///
/// Returns an error that says which name is empty, used twice, or an alias of itself. Kubernetes'
/// `register` panics in these cases.
pub fn check_registry(known: &[Descriptor]) -> Result<(), InvalidRegistry> {
    let mut owners: HashMap<&str, &str> = HashMap::new();
    for descriptor in known {
        let second = descriptor.name;
        if second.is_empty() {
            return Err(InvalidRegistry::Unnamed);
        }
        for id in ids(std::slice::from_ref(descriptor)) {
            if let Some(first) = owners.insert(id, second) {
                return Err(InvalidRegistry::Duplicate { id, first, second });
            }
        }
    }
    Ok(())
}

fn ids(known: &[Descriptor]) -> impl Iterator<Item = &'static str> {
    known
        .iter()
        .flat_map(|descriptor| std::iter::once(descriptor.name).chain(descriptor.aliases.iter().copied()))
}

/// Returns the name with the fewest edits from a mistyped one, if that needs only a few edits.
pub fn nearest<'a>(name: &str, ids: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (edits, id) = ids.map(|id| (strsim::levenshtein(name, id), id)).min()?;
    let length = name.chars().count();
    let is_same = id.eq_ignore_ascii_case(name);
    let near = is_same || edits < length && edits <= 2.max(length / 3) || id.starts_with(name) && !name.is_empty();
    near.then_some(id)
}

#[cfg(test)]
mod tests;
