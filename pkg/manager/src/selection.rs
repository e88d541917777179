//! `--controllers`: which of the known controllers run.
//!
//! kube-controller-manager's rules to the letter (`IsControllerEnabled`): `*` stands for all that are on by default, `foo` turns
//! one on, `-foo` turns one off, the first item that speaks of a controller decides, and one that nobody speaks of is off unless
//! there is a `*` and it is on by default. Aliases are resolved first.
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

/// Names that no controller has. Lists all of them.
#[derive(Debug, Eq, PartialEq)]
pub struct UnknownNames(Vec<(String, Option<&'static str>)>);

impl std::error::Error for UnknownNames {}

impl fmt::Display for UnknownNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (name, nearest)) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{name:?} is not in the list of known controllers")?;
            if let Some(nearest) = nearest {
                write!(f, ", did you mean {nearest:?}?")?;
            }
        }
        f.write_str(" (--list-controllers prints them)")
    }
}

impl Selection {
    /// Checks the items of `--controllers` against the known controllers. An empty list enables none.
    ///
    /// # Errors
    ///
    /// [`UnknownNames`] with the nearest known name for each.
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

    /// Whether this controller runs.
    pub fn enables(&self, descriptor: &Descriptor) -> bool {
        let spoken = self.0.iter().find_map(|item| match item {
            Item::On(name) if *name == descriptor.name => Some(true),
            Item::Off(name) if *name == descriptor.name => Some(false),
            _ => None,
        });
        spoken.unwrap_or_else(|| descriptor.on_by_default && self.0.contains(&Item::Defaults))
    }
}

/// What a list of controllers must not be: an error in the program, found by a test.
///
/// # Errors
///
/// Says which name is empty, used twice, or an alias of itself: what Kubernetes' `register` panics on.
pub fn check_registry(known: &[Descriptor]) -> Result<(), String> {
    let mut owners: HashMap<&str, &str> = HashMap::new();
    for descriptor in known {
        let name = descriptor.name;
        if name.is_empty() {
            return Err("a controller has no name".to_owned());
        }
        for id in std::iter::once(&name).chain(descriptor.aliases) {
            if let Some(owner) = owners.insert(id, name) {
                return Err(format!("{id:?} stands for {owner:?} and for {name:?}"));
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

/// The one of these names that takes the fewest edits, if it takes few: for whoever has mistyped it.
pub fn nearest<'a>(name: &str, ids: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (edits, id) = ids.map(|id| (distance(name, id), id)).min()?;
    let length = name.chars().count();
    let is_same = id.eq_ignore_ascii_case(name);
    let near = is_same || edits < length && edits <= 2.max(length / 3) || id.starts_with(name) && !name.is_empty();
    near.then_some(id)
}

/// Levenshtein's distance: insertions, deletions and substitutions.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
