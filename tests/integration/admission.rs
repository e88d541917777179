//! Which objects the apiserver accepts, and which place rejects the others: the CRD, the admission
//! policies that `portreeve policies` prints, the webhooks, or a quota.

mod bounds;
pub(crate) mod environment;
mod generated;
mod installation;
mod limits;
mod names;
mod offline;
mod rows;
mod table;
mod versions;

use anyhow::{Result, ensure};

use self::{
    environment::environment,
    table::{Case, check},
};

/// Returns the whole table: the rows that are written by hand, and the bounds of every field.
fn table() -> Result<Vec<Case>> {
    let mut cases = rows::rows();
    cases.extend(names::rows());
    cases.extend(bounds::cases()?);
    Ok(cases)
}

#[tokio::test]
async fn each_bad_object_is_rejected_by_its_place_with_the_path_of_the_field() -> Result<()> {
    let environment = environment().await?;
    let client = environment.client()?;
    let mut failures = Vec::new();
    for case in table()? {
        if let Err(error) = check(environment, &client, &case).await {
            failures.push(format!("{error:#}"));
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}
