//! The webhooks of the example: their decisions, and calls by a real apiserver that authenticates
//! itself as docs/admission.md describes.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, anyhow, ensure};
use data_encoding::BASE64;
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams},
    client::Body,
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use portreeve_reconcile::admission::{Review, Verdict, WebhookHandler, with_defaults};
use portreeve_testing::{Authority, ControlPlane, LIMIT, Namespace, Process, eventually, free_port};
use serde_json::{Value, json, value::to_raw_value};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_portreeve-example");
const NAME: &str = "copies.example.dev";
const KINDS: [&str; 2] = ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
const DOCS: &str = include_str!("../../admission.md");
const OPERATION: &str = include_str!("../../webhook-operation.md");
/// The names that the documentation uses, which differ in the test.
const SERVICE: &str = "portreeve-webhook.portreeve-system.svc";
const FOLDER: &str = "/etc/kubernetes/admission";

fn config_map(name: &str, label: Option<&str>) -> Value {
    let labels = label.map_or_else(|| json!({}), |label| json!({"example.dev/copy-to": label}));
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}})
}

#[test]
fn an_empty_label_names_the_copy_after_the_original() {
    let webhooks = (copy_controller::DESCRIPTOR.webhooks)();
    let WebhookHandler::Default(default) = webhooks[0].handler else {
        panic!("it defaults");
    };
    let defaulted = with_defaults(default, &config_map("a", Some("")));
    assert_eq!(defaulted, config_map("a", Some("a-copy")));
    let unnamed = json!({"metadata": {"generateName": "a-", "labels": {"example.dev/copy-to": ""}}});
    for unchanged in [
        config_map("a", Some("b")),
        config_map("a", None),
        unnamed,
        json!({"metadata": []}),
        Value::Null,
    ] {
        assert_eq!(with_defaults(default, &unchanged), unchanged);
    }
}

#[test]
fn a_label_names_another_config_map() {
    let webhooks = (copy_controller::DESCRIPTOR.webhooks)();
    let WebhookHandler::Validate(validate) = &webhooks[1].handler else {
        panic!("it validates");
    };
    let verdict = |old: Option<&str>, new: Option<&str>| {
        let raw = |label| to_raw_value(&config_map("a", label)).expect("JSON can be encoded");
        let old = old.map(|label| raw(Some(label)));
        validate(&Review {
            old: old.as_deref(),
            new: &raw(new),
            parameters: None,
            now: Timestamp::UNIX_EPOCH,
        })
    };
    for bad in ["a", "", "B", "b_c", "b..c", "b.-c"] {
        let Verdict { errors, warnings } = verdict(None, Some(bad));
        assert_eq!(
            errors[0].to_string(),
            format!("metadata.labels[example.dev/copy-to]: Invalid value: {bad:?}: name another ConfigMap")
        );
        assert_eq!((errors.len(), warnings.len()), (1, 0));
        assert_eq!(verdict(Some(bad), Some(bad)), Verdict::new());
    }
    for good in ["b", "b.c-1", "a-copy"] {
        assert_eq!(verdict(None, Some(good)), Verdict::new());
    }
    for new in [Some("c"), None] {
        let warning = "metadata.labels[example.dev/copy-to]: the copy \"b\" stays and is no longer updated";
        assert_eq!(verdict(Some("b"), new), Verdict::new().warning(warning));
    }
}

#[test]
fn the_documentation_quotes_the_example() {
    let quoted = DOCS.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    for part in quoted.unwrap().trim_end().split("\n\n") {
        assert!(include_str!("../src/webhooks.rs").contains(part), "{part}");
    }
}

/// The documentation uses these names in its steps.
#[test]
fn a_binary_of_its_own_has_names_of_its_own() -> Result<()> {
    let flags = ["webhooks", "--namespace=copies", "--service-account=copy"];
    ensure!(DOCS.contains(&format!("`portreeve-example {}`", flags.join(" "))));
    let output = Command::new(PROGRAM).args(flags).output()?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(output.stdout)?)?;
    for document in documents {
        let name = document["metadata"]["name"].as_str().context("no name")?;
        let service = &document["webhooks"][0]["clientConfig"]["service"];
        let [namespace, host] = ["namespace", "name"].map(|field| service[field].as_str().unwrap_or_default());
        ensure!(
            namespace == "copies" && DOCS.contains(&format!("`{host}`")),
            "{service}"
        );
        ensure!(DOCS.contains(&format!("={host}.copies.svc\n")), "{service}");
        let kind = document["kind"].as_str().context("no kind")?.to_lowercase();
        ensure!(DOCS.contains(&format!("{kind}s/{name}")), "{kind} {name}");
    }
    Ok(())
}

/// Returns the YAML block of the documentation that contains a text.
fn documented(part: &str) -> Result<String> {
    let mut blocks = OPERATION.split("```yaml\n").skip(1);
    let block = blocks.find_map(|block| block.split("```").next().filter(|block| block.contains(part)));
    Ok(block
        .with_context(|| format!("no YAML block contains {part}"))?
        .to_owned())
}

/// The apiserver, and the certificates of the daemon that it calls.
struct Fixture {
    files: TempDir,
    plane: ControlPlane,
    /// The CA of the daemon's certificate, in base64.
    ca: String,
    port: u16,
}

impl Fixture {
    async fn start() -> Result<Self> {
        let (files, port) = (tempfile::tempdir()?, free_port()?);
        let (servers, clients) = (Authority::new()?, Authority::new()?);
        let (server, client) = (
            servers.server_certificate()?,
            clients.client_certificate("kube-apiserver", "webhook-clients")?,
        );
        let folder = files.path().to_string_lossy();
        let adapted = |text: &str| {
            let service = format!("localhost:{port}");
            text.replace(SERVICE, &service).replace(FOLDER, &folder)
        };
        for (name, text) in [
            ("tls.crt", server.certificate),
            ("tls.key", server.key),
            ("ca.crt", clients.pem()),
            ("client.crt", client.certificate),
            ("client.key", client.key),
            ("webhooks.kubeconfig", adapted(&documented("kind: Config\n")?)),
            ("admission.yaml", adapted(&documented("kind: AdmissionConfiguration")?)),
        ] {
            fs::write(files.path().join(name), text).with_context(|| format!("failed to write {name}"))?;
        }
        let flag = format!("--admission-control-config-file={folder}/admission.yaml");
        Ok(Self {
            plane: ControlPlane::builder().apiserver_arg(flag).start().await?,
            files,
            ca: BASE64.encode(servers.pem().as_bytes()),
            port,
        })
    }

    /// Starts a daemon that serves the webhooks to clients with a certificate.
    fn serve(&self, port: u16) -> Result<Process> {
        let folder = self.files.path().display();
        let args = [
            format!("--kubeconfig={}", self.plane.kubeconfig().display()),
            "--secure-port=0".to_owned(),
            format!("--webhook-port={port}"),
            format!("--webhook-client-ca-file={folder}/ca.crt"),
            format!("--tls-cert-file={folder}/tls.crt"),
            format!("--tls-private-key-file={folder}/tls.key"),
        ];
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.plane
            .spawn(&format!("example-{port}"), Path::new(PROGRAM), &args, &[])
    }

    /// Creates the printed configurations, changed so that they reach the daemon and a failed call
    /// fails the request.
    async fn configure(&self) -> Result<()> {
        let printed = Command::new(PROGRAM).arg("webhooks").output()?;
        ensure!(printed.status.success(), "{printed:?}");
        let documents: Vec<Value> = serde_saphyr::from_multiple(&String::from_utf8(printed.stdout)?)?;
        ensure!(documents.len() == 2, "{documents:#?}");
        let [mutating, validating] = configurations(&self.plane.client()?);
        for mut document in documents {
            let webhook = &mut document["webhooks"][0];
            let path = webhook["clientConfig"]["service"]["path"].as_str().context("a path")?;
            let url = format!("https://localhost:{}{path}", self.port);
            webhook["clientConfig"] = json!({"url": url, "caBundle": self.ca});
            webhook["failurePolicy"] = "Fail".into();
            let is_mutating = document["kind"] == KINDS[0];
            let api = if is_mutating { &mutating } else { &validating };
            api.create(&PostParams::default(), &serde_json::from_value(document)?)
                .await?;
        }
        Ok(())
    }

    /// Fails calls for Secrets in several ways. The documentation has the messages.
    async fn fail_calls(&self, namespace: &Namespace) -> Result<()> {
        let (unauthenticated, closed) = (free_port()?, free_port()?);
        let _standby = self.serve(unauthenticated)?;
        let unknown = BASE64.encode(Authority::new()?.pem().as_bytes());
        let [_, configurations] = configurations(&self.plane.client()?);
        let secrets = namespace.api::<Secret>();
        for (message, port, name, ca) in [
            (
                "the server rejected our request for an unknown reason",
                self.port,
                NAME,
                &self.ca,
            ),
            (
                "the server could not find the requested resource",
                self.port,
                "other.example.dev",
                &self.ca,
            ),
            ("present a client certificate", unauthenticated, NAME, &self.ca),
            (
                "x509: certificate signed by unknown authority",
                self.port,
                NAME,
                &unknown,
            ),
            ("connection refused", closed, NAME, &self.ca),
        ] {
            ensure!(
                OPERATION.contains(&format!("`{message}`")),
                "webhook-operation.md lacks {message:?}"
            );
            let url = format!("https://localhost:{port}/validate/{name}");
            let (params, configuration) = (PatchParams::apply("test").force(), Patch::Apply(failing(&url, ca)));
            configurations.patch("failing", &params, &configuration).await?;
            let failed = || async {
                let secret = serde_json::from_value(json!({"metadata": {"name": "secret"}}))?;
                match secrets.create(&dry_run(), &secret).await {
                    Err(kube::Error::Api(status)) if status.message.contains(message) => Ok(()),
                    other => Err(anyhow!("{other:?}")),
                }
            };
            eventually(LIMIT, message, failed).await?;
        }
        Ok(())
    }
}

fn configurations(client: &Client) -> [Api<DynamicObject>; 2] {
    KINDS.map(|kind| {
        let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        Api::all_with(client.clone(), &ApiResource::from_gvk(&kind))
    })
}

/// Returns the configuration of a webhook that is called for new Secrets.
fn failing(url: &str, ca: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": KINDS[1],
        "metadata": {"name": "failing"},
        "webhooks": [{
            "name": "failing.example.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": url, "caBundle": ca},
            "rules": [{
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["secrets"],
            }],
            "sideEffects": "None",
        }],
    })
}

fn dry_run() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

async fn post(maps: &Api<ConfigMap>, map: Value, params: &PostParams) -> kube::Result<ConfigMap> {
    let map = serde_json::from_value(map).map_err(kube::Error::SerdeError)?;
    maps.create(params, &map).await
}

#[tokio::test]
async fn a_real_apiserver_calls_the_webhooks_for_objects_with_the_label() -> Result<()> {
    let fixture = Fixture::start().await?;
    let daemon = fixture.serve(fixture.port)?;
    fixture.configure().await?;
    let namespace = fixture.plane.namespace("webhooks").await?;
    let maps = namespace.api::<ConfigMap>();

    // The apiserver calls a webhook a moment after its configuration was created.
    let rejected = || async {
        match post(&maps, config_map("self", Some("self")), &dry_run()).await {
            Err(kube::Error::Api(status)) if status.message.contains("name another ConfigMap") => Ok(status),
            other => Err(format!("{other:?}")),
        }
    };
    let status = eventually(LIMIT, "the validation", rejected).await?;
    let causes = status.details.context("the denial has no details")?.causes;
    ensure!(causes[0].field == "metadata.labels[example.dev/copy-to]", "{causes:?}");
    let defaulted = || async {
        let created = post(&maps, config_map("original", Some("")), &dry_run()).await?;
        let label = created
            .metadata
            .labels
            .unwrap_or_default()
            .remove("example.dev/copy-to");
        ensure!(label.as_deref() == Some("original-copy"), "{label:?}");
        Ok(())
    };
    eventually(LIMIT, "the default", defaulted).await?;

    post(&maps, config_map("original", Some("")), &PostParams::default()).await?;
    let copied = || async { maps.get_opt("original-copy").await.ok().flatten() };
    eventually(LIMIT, "the copy", copied).await?;
    let path = format!("/api/v1/namespaces/{}/configmaps/original", namespace.name());
    let unlabelled = json!({"metadata": {"labels": {"example.dev/copy-to": null}}});
    let request = Request::patch(path)
        .header("Content-Type", "application/merge-patch+json")
        .body(Body::from(serde_json::to_vec(&unlabelled)?))?;
    let response = namespace.client().send(request).await?;
    let warning = response.headers().get("warning");
    let warning = warning.context("the update has no warning")?;
    ensure!(warning.to_str()?.contains("\\\"original-copy\\\" stays"), "{warning:?}");

    fixture.fail_calls(&namespace).await?;
    drop(daemon);
    outage(&fixture.plane.client()?, &maps).await
}

/// What happens while the daemon is away.
async fn outage(client: &Client, maps: &Api<ConfigMap>) -> Result<()> {
    // Without the label, an object does not depend on the webhooks.
    let stored = PostParams::default();
    post(maps, config_map("plain", None), &stored).await?;
    let failed = post(maps, config_map("failed", Some("")), &stored).await;
    let error = failed.err().context("the call did not fail")?;
    ensure!(error.to_string().contains("failed calling webhook"), "{error}");

    // With the policies that are printed, all objects are stored, and the apiserver counts them.
    let policy = json!([{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore"}]);
    let policy: Patch<()> = Patch::Json(serde_json::from_value(policy)?);
    for configurations in configurations(client) {
        for configuration in configurations.list_metadata(&ListParams::default()).await?.items {
            let name = configuration.name_any();
            configurations.patch(&name, &PatchParams::default(), &policy).await?;
        }
    }
    let ignored = || post(maps, config_map("ignored", Some("self")), &stored);
    eventually(LIMIT, "a failure to be ignored", ignored).await?;
    let request = Request::get("/metrics").body(Vec::new())?;
    let metrics = client.request_text(request).await?;
    for kind in ["admit", "validating"] {
        let series = format!(r#"apiserver_admission_webhook_fail_open_count{{name="{NAME}",type="{kind}"}} "#);
        ensure!(metrics.contains(&series), "{series} is missing");
    }
    Ok(())
}
