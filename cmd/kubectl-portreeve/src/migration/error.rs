//! The reasons why `kubectl portreeve conversion` or `kubectl portreeve migrate` fails.

use std::path::PathBuf;

/// The reason why a version cannot be served or objects cannot be migrated. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system denies a thread or a file.
    #[error("failed to set up the runtime")]
    Runtime(#[source] std::io::Error),
    /// Two metrics have the same name.
    #[error("failed to register metrics")]
    Metrics(#[source] prometheus::Error),
    /// The apiserver's address or credentials cannot be used.
    #[error("failed to set up the connection to the apiserver")]
    Connection(#[source] portreeve_client::Error),
    /// The definition cannot be read.
    #[error("failed to read CustomResourceDefinition {name} from {server}")]
    ReadDefinition {
        /// The name of the definition.
        name: String,
        /// The apiserver's address.
        server: String,
        /// The cause.
        #[source]
        source: kube::Error,
    },
    /// The definition does not exist.
    #[error(
        "found no CustomResourceDefinition {name}: apply it first; `portreeve crds` prints those of the controllers"
    )]
    NoDefinition {
        /// The name of the definition.
        name: String,
    },
    /// The definition cannot be changed.
    #[error("failed to change CustomResourceDefinition {name}")]
    ChangeDefinition {
        /// The name of the definition.
        name: String,
        /// The cause.
        #[source]
        source: kube::Error,
    },
    /// Others write the definition all the time.
    #[error("failed to change CustomResourceDefinition {name}, because others change it again and again: find out who")]
    Contended {
        /// The name of the definition.
        name: String,
    },
    /// The apiserver does not serve the definition.
    #[error("cannot use CustomResourceDefinition {name}: {problem}")]
    NotEstablished {
        /// The name of the definition.
        name: String,
        /// The reason.
        problem: String,
    },
    /// The definition has no such version.
    #[error(
        "CustomResourceDefinition {name} has no version {version}, only {versions}: apply the new definition first"
    )]
    UnknownVersion {
        /// The name of the definition.
        name: String,
        /// The missing version.
        version: String,
        /// The versions that it has.
        versions: String,
    },
    /// The version to migrate to is not served.
    #[error("version {version} of {name} is not served: run `kubectl portreeve conversion enable` first")]
    NotServed {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
    },
    /// Objects are stored in other versions, and nothing converts them.
    #[error(
        "{name} has no conversion webhook, but may have objects in {stored}: run `kubectl portreeve conversion enable` first"
    )]
    NoWebhook {
        /// The name of the definition.
        name: String,
        /// The stored versions.
        stored: String,
    },
    /// Objects cannot be read in the version to migrate to. Nothing was changed.
    #[error(
        "failed to read {name} in version {version}, so nothing was changed: correct the conversion webhook, then run \
         the command again"
    )]
    Unreadable {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
        /// The cause.
        #[source]
        source: kube::Error,
    },
    /// Objects cannot be listed.
    #[error("failed to list {name} in version {version}; run the command again, it continues where it stopped")]
    List {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
        /// The cause.
        #[source]
        source: kube::Error,
    },
    /// The apiserver numbers its versions in a way that is unknown to this program.
    #[error("failed to compare the resourceVersions of {name}: {version:?} is not a number")]
    ResourceVersion {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
    },
    /// Some objects are still stored in another version.
    #[error(
        "failed to store {} of {name} in {version}, so status.storedVersions is unchanged: correct what the lines \
         above report, then run the command again",
        objects(*count)
    )]
    Incomplete {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
        /// The number of objects.
        count: u64,
    },
    /// Objects have data that the version cannot express.
    #[error(
        "{version} cannot express {} of {name}, as listed above: change or delete what is listed, or drop what \
         {version} cannot express by removing the annotation {annotation} in {version}, then run the command again",
        objects(*count)
    )]
    Inexpressible {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
        /// The number of objects.
        count: u64,
        /// The annotation of these objects.
        annotation: String,
    },
    /// Somebody changed the spec of the definition meanwhile.
    #[error(
        "CustomResourceDefinition {name} was changed during the migration, so some objects may be stored in another \
         version than {version}: run the command again"
    )]
    DefinitionChanged {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
    },
    /// The definition has only one version.
    #[error("CustomResourceDefinition {name} has only version {version}: apply the new definition first")]
    OneVersion {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
    },
    /// A file cannot be read.
    #[error("failed to read {}", .path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// The file of `--ca-file` has no certificate.
    #[error("found no certificate in {}: --ca-file expects PEM", .path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The file of `--sample` is no manifest.
    #[error("failed to parse {}", .path.display())]
    ParseSample {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// The conversion webhook does not work, or the command was interrupted.
    #[error("failed to enable {version} of {name}, so {state}: {reason}")]
    Unusable {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
        /// What the command has left.
        state: &'static str,
        /// The last failure.
        reason: String,
    },
    /// The version was not enabled, and what the command has changed could not be undone.
    #[error(
        "failed to enable {version} of {name} ({reason}), and the command could not undo its changes: run it again with a \
         webhook that works, or set served to false for {version}"
    )]
    NotUndone {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
        /// The last failure of the conversion.
        reason: String,
        /// Why the changes remain.
        #[source]
        source: Box<Self>,
    },
    /// The command got a second signal before it had undone its changes.
    #[error(
        "the command was interrupted twice, and {version} of {name} may be served although its conversion does not \
         work: run it again, or set served to false for {version}; the conversion was {former}"
    )]
    Stopped {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
        /// The conversion before the command, without its CA.
        former: String,
    },
    /// Objects are stored in the version that is about to be withdrawn.
    #[error(
        "{name} may have objects that are stored in {stored}: run `kubectl portreeve migrate --to={to}` first, which stores \
         all of them in {to}"
    )]
    StillStored {
        /// The name of the definition.
        name: String,
        /// The stored versions.
        stored: String,
        /// The version to migrate to.
        to: String,
    },
    /// The newest version is the only one that is stored.
    #[error("{name} stores objects in {version}, its newest version: nothing was changed")]
    NewestStored {
        /// The name of the definition.
        name: String,
        /// The version.
        version: String,
    },
    /// Standard output cannot be written.
    #[error("failed to write to standard output")]
    Print(#[source] std::io::Error),
}

/// Returns a number of objects for a message.
pub(super) fn objects(count: u64) -> String {
    match count {
        1 => "1 object".to_owned(),
        _ => format!("{count} objects"),
    }
}
