//! cert-manager in the place of the leader: the whole chart with `servingCertificate.certManager`,
//! the definition of Certificates, and cert-manager's own cainjector.
//!
//! The daemon has the arguments and the account of the chart's Deployment. Only the issuer is
//! missing: the tests write the Secret of the Certificate, as cert-manager does.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

use anyhow::{Context, Result, anyhow, ensure};
use data_encoding::BASE64;
use http::StatusCode;
use kube::{Client, api::PatchParams};
use portreeve_crontab::api::CRONTABS;
use portreeve_testing::{Authority, ControlPlane, PooledPlane, Process, Signal, eventually, free_port};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::manifests::{
    Objects as ChartObjects, chart,
    webhooks::{CERT_MANAGER, ENABLED},
};
use crate::{
    certificates::{
        Objects,
        webhooks::{Bundles, CONVERTED, UNCONVERTED},
    },
    fixtures::{
        LIMIT,
        admin::{Admin, certificates},
        daemon::Daemon,
        manifests,
        repository::printed_folder,
        webhooks::{create, crontab, install_definitions},
    },
};

const NAMESPACE: &str = "portreeve-system";
const CONFIGURATIONS: [&str; 2] = [
    "mutatingwebhookconfigurations/portreeve-webhooks.portreeve-system.portreeve",
    "validatingwebhookconfigurations/portreeve-webhooks.portreeve-system.portreeve",
];

/// Returns the folder of the cainjector and of the definition. Builds them once if
/// `make cainjector` has not.
fn tools() -> Result<&'static Path> {
    static TOOLS: LazyLock<Result<PathBuf>> = LazyLock::new(|| printed_folder("hack/cainjector/build"));
    TOOLS.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// The chart on a control plane. Neither cert-manager nor a daemon runs yet.
struct Installation {
    plane: PooledPlane,
    client: Client,
    bundles: Bundles,
    objects: ChartObjects,
    kubeconfig: PathBuf,
    /// The listener of the webhooks.
    webhooks: Admin,
}

impl Installation {
    async fn new() -> Result<Self> {
        let plane = ControlPlane::pooled().await?;
        let client = plane.client()?;
        Objects::new(&client).create_namespace().await?;
        install_definitions(&client).await?;
        let webhooks = Admin { port: free_port()? };
        let port = format!("webhooks.port={}", webhooks.port);
        let mut objects = chart(
            "portreeve",
            NAMESPACE,
            &[&[ENABLED, &*port], &CERT_MANAGER[..]].concat(),
        )?;
        redirect(&mut objects, webhooks.port)?;
        install(&client, &objects).await?;
        Ok(Self {
            bundles: Bundles::new(client.clone()),
            kubeconfig: plane
                .service_account_kubeconfig(NAMESPACE, "portreeve", Vec::new())
                .await?,
            plane,
            client,
            objects,
            webhooks,
        })
    }

    async fn start_daemon(&self) -> Result<Daemon> {
        let container = &self.objects["Deployment portreeve"]["spec"]["template"]["spec"]["containers"][0];
        let args = container["args"].as_array().context("the container has no arguments")?;
        let args: Vec<_> = args.iter().filter_map(Value::as_str).collect();
        Daemon::start_closed(&self.plane, &self.kubeconfig, "daemon", &args).await
    }

    fn start_cainjector(&self) -> Result<Process> {
        let kubeconfig = self.plane.kubeconfig().display().to_string();
        let program = tools()?.join("cainjector");
        self.plane
            .spawn("cainjector", &program, &[], &[("KUBECONFIG", &kubeconfig)])
    }

    /// Writes the Secret of the Certificate, as cert-manager does for an issuer with this CA.
    async fn issue(&self, authority: &Authority) -> Result<()> {
        let certificate = &self.objects["Certificate portreeve-serving"];
        let names = certificate["spec"]["dnsNames"].as_array().context("no names")?;
        let issued = authority.server_certificate_for(names.iter().filter_map(Value::as_str))?;
        let encode = |text: &str| BASE64.encode(text.as_bytes());
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": certificate["spec"]["secretName"],
                "namespace": NAMESPACE,
                "annotations": {"cert-manager.io/certificate-name": certificate["metadata"]["name"]},
            },
            "type": "kubernetes.io/tls",
            "data": {
                "ca.crt": encode(&authority.pem()),
                "tls.crt": encode(&issued.certificate),
                "tls.key": encode(&issued.key),
            },
        });
        let parameters = PatchParams::apply("cert-manager-certificates-issuing").force();
        manifests::apply(&self.client, &secret, None, &parameters).await?;
        Ok(())
    }

    /// Waits until every bundle of both configurations has exactly these CAs.
    async fn wait_for_bundles(&self, authorities: &[&Authority]) -> Result<()> {
        for location in CONFIGURATIONS {
            self.wait_for_bundles_of(location, authorities).await?;
        }
        Ok(())
    }

    async fn wait_for_bundles_of(&self, location: &str, authorities: &[&Authority]) -> Result<()> {
        let expected: Vec<_> = authorities.iter().map(|authority| authority.der()).collect();
        eventually(LIMIT, &format!("{} CAs in {location}", expected.len()), || async {
            let bundles = self.bundles.read(location).await?;
            ensure!(!bundles.is_empty(), "there are no webhooks");
            for bundle in bundles {
                ensure!(certificates(&bundle)? == expected, "{bundle}");
            }
            anyhow::Ok(())
        })
        .await
    }

    /// Writes a CronTab with this schedule, and returns the status and the message.
    async fn write(&self, schedule: &str) -> Result<(StatusCode, String)> {
        let crontab = crontab("a", json!({"schedule": schedule}));
        let response = create(&self.client, &CRONTABS, "default", "?dryRun=All", &crontab).await?;
        let message = response.message().to_owned();
        Ok((response.status, message))
    }

    /// The webhooks fail closed, so each write needs a call.
    async fn ensure_checked(&self) -> Result<()> {
        let (status, message) = self.write("0 8 * * *").await?;
        ensure!(status == StatusCode::CREATED, "{status}: {message}");
        let (status, message) = self.write("61 * * * *").await?;
        ensure!(status == StatusCode::UNPROCESSABLE_ENTITY, "{status}: {message}");
        ensure!(message.contains("denied the request"), "{message}");
        Ok(())
    }

    async fn wait_until_checked(&self) -> Result<()> {
        eventually(LIMIT, "CronTabs to be checked", || self.ensure_checked()).await
    }

    /// Connects to the webhooks as the apiserver does: with the CAs in a configuration, and the
    /// name of the Service.
    async fn ensure_trusted(&self) -> Result<()> {
        let bundle = self.bundles.read(CONFIGURATIONS[1]).await?.pop();
        let name = format!("portreeve-webhook.{NAMESPACE}.svc");
        self.webhooks
            .ensure_trusted(&bundle.context("there are no webhooks")?, name)
            .await
    }

    /// Fails unless the cainjector is the only field manager that has set a `caBundle`.
    async fn ensure_owned_by_cainjector(&self, location: &str) -> Result<()> {
        let object = self.bundles.get(location).await?;
        let managers = object["metadata"]["managedFields"].as_array().context("no managers")?;
        let owners = managers
            .iter()
            .filter(|entry| entry["fieldsV1"].to_string().contains("f:caBundle"));
        let owners: Vec<_> = owners.map(|entry| &entry["manager"]).collect();
        ensure!(owners == ["cert-manager-cainjector"], "{location}: {owners:?}");
        Ok(())
    }
}

/// There is no kube-proxy, so the Service is another name of this machine, with the daemon's port.
fn redirect(objects: &mut ChartObjects, port: u16) -> Result<()> {
    let service = objects
        .get_mut("Service portreeve-webhook")
        .context("there is no Service")?;
    service["spec"] = json!({"type": "ExternalName", "externalName": "localhost"});
    for (_, object) in objects
        .iter_mut()
        .filter(|(key, _)| key.contains("WebhookConfiguration "))
    {
        for webhook in object["webhooks"].as_array_mut().into_iter().flatten() {
            webhook["clientConfig"]["service"]["port"] = port.into();
            webhook["failurePolicy"] = "Fail".into();
        }
    }
    Ok(())
}

/// Applies the definition of Certificates and every object of the chart, with strict validation.
async fn install(client: &Client, objects: &ChartObjects) -> Result<()> {
    let strict = PatchParams::apply("an-administrator").force().validation_strict();
    let definition = std::fs::read_to_string(tools()?.join("certificates.yaml"))?;
    for document in manifests::documents(&definition)? {
        manifests::apply(client, &document, None, &strict).await?;
    }
    let certificate = &objects["Certificate portreeve-serving"];
    eventually(LIMIT, "Certificates to be served", || {
        manifests::apply(client, certificate, None, &strict)
    })
    .await?;
    let mut invalid = certificate.clone();
    invalid["spec"]["secret"] = "portreeve-serving".into();
    let rejected = manifests::apply(client, &invalid, None, &strict).await.err();
    let error = format!("{:#}", rejected.context("an unknown field was accepted")?);
    ensure!(error.contains("spec.secret"), "{error}");
    for (key, object) in objects {
        let applied = manifests::apply(client, object, None, &strict).await;
        applied.with_context(|| key.clone())?;
    }
    Ok(())
}

/// Returns how often the daemon has replaced its certificate.
fn reloads(daemon: &Daemon) -> Result<usize> {
    Ok(daemon.log()?.matches("reloaded the serving certificate").count())
}

#[tokio::test]
async fn cert_manager_sets_the_bundles_and_calls_continue_over_a_renewal() -> Result<()> {
    let installation = Installation::new().await?;
    let _cainjector = installation.start_cainjector()?;
    let daemon = installation.start_daemon().await?;
    // A definition whose objects a webhook converts, and one without a webhook, as an administrator
    // annotates them.
    installation.bundles.create_unconverted().await?;
    installation.bundles.create_at(&[CONVERTED.to_owned()]).await?;
    let annotations = json!({"cert-manager.io/inject-ca-from": "portreeve-system/portreeve-serving"});
    let annotate = json!([{"op": "add", "path": "/metadata/annotations", "value": annotations}]);
    for location in [UNCONVERTED, CONVERTED] {
        installation.bundles.patch(location, annotate.clone()).await?;
    }

    let authority = Authority::new()?;
    installation.issue(&authority).await?;
    installation.wait_for_bundles(&[&authority]).await?;
    installation.wait_for_bundles_of(CONVERTED, &[&authority]).await?;
    installation.wait_until_checked().await?;
    installation.ensure_trusted().await?;

    let before = reloads(&daemon)?;
    installation.issue(&authority).await?;
    let renewed = async {
        while reloads(&daemon)? == before {
            installation.ensure_checked().await?;
        }
        installation.ensure_checked().await
    };
    timeout(LIMIT, renewed)
        .await
        .context("the renewed certificate is not used")??;
    installation.wait_for_bundles(&[&authority]).await?;
    installation.ensure_trusted().await?;
    for location in CONFIGURATIONS.into_iter().chain([CONVERTED]) {
        installation.ensure_owned_by_cainjector(location).await?;
    }
    let unconverted = installation.bundles.get(UNCONVERTED).await?;
    ensure!(
        unconverted["spec"]["conversion"] == json!({"strategy": "None"}),
        "{unconverted:#}"
    );
    ensure!(!daemon.log()?.contains("forbidden"), "{}", daemon.log()?);
    Ok(())
}

/// docs/webhooks.md describes what happens when the issuer has a new CA.
#[tokio::test]
async fn a_new_ca_of_the_issuer_is_trusted_once_cert_manager_has_added_it() -> Result<()> {
    let installation = Installation::new().await?;
    let cainjector = installation.start_cainjector()?;
    let daemon = installation.start_daemon().await?;
    let (old, new) = (Authority::new()?, Authority::new()?);
    installation.issue(&old).await?;
    installation.wait_for_bundles(&[&old]).await?;
    installation.wait_until_checked().await?;

    cainjector.signal(Signal::TERM)?;
    cainjector.wait(LIMIT).await?;
    let before = reloads(&daemon)?;
    installation.issue(&new).await?;
    eventually(LIMIT, "the certificate of the new CA", || async {
        ensure!(reloads(&daemon)? > before);
        anyhow::Ok(())
    })
    .await?;
    let error = installation.ensure_trusted().await.err();
    let error = format!("{:#}", error.context("the old CA has signed the certificate")?);
    ensure!(error.contains("invalid peer certificate"), "{error}");
    // The apiserver may keep its connections to the old replica, but has none to a new one.
    drop(daemon);
    let daemon = installation.start_daemon().await?;
    eventually(LIMIT, "calls to fail", || async {
        let (status, text) = installation.webhooks.get("/readyz").await?;
        ensure!(status == StatusCode::OK, "{status}: {text}");
        let (status, message) = installation.write("0 8 * * *").await?;
        ensure!(status == StatusCode::INTERNAL_SERVER_ERROR, "{status}: {message}");
        ensure!(message.contains("certificate signed by unknown authority"), "{message}");
        anyhow::Ok(())
    })
    .await?;

    let _cainjector = installation.start_cainjector()?;
    installation.wait_for_bundles(&[&old, &new]).await?;
    installation.wait_until_checked().await?;
    installation.ensure_trusted().await?;
    // An upgrade of the release keeps the bundles.
    install(&installation.client, &installation.objects).await?;
    for location in CONFIGURATIONS {
        installation.ensure_owned_by_cainjector(location).await?;
    }
    installation.wait_for_bundles(&[&old, &new]).await?;
    installation.ensure_checked().await?;
    ensure!(!daemon.log()?.contains("forbidden"), "{}", daemon.log()?);
    Ok(())
}
