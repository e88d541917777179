//! A control plane with a conversion webhook, definitions with two versions, and the commands.

use std::{path::Path, process::Output, thread};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams},
};
use portreeve_api::{LazyObject, Resource};
use portreeve_reconcile::{
    Descriptor,
    admission::{ConversionError, Webhook},
};
use portreeve_testing::{ControlPlane, PooledPlane, Process, eventually, free_port};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, oneshot};

use crate::{
    controllers::{descriptor, idle, in_namespace, one_flag},
    fixtures::{
        LIMIT,
        daemon::{PLUGIN, run_plugin},
        in_process::InProcess,
        webhooks::certificate_files,
    },
};

/// Any resource: the webhooks convert all kinds.
const GADGETS: Resource = Resource::namespaced("gadgets.example.com", "v1", "Gadget", "gadgets");

/// The name of the file with the CA of the webhooks.
const CA_FILE: &str = "conversion-ca.crt";

/// Serves a conversion that loses nothing, and one that loses `spec.capacity`.
const CONVERTER: &[Descriptor] = &[Descriptor {
    webhooks: || {
        vec![
            Webhook::converting("lossless.gadgets.example.com", GADGETS, |object, desired| {
                convert_by(convert, object, desired)
            }),
            Webhook::converting("lossy.gadgets.example.com", GADGETS, |object, desired| {
                convert_by(lose, object, desired)
            }),
        ]
    },
    ..descriptor("gadget-controller", one_flag, |ctx| idle(ctx, "Gadget"))
}];

/// The name of an object that cannot be converted.
pub(crate) const UNCONVERTIBLE: &str = "unconvertible";

/// Converts by a function on decoded objects.
fn convert_by(
    function: fn(Value, &str) -> Result<Value, ConversionError>,
    object: &mut LazyObject<'_>,
    desired: &str,
) -> Result<(), ConversionError> {
    let converted = function(json!(object), desired)?.to_string();
    let converted = serde_json::from_str::<LazyObject<'_>>(&converted);
    let converted = converted.map_err(|error| ConversionError::Other(error.into()))?;
    *object = converted.into_owned();
    Ok(())
}

/// Renames `spec.size` of v1 to `spec.capacity` of v2. v1 has an annotation with `spec.extra`.
fn convert(mut object: Value, desired: &str) -> Result<Value, ConversionError> {
    let split = desired.split_once('/');
    let (group, version) = split.ok_or_else(|| ConversionError::Other("no group".into()))?;
    if object["metadata"]["name"] == UNCONVERTIBLE {
        return Err(ConversionError::Other("this object cannot be converted".into()));
    }
    let annotation = format!("{group}/v2");
    let mut extra = Value::Null;
    if let Some(spec) = object["spec"].as_object_mut() {
        let (from, to) = if version == "v2" {
            ("size", "capacity")
        } else {
            ("capacity", "size")
        };
        if let Some(value) = spec.remove(from) {
            spec.insert(to.to_owned(), value);
        }
        extra = spec.remove("extra").unwrap_or_default();
    }
    if let Value::String(extra) = extra {
        object["metadata"]["annotations"][&annotation] = extra.into();
    } else if version == "v2"
        && let Some(annotations) = object["metadata"]["annotations"].as_object_mut()
        && let Some(extra) = annotations.remove(&annotation)
    {
        object["spec"]["extra"] = extra;
    }
    Ok(object)
}

fn lose(object: Value, desired: &str) -> Result<Value, ConversionError> {
    let mut object = convert(object, desired)?;
    if desired.ends_with("/v1") {
        object["spec"] = json!({});
    }
    Ok(object)
}

/// A control plane, and the port of its conversion webhooks.
pub(crate) struct Environment {
    pub(crate) plane: PooledPlane,
    port: u16,
}

/// Returns the environment that all tests share. Each has a definition of its own.
pub(crate) async fn shared() -> Result<&'static Environment> {
    static SHARED: OnceCell<Environment> = OnceCell::const_new();
    SHARED.get_or_try_init(Environment::start).await
}

impl Environment {
    /// Starts both. The webhooks serve until the test binary ends.
    pub(crate) async fn start() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let (certificate, key) = certificate_files(&plane, "conversion")?;
        std::fs::write(plane.folder().join(CA_FILE), plane.authority().pem())?;
        let port = free_port()?;
        let flags = [
            format!("--tls-cert-file={}", certificate.display()),
            format!("--tls-private-key-file={}", key.display()),
            format!("--webhook-port={port}"),
            in_namespace("default"),
        ];
        let (started, is_started) = oneshot::channel();
        let kubeconfig = plane.kubeconfig().to_owned();
        // Each test has a runtime of its own, and the webhooks outlive it.
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async {
                let flags: Vec<_> = flags.iter().map(String::as_str).collect();
                let clock = std::sync::Arc::new(portreeve_reconcile::SystemClock);
                let daemon = InProcess::start_as(&kubeconfig, clock, CONVERTER, &flags).await;
                let (daemon, result) = match daemon {
                    Ok(daemon) => (Some(daemon), Ok(())),
                    Err(error) => (None, Err(error)),
                };
                started.send(result).ok();
                if daemon.is_some() {
                    std::future::pending::<()>().await;
                }
            });
        });
        is_started.await.context("the webhooks did not start")??;
        Ok(Self { plane, port })
    }

    /// Returns a definition that does not exist yet.
    pub(crate) fn uninstalled(&self, name: &str) -> Result<Gadgets<'_>> {
        Ok(Gadgets {
            environment: self,
            client: self.plane.client()?,
            group: format!("{name}.example.com"),
        })
    }

    /// Installs a definition whose versions are v1, which is stored, and v2, which is not served.
    pub(crate) async fn gadgets(&self, name: &str) -> Result<Gadgets<'_>> {
        let gadgets = self.uninstalled(name)?;
        let parameters = PatchParams::apply("kubectl");
        let applied = Patch::Apply(gadgets.manifest());
        gadgets
            .definitions()
            .patch(&gadgets.name(), &parameters, &applied)
            .await?;
        gadgets.wait_until_served("v1").await?;
        Ok(gadgets)
    }
}

/// A definition.
pub(crate) struct Gadgets<'a> {
    environment: &'a Environment,
    pub(crate) client: Client,
    group: String,
}

impl Gadgets<'_> {
    /// Returns the name of the definition.
    pub(crate) fn name(&self) -> String {
        format!("gadgets.{}", self.group)
    }

    /// Returns the manifest of the definition.
    pub(crate) fn manifest(&self) -> Value {
        let version = |name: &str, is_first: bool, spec: Value| {
            let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": spec}}});
            json!({"name": name, "served": is_first, "storage": is_first, "schema": {"openAPIV3Schema": schema}})
        };
        let (integer, text) = (json!({"type": "integer"}), json!({"type": "string"}));
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.name()},
            "spec": {
                "group": self.group,
                "names": {"kind": "Gadget", "listKind": "GadgetList", "singular": "gadget", "plural": "gadgets"},
                "scope": "Namespaced",
                "conversion": {"strategy": "None"},
                "versions": [
                    version("v1", true, json!({"size": integer})),
                    version("v2", false, json!({"capacity": integer, "extra": text})),
                ],
            },
        })
    }

    pub(crate) fn definitions(&self) -> Api<CustomResourceDefinition> {
        Api::all(self.client.clone())
    }

    /// Reads the definition.
    pub(crate) async fn definition(&self) -> Result<Value> {
        Ok(json!(self.definitions().get(&self.name()).await?))
    }

    /// Returns which versions are served, which one is stored, and `status.storedVersions`.
    pub(crate) async fn versions(&self) -> Result<String> {
        let definition = self.definition().await?;
        let versions = definition["spec"]["versions"].as_array().context("no versions")?;
        let names = |field: &str| {
            let chosen = versions.iter().filter(|version| version[field] == true);
            let names: Vec<_> = chosen.filter_map(|version| version["name"].as_str()).collect();
            names.join(" ")
        };
        let stored = &definition["status"]["storedVersions"];
        Ok(format!(
            "served {}, storage {}, {stored}",
            names("served"),
            names("storage")
        ))
    }

    fn resource(&self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.clone(),
            version: version.to_owned(),
            api_version: format!("{}/{version}", self.group),
            kind: "Gadget".to_owned(),
            plural: "gadgets".to_owned(),
        }
    }

    /// Returns a client for the objects in a version.
    pub(crate) fn api(&self, version: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), "default", &self.resource(version))
    }

    pub(crate) async fn wait_until_served(&self, version: &str) -> Result<()> {
        let api = self.api(version);
        let all = kube::api::ListParams::default().limit(1);
        eventually(LIMIT, &format!("{version} to be served"), || api.list(&all)).await?;
        Ok(())
    }

    /// Creates an object with this spec.
    pub(crate) async fn create(&self, version: &str, name: &str, spec: Value) -> Result<()> {
        let object = json!({
            "apiVersion": format!("{}/{version}", self.group),
            "kind": "Gadget",
            "metadata": {"name": name},
            "spec": spec,
        });
        let object = serde_json::from_value(object)?;
        self.api(version).create(&PostParams::default(), &object).await?;
        Ok(())
    }

    /// Creates objects g-00000, g-00001 and so on in v1.
    pub(crate) async fn create_many(&self, count: u32) -> Result<()> {
        let creates = (0..count).map(|number| async move {
            let name = format!("g-{number:05}");
            self.create("v1", &name, json!({"size": number})).await
        });
        stream::iter(creates).buffer_unordered(16).try_collect::<()>().await
    }

    /// Returns the objects in etcd.
    pub(crate) async fn stored(&self) -> Result<Vec<Value>> {
        let path = format!("{}/gadgets/", self.group);
        self.environment.plane.stored(&path).await
    }

    /// Returns the numbers of objects that are stored in v1 and in v2.
    pub(crate) async fn stored_in(&self) -> Result<(usize, usize)> {
        let stored = self.stored().await?;
        let count = |version: &str| {
            let version = format!("{}/{version}", self.group);
            stored.iter().filter(|object| object["apiVersion"] == *version).count()
        };
        Ok((count("v1"), count("v2")))
    }

    /// Returns the flags for the lossless conversion webhook and its CA.
    pub(crate) fn webhook(&self) -> [String; 2] {
        self.webhook_at("lossless")
    }

    /// Returns the flags for one of the conversion webhooks and its CA.
    pub(crate) fn webhook_at(&self, name: &str) -> [String; 2] {
        let Environment { plane, port } = self.environment;
        [
            format!("--url=https://localhost:{port}/convert/{name}.gadgets.example.com"),
            format!("--ca-file={}", plane.folder().join(CA_FILE).display()),
        ]
    }

    /// Serves v2.
    pub(crate) async fn enable(&self) -> Result<()> {
        let flags = self.webhook();
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        self.succeed(&[&["conversion", "enable"], &flags[..]].concat()).await?;
        Ok(())
    }

    /// Runs a command that succeeds, and returns its standard output.
    pub(crate) async fn succeed(&self, args: &[&str]) -> Result<String> {
        let output = self.run(self.environment.plane.kubeconfig(), args).await?;
        succeeded(&output)
    }

    /// Runs a command that fails, and returns its standard output and its error.
    pub(crate) async fn fail(&self, args: &[&str]) -> Result<(String, String)> {
        let output = self.run(self.environment.plane.kubeconfig(), args).await?;
        failed(&output)
    }

    /// Runs a command with this kubeconfig to its end.
    pub(crate) async fn run(&self, kubeconfig: &Path, args: &[&str]) -> Result<Output> {
        let args = self.args(kubeconfig, args);
        let end = tokio::task::spawn_blocking(move || run_plugin(&args.iter().map(String::as_str).collect::<Vec<_>>()));
        end.await?
    }

    /// Starts a command with this kubeconfig.
    pub(crate) fn spawn(&self, kubeconfig: &Path, args: &[&str]) -> Result<Process> {
        let args = self.args(kubeconfig, args);
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        self.environment.plane.spawn(&self.group, &PLUGIN, &args, &[])
    }

    fn args(&self, kubeconfig: &Path, args: &[&str]) -> Vec<String> {
        let mut args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
        args.push(format!("--crd={}", self.name()));
        args.push(format!("--kubeconfig={}", kubeconfig.display()));
        args
    }
}

/// Returns the standard output of a command that succeeded.
pub(crate) fn succeeded(output: &Output) -> Result<String> {
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}", output.status);
    Ok(String::from_utf8(output.stdout.clone())?)
}

/// Returns the standard output and the error of a command that failed.
pub(crate) fn failed(output: &Output) -> Result<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.code() == Some(1), "{}: {printed}{errors}", output.status);
    let error = errors.lines().last().context("no error")?;
    ensure!(error.starts_with("error: "), "{errors}");
    Ok((printed, errors))
}
