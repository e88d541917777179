//! Tests of reloads, with a server that answers every request alike.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::config::tests::{kubeconfig, open, parse, path};

/// A connection to a server on this machine.
struct Reloading {
    listener: TcpListener,
    file: tempfile::NamedTempFile,
    connection: Connection,
}

impl Reloading {
    /// Opens a connection for this user of a kubeconfig.
    async fn start(user: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let master = format!("--master=http://{}", listener.local_addr().unwrap());
        let file = kubeconfig("{server: 'https://a:1'}", user);
        let connection = open(&["--kubeconfig", path(&file), &master]).await.unwrap();
        Self {
            listener,
            file,
            connection,
        }
    }

    /// Replaces the user in the kubeconfig.
    fn change(&self, user: &str) {
        let changed = kubeconfig("{server: 'https://b:1'}", user);
        fs::copy(changed.path(), self.file.path()).unwrap();
    }

    /// Compares the files once, while the server answers every request with this status. Returns
    /// the requests.
    async fn poll(&self, status: &str) -> (Result<bool, ReloadError>, Vec<String>) {
        let current = self.connection.credentials.clone().unwrap();
        let mut requests = Vec::new();
        let result = tokio::select! {
            result = self.connection.reload_if_changed(&current, "test") => result,
            () = self.serve(status, &mut requests) => unreachable!(),
        };
        (result.map(|changed| changed.is_some()), requests)
    }

    async fn serve(&self, status: &str, requests: &mut Vec<String>) {
        loop {
            let (mut stream, _) = self.listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            requests.push(String::from_utf8_lossy(&request[..length]).into_owned());
            let response = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
            stream.write_all(response.as_bytes()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn reload_ignores_the_server_in_the_kubeconfig_if_master_overrides_it() {
    let reloading = Reloading::start("{token: before}").await;
    assert!(matches!(reloading.poll("200 OK").await, (Ok(false), requests) if requests.is_empty()));
    reloading.change("{token: after}");
    let (result, requests) = reloading.poll("200 OK").await;
    assert!(matches!(result, Ok(true)), "{result:?}");
    let [trial] = requests.as_slice() else {
        panic!("{requests:?}");
    };
    assert!(trial.contains("authorization: Bearer after"), "{trial}");
}

#[tokio::test]
async fn responses_that_need_no_authentication_do_not_pass_the_trial() {
    let reloading = Reloading::start("{token: before}").await;
    reloading.change("{token: after}");
    for status in [
        "301 Moved Permanently",
        "400 Bad Request",
        "401 Unauthorized",
        "500 Internal Server Error",
        "502 Bad Gateway",
        "503 Service Unavailable",
        "504 Gateway Timeout",
    ] {
        let (result, _) = reloading.poll(status).await;
        let error = error_chain(&result.expect_err(status));
        assert!(error.contains(&status[..3]), "{status}: {error}");
    }
    for status in ["200 OK", "403 Forbidden", "404 Not Found", "429 Too Many Requests"] {
        let (result, _) = reloading.poll(status).await;
        assert!(matches!(result, Ok(true)), "{status}: {result:?}");
    }
}

#[tokio::test]
async fn credentials_are_not_replaced_by_a_kubeconfig_without_any() {
    let reloading = Reloading::start("{token: before}").await;
    let text = fs::read_to_string(reloading.file.path()).unwrap();
    for (changed, reason) in [
        (
            text.replace("user: u}", "user: typo}"),
            r#"the context "c" names the user "typo", who is not in the file"#,
        ),
        (text.replace(", user: u}", "}"), r#"the context "c" names no user"#),
        (
            text.replace("{token: before}", "{}"),
            r#"the user "u" has none of: auth-provider, "#,
        ),
    ] {
        fs::write(reloading.file.path(), &changed).unwrap();
        let (result, requests) = reloading.poll("200 OK").await;
        let error = error_chain(&result.expect_err(&changed));
        let path = path(&reloading.file);
        let start = format!("--kubeconfig {path} has no credentials any more: {reason}");
        assert!(error.starts_with(&start), "{error}");
        assert!(requests.is_empty(), "{requests:?}");
    }
    reloading.change("{token: after}");
    assert!(matches!(reloading.poll("200 OK").await, (Ok(true), _)));
}

#[tokio::test]
async fn a_connection_without_credentials_needs_none_after_a_change() {
    let reloading = Reloading::start("{}").await;
    reloading.change("{username: nobody}");
    let (result, _) = reloading.poll("200 OK").await;
    assert!(matches!(result, Ok(true)), "{result:?}");
}

/// The kubeconfig changes between the two reads of a load, and then names other files.
#[test]
fn files_of_a_kubeconfig_that_changes_while_it_is_loaded_are_polled() {
    let folder = tempfile::tempdir().unwrap();
    let certificate = |name: &str| folder.path().join(name);
    let user_with = |name: &str| {
        format!(
            "{{client-certificate: {0}, client-key: {0}}}",
            certificate(name).display()
        )
    };
    for name in ["before", "after"] {
        fs::write(certificate(name), name).unwrap();
    }
    let file = kubeconfig("{server: 'https://a:1'}", &user_with("before"));
    let args = || parse(&["--kubeconfig", path(&file)]).unwrap();
    let load_and_change = |args: &Args| {
        let loaded = load(args);
        let changed = kubeconfig("{server: 'https://a:1'}", &user_with("after"));
        fs::copy(changed.path(), file.path()).unwrap();
        loaded
    };
    let (config, mut credentials) = Credentials::load_with(args(), load_and_change).unwrap();
    let used = config.auth_info.client_certificate.unwrap();
    assert_eq!(used, certificate("after").display().to_string());
    // The next poll loads the files again, and later ones find no change.
    if credentials.have_changed() {
        credentials = Credentials::load(args()).unwrap().1;
    }
    assert!(!credentials.have_changed());
    fs::write(certificate("after"), "renewed").unwrap();
    assert!(credentials.have_changed());
}
