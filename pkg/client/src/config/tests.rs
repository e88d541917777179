//! Tests of connections, and of the errors for unusable flags and files: each names a remedy and
//! contains no secrets.

use std::fs;

use clap::{Args as _, Command, FromArgMatches, error::ErrorKind};
use portreeve_metrics::Registry;
use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpSocket},
};

use super::*;
use crate::{AlwaysOpen, ApiErrorKind, error_chain};

pub(super) const TOKEN: &str = "s3cr3t-t0ken";

fn settings(limit: Duration) -> Settings {
    Settings {
        program: "portreeve/0.1.0".to_owned(),
        call_limit: limit,
        fence: Arc::new(AlwaysOpen),
        metrics: Metrics::register(&Registry::new()).unwrap(),
        outage: Outage::default(),
    }
}

pub(super) fn parse(args: &[&str]) -> Result<Args, clap::Error> {
    let command = Args::augment_args(Command::new("portreeve").no_binary_name(true));
    Args::from_arg_matches(&command.try_get_matches_from(args)?)
}

pub(super) async fn open(args: &[&str]) -> Result<Connection, Error> {
    Connection::open(&parse(args).unwrap(), settings(Duration::from_secs(1))).await
}

/// Returns the error and its sources as they are printed, after a check that they contain no
/// credentials.
async fn failure(args: &[&str]) -> String {
    let Err(error) = open(args).await else {
        panic!("{args:?} was accepted");
    };
    let (text, debug) = (error_chain(&error), format!("{error:?}"));
    assert!(!text.contains(TOKEN) && !debug.contains(TOKEN), "{text} {debug}");
    text
}

/// Writes a kubeconfig to a temporary file.
pub(super) fn kubeconfig(cluster: &str, user: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts:\n- name: c\n  context: {{cluster: k, user: u}}\n\
         clusters:\n- name: k\n  cluster: {cluster}\n\
         users:\n- name: u\n  user: {user}\n"
    );
    fs::write(file.path(), text).unwrap();
    file
}

pub(super) fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

#[tokio::test]
async fn missing_kubeconfig_error_names_the_flag() {
    let error = failure(&["--kubeconfig=/nonexistent/kubeconfig"]).await;
    assert!(
        error.starts_with("failed to load --kubeconfig /nonexistent/kubeconfig: "),
        "{error}"
    );
    assert!(error.contains("No such file"), "{error}");
}

#[tokio::test]
async fn malformed_kubeconfig_error_names_the_position() {
    let file = kubeconfig("{server: 7}", "{token: {}}");
    let error = failure(&["--kubeconfig", path(&file)]).await;
    assert!(error.starts_with("failed to parse --kubeconfig /"), "{error}");
    assert!(error.contains(": line 12 column 17: "), "{error}");
}

#[tokio::test]
async fn missing_configuration_error_names_the_flags_to_set() {
    let error = failure(&[]).await;
    assert!(
        error.starts_with(
            "failed to load the in-cluster configuration; outside a cluster, set --kubeconfig or --master"
        ),
        "{error}"
    );
}

#[tokio::test]
async fn master_overrides_the_address_in_the_kubeconfig() {
    let file = kubeconfig("{server: 'https://a:1'}", "{}");
    let kubeconfig = format!("--kubeconfig={}", path(&file));
    assert_eq!(open(&[&kubeconfig]).await.unwrap().url(), "https://a:1/");
    let both = open(&[&kubeconfig, "--master=https://b:2/path"]).await.unwrap();
    assert_eq!(both.url(), "https://b:2/path");
    let master = open(&["--master=http://c:3"]).await.unwrap();
    assert_eq!(master.url(), "http://c:3/");
}

#[test]
fn invalid_qps_error_states_the_valid_range() {
    for bad in ["-1", "fast", "NaN", "inf", "0.0000001"] {
        let error = parse(&[&format!("--kube-api-qps={bad}")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ValueValidation);
        let text = error.to_string();
        assert!(
            text.contains("--kube-api-qps") && text.contains("expected 0 (no limit) or requests per second"),
            "{text}"
        );
    }
    assert!(parse(&["--kube-api-qps=20", "--kube-api-burst=0"]).is_err());
    let args = parse(&["--kube-api-qps=0.5", "--kube-api-burst=7"]).unwrap();
    assert_eq!(
        (args.kube_api_qps.to_string(), args.kube_api_burst),
        ("0.5".to_owned(), 7)
    );
}

#[test]
fn invalid_master_error_shows_a_valid_url() {
    for bad in ["apiserver:6443", "/path", "ftp://a", "https://", "a b"] {
        let error = parse(&[&format!("--master={bad}")]).unwrap_err().to_string();
        assert!(error.contains("--master"), "{error}");
    }
    let error = parse(&["--master=10.0.0.1:6443"]).unwrap_err().to_string();
    assert!(
        error.contains("expected a URL such as https://10.0.0.1:6443"),
        "{error}"
    );
}

/// Without this check, kube would panic on the first request.
#[tokio::test]
async fn a_server_without_a_scheme_in_the_kubeconfig_is_an_error() {
    let file = kubeconfig("{server: 'apiserver:6443'}", "{}");
    let error = failure(&["--kubeconfig", path(&file)]).await;
    assert!(
        error.contains("it is not a URL such as https://10.0.0.1:6443"),
        "{error}"
    );
}

#[tokio::test]
async fn password_in_the_url_is_dropped() {
    let file = kubeconfig(&format!("{{server: 'https://user:{TOKEN}@a:1'}}"), "{}");
    let connection = open(&["--kubeconfig", path(&file)]).await.unwrap();
    assert_eq!(connection.url(), "https://a:1/");
    assert_eq!(connection.shared.host, "a:1");
    let args = parse(&[&format!("--master=https://user:{TOKEN}@a:1")]).unwrap();
    assert!(!format!("{args:?}").contains(TOKEN));
}

#[tokio::test]
async fn errors_contain_no_credentials() {
    let users = [
        format!("{{token: '{TOKEN}', exec: 7}}"),
        format!("{{token: ['{TOKEN}']}}"),
        format!("{{token: '{TOKEN}', client-certificate-data: '{TOKEN}', client-key-data: '{TOKEN}'}}"),
        format!("{{username: u, password: {{a: '{TOKEN}'}}}}"),
        format!("{{token: '{TOKEN}"),
    ];
    for user in users {
        let file = kubeconfig("{server: 'https://a:1'}", &user);
        failure(&["--kubeconfig", path(&file)]).await;
    }
}

/// A plugin script in a temporary folder, and the kubeconfig that uses it.
struct Plugin {
    folder: tempfile::TempDir,
    kubeconfig: tempfile::NamedTempFile,
}

fn plugin(script: &str) -> Plugin {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plugin.sh");
    fs::write(&file, script).unwrap();
    let user = format!(
        "{{exec: {{apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: sh, args: ['{}']}}}}",
        file.display()
    );
    let kubeconfig = kubeconfig("{server: 'https://a:1'}", &user);
    Plugin { folder, kubeconfig }
}

#[tokio::test]
async fn errors_omit_the_output_of_a_credential_plugin() {
    let table = [
        ("exit 3", "the credential plugin failed (exit status: 3)"),
        ("exit 0", "failed to parse the output of the credential plugin"),
    ];
    for (end, expected) in table {
        let plugin = plugin(&format!("echo 'token: [{TOKEN}'\necho {TOKEN} >&2\n{end}\n"));
        let error = failure(&["--kubeconfig", path(&plugin.kubeconfig)]).await;
        assert!(error.ends_with(expected), "{error}");
    }
}

/// The first credential is already expired, so the first call runs the plugin again, which fails.
#[tokio::test]
async fn errors_omit_the_output_of_a_credential_plugin_during_a_refresh() {
    let plugin = plugin(&format!(
        "if [ -e \"$0.ran\" ]; then echo {TOKEN}; exit 4; fi\n\
         echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\
         \"status\":{{\"token\":\"{TOKEN}\",\"expirationTimestamp\":\"2020-01-01T00:00:00Z\"}}}}'\n"
    ));
    let connection = open(&["--kubeconfig", path(&plugin.kubeconfig)]).await.unwrap();
    fs::write(plugin.folder.path().join("plugin.sh.ran"), "").unwrap();
    let client = connection.client("foo-controller").unwrap();
    let error = client.apiserver_version().await.unwrap_err();
    let (text, debug) = (error_chain(&error), format!("{error:?}"));
    assert!(
        text.ends_with("the credential plugin failed (exit status: 4)"),
        "{text}"
    );
    assert!(!text.contains(TOKEN) && !debug.contains(TOKEN), "{text} {debug}");
}

/// The plugin succeeds only if other tasks make progress while it runs, even on the single thread
/// of this test.
#[tokio::test]
async fn slow_credential_plugin_does_not_block_other_tasks() {
    let plugin = plugin(&format!(
        "for i in 1 2 3 4 5 6 7 8 9 10; do [ -e \"$0.go\" ] && break; sleep 0.1; done\n\
         [ -e \"$0.go\" ] || exit 5\n\
         echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\
         \"status\":{{\"token\":\"{TOKEN}\"}}}}'\n"
    ));
    let arguments = ["--kubeconfig", path(&plugin.kubeconfig)];
    let go = async { fs::write(plugin.folder.path().join("plugin.sh.go"), "").unwrap() };
    let (connection, ()) = tokio::join!(biased; open(&arguments), go);
    assert!(connection.is_ok());
}

#[tokio::test]
async fn proxy_error_says_what_to_do_instead() {
    let cluster = format!("{{server: 'https://a:1', proxy-url: 'http://user:{TOKEN}@proxy:3128'}}");
    let file = kubeconfig(&cluster, "{}");
    let error = failure(&["--kubeconfig", path(&file)]).await;
    assert!(
        error.ends_with("Portreeve connects directly; remove proxy-url or use a tunnel"),
        "{error}"
    );
    let mut config = Config::new(Uri::from_static("https://a:1"));
    config.proxy_url = Some(Uri::from_static("http://proxy:3128"));
    let result = Connection::from_config(config, settings(Duration::from_secs(1)));
    assert!(matches!(result, Err(Error::Proxy)));
}

#[tokio::test]
async fn component_with_invalid_header_characters_is_rejected() {
    let connection = open(&["--master=http://a:1"]).await.unwrap();
    assert!(matches!(
        connection.client("foo\ncontroller"),
        Err(Error::UserAgent { .. })
    ));
}

/// Uses a real connection that opens and then stalls, and waits in real time for the limit of the
/// call.
#[tokio::test]
async fn call_on_a_stalled_connection_ends_at_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    let limit = Duration::from_millis(50);
    let connection = Connection::from_config(Config::new(url), settings(limit)).unwrap();
    let client = connection.client("foo-controller").unwrap();
    let stalled_server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let length = stream.read(&mut request).await.unwrap();
        let closed = stream.read(&mut [0]).await.unwrap();
        (String::from_utf8_lossy(&request[..length]).into_owned(), closed)
    };
    let (version, (request, closed)) = tokio::join!(client.apiserver_version(), stalled_server);
    let error = version.unwrap_err();
    assert_eq!(ApiErrorKind::of(&error), ApiErrorKind::Transient);
    assert!(
        error.to_string().contains("no complete response within 50ms"),
        "{error}"
    );
    assert!(
        request.contains("user-agent: portreeve/0.1.0 (") && request.contains(") foo-controller"),
        "{request}"
    );
    // Dropping the call closes its connection, so the pool does not reuse a dead one.
    assert_eq!(closed, 0);
}

#[tokio::test]
async fn dropped_connection_sends_no_more_data() {
    // With automatic sizing, the receive buffer could grow until it holds the whole body before the
    // call is dropped.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let master = format!("--master=http://{}", listener.local_addr().unwrap());
    let client = open(&[&master]).await.unwrap().client("a-test").unwrap();
    // The body is larger than the receive buffer and smaller than the send buffer, so a part of it
    // is still unsent when the call is dropped.
    let body = vec![b' '; 512 << 10];
    let request = http::Request::post("/api/v1/namespaces").body(body).unwrap();
    let written = client.request_text(request);
    let (mut received, result) = tokio::join!(async { listener.accept().await.unwrap().0 }, written);
    assert!(result.is_err());
    drop(client);
    let mut rest = Vec::new();
    let end = received.read_to_end(&mut rest).await;
    let end = end.map_err(|error| error.kind());
    assert_eq!(
        end,
        Err(std::io::ErrorKind::ConnectionReset),
        "received {} bytes",
        rest.len()
    );
}

/// A PEM reader's error quotes the line that it cannot parse, here the whole key.
#[tokio::test]
async fn errors_do_not_quote_a_key_on_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    fs::write(
        &certificate,
        "-----BEGIN CERTIFICATE-----\nMTIz\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    fs::write(&key, format!("-----BEGIN PRIVATE KEY {TOKEN}")).unwrap();
    let user = format!(
        "{{client-certificate: {}, client-key: {}}}",
        certificate.display(),
        key.display()
    );
    let file = kubeconfig("{server: 'https://a:1'}", &user);
    let error = failure(&["--kubeconfig", path(&file)]).await;
    assert!(
        error.ends_with("the client certificate or its key is not valid PEM"),
        "{error}"
    );
}
