//! Tests the columns of `kubectl get`.

use anyhow::{Result, ensure};
use http::Method;
use kube::api::{Patch, PatchParams};
use portreeve_crontab::api::CRONTABS;
use serde_json::{Value, json};

use crate::{fixture, spec};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

#[tokio::test]
async fn columns_show_the_last_and_the_next_run() -> Result<()> {
    let fixture = fixture("columns").await?;
    fixture.create("new", &spec(json!({}))).await?;
    fixture
        .create("old", &spec(json!({"timeZone": "Europe/Zurich", "suspend": true})))
        .await?;
    let status = json!({"activeCount": 2, "lastScheduleTime": "2026-01-01T00:00:00Z", "nextScheduleTime": "2999-12-31T23:59:00Z"});
    fixture
        .crontabs()
        .patch_status("old", &PatchParams::default(), &Patch::Merge(json!({"status": status})))
        .await?;

    let path = CRONTABS.collection_path(Some(fixture.namespace.name()));
    let table = fixture.request(Method::GET, &path, TABLE, None).await?;
    let mut names = Vec::new();
    let mut rows = vec![Vec::new(), Vec::new()];
    for (index, column) in table["columnDefinitions"].as_array().into_iter().flatten().enumerate() {
        ensure!(column["priority"] == 0, "{column} is hidden");
        names.push(column["name"].clone());
        for (row, cells) in rows.iter_mut().enumerate() {
            cells.push(table["rows"][row]["cells"][index].clone());
        }
    }
    ensure!(
        json!(names)
            == json!([
                "Name", "Schedule", "Zone", "Suspend", "Active", "Last Run", "Next Run", "Age"
            ])
    );
    let age = |cells: &[Value]| {
        cells
            .last()
            .is_some_and(|age| age.as_str().is_some_and(|age| age.ends_with('s')))
    };
    ensure!(age(&rows[0]) && age(&rows[1]), "{rows:?}");
    ensure!(
        json!(rows[0][..7]) == json!(["new", "@daily", null, false, null, null, null]),
        "{rows:?}"
    );
    ensure!(
        json!(rows[1][..5]) == json!(["old", "@daily", "Europe/Zurich", true, 2]),
        "{rows:?}"
    );
    ensure!(rows[1][6] == "2999-12-31T23:59:00Z", "{rows:?}");
    let ago = rows[1][5].as_str().unwrap_or_default();
    ensure!(ago.starts_with(|digit: char| digit.is_ascii_digit()), "{rows:?}");
    Ok(())
}
