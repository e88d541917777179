//! Checks the daemon's writes that need no Lease.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::Event;

/// Ensures that the daemon has created no object twice unless others deleted it in between, and
/// that each of its deletions carried preconditions.
pub(crate) fn check(events: &[Event]) -> Result<()> {
    let mut created: BTreeMap<String, usize> = BTreeMap::new();
    let mut deleted_by_others: BTreeMap<String, usize> = BTreeMap::new();
    for event in events {
        let (object, code) = (event.object(), event.code());
        match &*event.verb {
            "delete" if !event.is_of_daemon() => {
                *deleted_by_others.entry(object).or_default() += usize::from(code == 200);
            }
            _ if !event.is_of_daemon() => {}
            "create" if code == 201 && event.resource() != "events" => {
                *created.entry(object).or_default() += 1;
            }
            // The apiserver rejects such deletions before it reads the body, so the log has no
            // preconditions.
            "delete" if code != 403 && code != 401 => {
                ensure!(event.has_preconditions(), "{object} was deleted without preconditions");
            }
            _ => {}
        }
    }
    let is_duplicate =
        |(object, times): &(&String, &usize)| **times > 1 + deleted_by_others.get(*object).copied().unwrap_or_default();
    let twice: Vec<_> = created.iter().filter(is_duplicate).collect();
    ensure!(twice.is_empty(), "created more than once: {twice:?}");
    ensure!(
        !created.is_empty(),
        "the audit log contains no creation: the audit policy is wrong"
    );
    Ok(())
}
