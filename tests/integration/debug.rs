//! The debug pages, readiness checks and Lease annotations of a controller.

mod lease_annotations;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::{Result, ensure};
use futures::future::BoxFuture;
use http::{Method, Request, StatusCode};
use kube::client::Body;
use portreeve_reconcile::{
    Controller, ControllerFailure, DebugPage, DebugQuery, DebugResponse, Descriptor, ReadinessCheck, ReadinessChecker,
    ReadinessStatus, Registrations, Shutdown,
};
use portreeve_testing::ControlPlane;

use crate::{
    controllers::descriptor,
    fixtures::{
        admin::{self, Admin},
        in_process::InProcess,
    },
};

const OPEN_PAGES: &str = "--authorization-always-allow-paths=/debug/controllers,/debug/controllers/*";

/// A controller whose page `echo` shows the query. Its readiness check reports the number of
/// failing resources that the page `found` sets.
const DEBUG_PAGES_CONTROLLER: &[Descriptor] = &[descriptor("showman-controller", Vec::new, |ctx| {
    Ok(registrations(ctx.name))
})];

/// A controller that does nothing until it is requested to stop.
struct Idle;

impl Controller for Idle {
    fn run(self: Box<Self>, stop: Shutdown) -> BoxFuture<'static, Result<(), ControllerFailure>> {
        Box::pin(async move {
            stop.requested().await;
            Ok(())
        })
    }
}

fn registrations(controller: &'static str) -> Registrations {
    let failing_count = Arc::new(AtomicUsize::new(0));
    let reported_count = Arc::clone(&failing_count);
    let echo = |query: &DebugQuery| {
        let uids: Vec<_> = query.all("uid").collect();
        match query.get("format") {
            None => DebugResponse::text(format!("uids {uids:?}\n")),
            Some("json") => DebugResponse::json(&serde_json::json!({"uids": uids})),
            Some(other) => DebugResponse::bad_request(format_args!("no format {other:?}; there is json")),
        }
    };
    let found = move |query: &DebugQuery| match query.get("failing").and_then(|failing| failing.parse().ok()) {
        Some(failing) => {
            reported_count.store(failing, Ordering::Relaxed);
            DebugResponse::text("set\n")
        }
        None => DebugResponse::not_found("give failing=NUMBER"),
    };
    let debug_pages = vec![
        DebugPage {
            controller,
            path: "echo",
            handler: Arc::new(echo),
        },
        DebugPage {
            controller,
            path: "found",
            handler: Arc::new(found),
        },
    ];
    let readiness_checker: ReadinessChecker = Arc::new(move || {
        let failing = failing_count.load(Ordering::Relaxed);
        let resources = if failing == 0 {
            ReadinessStatus::Ok
        } else {
            ReadinessStatus::Failed(format!("{failing} resources\nfail"))
        };
        [
            ("show/resources", resources),
            ("show/breaker", ReadinessStatus::Note("tripped at noon".to_owned())),
        ]
        .map(|(name, state)| ReadinessCheck {
            name: name.to_owned(),
            state,
        })
        .into()
    });
    Registrations {
        debug_pages,
        readiness_checkers: vec![readiness_checker],
        ..Registrations::new(Idle)
    }
}

/// Sends a request and returns the status, media type and body of the response.
async fn send(admin: Admin, method: Method, path: &str) -> Result<(StatusCode, String, String)> {
    let mut config = admin.config()?;
    config.accept_invalid_certs = true;
    let request = Request::builder().method(method).uri(path).body(Body::empty())?;
    let (head, body) = admin::send(config, request).await?.into_parts();
    let kind = head.headers.get("content-type").map(|kind| kind.to_str());
    let kind = kind.transpose()?.unwrap_or_default();
    Ok((head.status, kind.to_owned(), String::from_utf8(body)?))
}

#[tokio::test]
async fn open_debug_pages_are_served_with_a_decoded_query() -> Result<()> {
    let daemon = InProcess::start(ControlPlane::shared().await, DEBUG_PAGES_CONTROLLER, &[OPEN_PAGES]).await?;
    let (text, none) = ("text/plain; charset=utf-8", "");
    let echo = "/debug/controllers/showman-controller/echo";
    let listed = "/debug/controllers/showman-controller/echo\n/debug/controllers/showman-controller/found\n";
    let table = [
        (
            Method::GET,
            "?uid=a%20b&uid=c+d",
            200,
            text,
            "uids [\"a b\", \"c d\"]\n",
        ),
        (
            Method::GET,
            "?uid=1&format=json",
            200,
            "application/json",
            "{\n  \"uids\": [\n    \"1\"\n  ]\n}\n",
        ),
        (
            Method::GET,
            "?format=xml",
            400,
            text,
            "no format \"xml\"; there is json\n",
        ),
        (Method::POST, "?uid=1", 405, none, ""),
        (Method::DELETE, "", 405, none, ""),
        (
            Method::GET,
            "s",
            404,
            text,
            "Page not found; /debug/controllers lists all pages.\n",
        ),
    ];
    for (method, rest, status, kind, body) in table {
        let found = send(daemon.admin, method.clone(), &format!("{echo}{rest}")).await?;
        let (is_status, is_kind, is_body) = (found.0.as_u16(), &*found.1, &*found.2);
        ensure!(
            (is_status, is_kind, is_body) == (status, kind, body),
            "{method} {rest}: {found:?}"
        );
    }
    for path in ["/debug/controllers", "/debug/controllers/"] {
        let found = send(daemon.admin, Method::GET, path).await?;
        ensure!(found.0 == StatusCode::OK && found.2 == listed, "{path}: {found:?}");
    }
    for path in [
        "/debug",
        &format!("{echo}/../found"),
        "/debug/controllers/showman-controller",
        "/debug/controllers/other/echo",
    ] {
        let found = send(daemon.admin, Method::GET, path).await?;
        let is_open = path.starts_with("/debug/") && !path.contains("..");
        let expected = if is_open { 404 } else { 403 };
        ensure!(found.0.as_u16() == expected, "{path}: {found:?}");
    }
    daemon.stop().await
}

#[tokio::test]
async fn readiness_checks_of_a_controller_appear_in_readyz() -> Result<()> {
    let daemon = InProcess::start(ControlPlane::shared().await, DEBUG_PAGES_CONTROLLER, &[OPEN_PAGES]).await?;
    let set_failing = async |failing: &str| {
        // The name of the controller may lack `-controller`.
        let path = format!("/debug/controllers/showman/found?failing={failing}");
        daemon.admin.get(&path).await
    };
    let (status, text) = daemon.admin.get("/readyz?verbose").await?;
    let lines = "[+]show/resources ok\n[+]show/breaker ok: tripped at noon\nreadyz check passed\n";
    ensure!(status == StatusCode::OK && text.ends_with(lines), "{status}: {text}");
    ensure!(daemon.admin.get("/readyz").await?.1 == "ok");

    set_failing("3").await?;
    let (status, text) = daemon.admin.get("/readyz").await?;
    let line = "[-]show/resources failed: 3 resources fail\n[+]show/breaker ok: tripped at noon\n";
    ensure!(
        status == StatusCode::INTERNAL_SERVER_ERROR && text.contains(line),
        "{status}: {text}"
    );
    for (path, expected) in [
        ("/readyz/show/resources", StatusCode::INTERNAL_SERVER_ERROR),
        ("/readyz/show/breaker", StatusCode::OK),
        ("/readyz?exclude=show/resources", StatusCode::OK),
        // Only readiness fails: a restart would not fix what the controller reports.
        ("/livez", StatusCode::OK),
        ("/healthz", StatusCode::OK),
    ] {
        let (status, text) = daemon.admin.get(path).await?;
        ensure!(status == expected, "{path}: {status}: {text}");
    }

    set_failing("0").await?;
    ensure!(daemon.admin.get("/readyz").await?.0 == StatusCode::OK);
    daemon.stop().await
}
