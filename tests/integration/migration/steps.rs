//! The steps of an upgrade and of the way back, without faults.

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams};
use portreeve_testing::{FaultProxy, Matcher};
use serde_json::{Value, json};

use super::environment::{shared, succeeded};

/// The flags of a migration in small pages that does not wait for other apiservers.
pub(super) const FAST: [&str; 3] = ["migrate", "--switch-delay=0s", "--page-size=7"];

fn with<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    FAST.iter().chain(flags).copied().collect()
}

#[tokio::test]
async fn objects_move_to_the_newest_version_and_back() -> Result<()> {
    let environment = shared().await?;
    let gadgets = environment.gadgets("there-and-back").await?;
    gadgets.create_many(50).await?;
    gadgets.enable().await?;
    let served = "served v1 v2";
    ensure!(gadgets.versions().await? == format!("{served}, storage v1, [\"v1\"]"));

    let (definition, stored) = (gadgets.definition().await?, gadgets.stored().await?);
    let preview = gadgets.succeed(&with(&["--dry-run"])).await?;
    let name = gadgets.name();
    ensure!(
        preview
            == format!(
                "would set the storage version of {name} to v2; it is v1\n\
                 would write up to 50 objects without a change, for storage in v2\n\
                 would set status.storedVersions to [v2]; it is [v1]\n"
            ),
        "{preview}"
    );
    ensure!(
        gadgets.definition().await? == definition,
        "the dry run changed the definition"
    );
    ensure!(gadgets.stored().await? == stored, "the dry run wrote objects");

    let proxy = FaultProxy::start(&environment.plane).await?;
    let writes = proxy.count(Matcher::writes());
    let kubeconfig = proxy.kubeconfig(environment.plane.kubeconfig(), "there-and-back")?;
    let printed = succeeded(&gadgets.run(&kubeconfig, &FAST).await?)?;
    ensure!(
        printed.contains("50 written, 0 stored in v2 before, 0 changed or deleted by others, 0 failed"),
        "{printed}"
    );
    ensure!(gadgets.stored_in().await? == (0, 50));
    ensure!(gadgets.versions().await? == format!("{served}, storage v2, [\"v2\"]"));
    // The switch, its time, each object, and the stored versions.
    ensure!(writes.matched() == 53, "{} writes", writes.matched());
    let object = gadgets.api("v1").get("g-00049").await?;
    ensure!(object.data["spec"] == json!({"size": 49}), "{object:?}");

    let printed = succeeded(&gadgets.run(&kubeconfig, &FAST).await?)?;
    ensure!(
        printed == format!("{name} is stored in v2 only: 50 objects\n"),
        "{printed}"
    );
    ensure!(writes.matched() == 53, "the second run wrote something");

    gadgets.succeed(&with(&["--to=v1"])).await?;
    ensure!(gadgets.stored_in().await? == (50, 0));
    ensure!(gadgets.versions().await? == format!("{served}, storage v1, [\"v1\"]"));
    gadgets.succeed(&["conversion", "disable"]).await?;
    ensure!(gadgets.versions().await? == "served v1, storage v1, [\"v1\"]");
    ensure!(gadgets.definition().await?["spec"]["conversion"] == json!({"strategy": "None"}));
    let object = gadgets.api("v1").get("g-00049").await?;
    ensure!(object.data["spec"] == json!({"size": 49}), "{object:?}");
    Ok(())
}

#[tokio::test]
async fn objects_that_v1_cannot_express_stay_in_v2() -> Result<()> {
    let environment = shared().await?;
    let gadgets = environment.gadgets("inexpressible").await?;
    gadgets.create_many(10).await?;
    gadgets.enable().await?;
    gadgets
        .create("v2", "rich", json!({"capacity": 1, "extra": "x"}))
        .await?;
    gadgets.succeed(&FAST).await?;
    ensure!(gadgets.stored_in().await? == (0, 11));

    let annotation = format!("{}/v2", "inexpressible.example.com");
    for flags in [with(&["--to=v1", "--dry-run"]), with(&["--to=v1"]), with(&["--to=v1"])] {
        let (printed, error) = gadgets.fail(&flags).await?;
        ensure!(printed.contains("v1 cannot express:\n  default/rich\n"), "{printed}");
        ensure!(!printed.contains("would set status"), "{printed}");
        ensure!(error.contains("1 object of") && error.contains(&annotation), "{error}");
    }
    ensure!(gadgets.stored_in().await? == (10, 1));
    ensure!(gadgets.versions().await? == "served v1 v2, storage v1, [\"v2\",\"v1\"]");
    let (_, error) = gadgets.fail(&["conversion", "disable"]).await?;
    ensure!(error.contains("migrate --to=v1"), "{error}");

    // The way out that the error names.
    let dropped = Patch::Merge(json!({"metadata": {"annotations": {annotation: null}}}));
    gadgets
        .api("v1")
        .patch("rich", &PatchParams::default(), &dropped)
        .await?;
    gadgets.succeed(&with(&["--to=v1"])).await?;
    ensure!(gadgets.stored_in().await? == (11, 0));
    ensure!(gadgets.versions().await? == "served v1 v2, storage v1, [\"v1\"]");
    Ok(())
}

/// An object that is stored in v1 from the beginning may have data of v2 too.
#[tokio::test]
async fn v2_is_not_withdrawn_while_it_has_an_effect() -> Result<()> {
    let gadgets = shared().await?.gadgets("in-use").await?;
    gadgets.enable().await?;
    gadgets
        .create("v2", "rich", json!({"capacity": 1, "extra": "x"}))
        .await?;
    ensure!(gadgets.stored_in().await? == (1, 0));
    for command in [&["conversion", "disable"][..], &["migrate", "--to=v1"]] {
        let (printed, _) = gadgets.fail(command).await?;
        ensure!(printed.contains("default/rich"), "{printed}");
    }
    ensure!(gadgets.versions().await?.starts_with("served v1 v2,"));
    gadgets.api("v2").delete("rich", &DeleteParams::default()).await?;
    gadgets.succeed(&["conversion", "disable"]).await?;
    gadgets.succeed(&["conversion", "disable"]).await?;
    ensure!(gadgets.versions().await? == "served v1, storage v1, [\"v1\"]");
    Ok(())
}

/// An apply of the manifest of before would withdraw v2 and store v1 again.
#[tokio::test]
async fn the_former_manifest_cannot_be_applied_again() -> Result<()> {
    let gadgets = shared().await?.gadgets("applied-again").await?;
    gadgets.enable().await?;
    gadgets.succeed(&FAST).await?;
    let before = gadgets.definition().await?;
    let applied: Patch<Value> = Patch::Apply(gadgets.manifest());
    let parameters = PatchParams::apply("kubectl");
    let result: kube::Result<CustomResourceDefinition> = gadgets
        .definitions()
        .patch(&gadgets.name(), &parameters, &applied)
        .await;
    let Err(kube::Error::Api(status)) = result else {
        anyhow::bail!("{result:?}");
    };
    ensure!(
        status.code == 409 && status.message.contains("portreeve-migrate"),
        "{status:?}"
    );
    ensure!(gadgets.definition().await? == before);
    Ok(())
}

#[tokio::test]
async fn a_migration_needs_a_version_that_is_served() -> Result<()> {
    let gadgets = shared().await?.gadgets("not-served").await?;
    for (flags, words) in [
        (
            &[][..],
            "version v2 of gadgets.not-served.example.com is not served: run `kubectl portreeve conversion enable`",
        ),
        (&["--to=v3"], "has no version v3, only v1, v2"),
    ] {
        let (_, error) = gadgets.fail(&with(flags)).await?;
        ensure!(error.contains(words), "{error}");
    }
    Ok(())
}
