//! `kubectl portreeve conversion disable`.

use serde_json::json;

use super::super::{
    Error,
    cluster::Cluster,
    definition::Definition,
    migrate::{expressible, print},
    objects::{Pages, find},
};

/// The number of objects in a page of the list.
const PAGE_SIZE: u32 = 500;

/// Runs `kubectl portreeve conversion disable`.
pub(super) async fn disable(cluster: &Cluster) -> Result<(), Error> {
    let definition = cluster.first_read().await?;
    check(&definition)?;
    let (storage, newest) = (definition.storage(), definition.newest());
    // What an object has in the newest version only would have no effect any more.
    let newer = definition.annotations_of_newer(storage);
    let pages = Pages::new(cluster, &definition, storage, PAGE_SIZE);
    let (inexpressible, _) = find(pages, |object| object.has_any(&newer)).await?;
    expressible(&definition, storage, &inexpressible)?;

    // Each apiserver sees the two changes in this order. So none ever serves the version without a
    // conversion, which would drop fields.
    let withdrawn = cluster.change(|definition| {
        check(definition)?;
        Ok(definition.serve(newest, false))
    });
    withdrawn.await?;
    let removed = cluster.change(|definition| {
        check(definition)?;
        Ok(definition.convert(&json!({"strategy": "None"})))
    });
    removed.await?;
    print(&format!(
        "{newest} of {} is not served, and nothing converts its objects",
        cluster.name
    ))
}

/// Checks that every object is stored in one version, which is not the newest.
fn check(definition: &Definition) -> Result<(), Error> {
    let (storage, newest) = (definition.storage(), definition.newest());
    let name = || definition.name.clone();
    if !definition.stores_only(storage) || storage == newest {
        let older = definition.versions.iter().find(|version| version.name != newest);
        let Some(older) = older.filter(|_| definition.versions.len() > 1) else {
            return Err(Error::NewestStored {
                name: name(),
                version: newest.to_owned(),
            });
        };
        let to = if storage == newest { &older.name } else { storage };
        return Err(Error::StillStored {
            name: name(),
            stored: definition.stored_versions.join(" and "),
            to: to.to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::super::definition::tests::definition, *};

    #[test]
    fn every_object_must_be_stored_in_an_older_version() {
        let error = |versions: &[&str], stored: &[&str]| {
            let result = check(&definition(versions, stored));
            result.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(error(&["v1", "v2"], &["v1"]), "");
        let mixed = error(&["v1", "v2"], &["v1", "v2"]);
        assert!(
            mixed.contains("v1 and v2") && mixed.contains("migrate --to=v1"),
            "{mixed}"
        );
        let newest = error(&["v2", "v1"], &["v2"]);
        assert!(newest.contains("migrate --to=v1"), "{newest}");
        let only = error(&["v1"], &["v1"]);
        assert!(only.contains("its newest version"), "{only}");
    }
}
