//! The two kinds of schedules, for tests that run with both.

use anyhow::{Context, Result};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, PostParams},
};
use portreeve_api::{CRONTABS, Resource};
use portreeve_testing::Namespace;
use serde_json::{Value, json};

pub(crate) const CRON_JOBS: Resource = Resource::namespaced("batch", "v1", "CronJob", "cronjobs");

/// A kind of schedule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    CronTab,
    CronJob,
}

impl Kind {
    pub(crate) const BOTH: [Self; 2] = [Self::CronTab, Self::CronJob];

    pub(crate) fn resource(self) -> Resource {
        match self {
            Self::CronTab => CRONTABS,
            Self::CronJob => CRON_JOBS,
        }
    }

    /// Returns a client for the objects of this kind in a namespace.
    pub(crate) fn objects(self, namespace: &Namespace) -> Api<DynamicObject> {
        let resource = self.resource();
        let api_resource = ApiResource {
            group: resource.group.to_string(),
            version: resource.version.to_string(),
            api_version: resource.api_version(),
            kind: resource.kind.to_string(),
            plural: resource.plural.to_string(),
        };
        Api::namespaced_with(namespace.client().clone(), namespace.name(), &api_resource)
    }

    /// Creates an object of this kind.
    pub(crate) async fn create(
        self,
        namespace: &Namespace,
        name: &str,
        schedule: &str,
        more: &Value,
    ) -> Result<DynamicObject> {
        let object = serde_json::from_value(self.manifest(name, schedule, more))?;
        let created = self.objects(namespace).create(&PostParams::default(), &object).await;
        created.with_context(|| format!("failed to create {self:?} {name}"))
    }

    /// Returns an object name for tests that have one object of each kind.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CronTab => "tab",
            Self::CronJob => "job",
        }
    }

    /// Returns a manifest with the schedule and the additional fields `more` of the spec.
    pub(crate) fn manifest(self, name: &str, schedule: &str, more: &Value) -> Value {
        let pod = json!({"containers": [{"name": "main", "image": "example.com/backup:9"}], "restartPolicy": "Never"});
        let template = match self {
            Self::CronTab => pod,
            Self::CronJob => json!({"spec": {"template": {"spec": pod}}}),
        };
        let mut spec = json!({"schedule": schedule, "jobTemplate": template});
        for (field, value) in more.as_object().into_iter().flatten() {
            spec[field] = value.clone();
        }
        let resource = self.resource();
        json!({
            "apiVersion": resource.api_version(),
            "kind": resource.kind,
            "metadata": {"name": name},
            "spec": spec,
        })
    }
}
