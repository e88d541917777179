//! The effective settings without a file.

use expect_test::expect;

use super::effective_config;

#[test]
fn effective_config_contains_every_default() {
    expect![[r#"
        {
          "controllermanager.portreeve.dev": {
            "apiVersion": "portreeve.dev/v1alpha1",
            "authorizationAlwaysAllowPaths": [
              "/healthz",
              "/readyz",
              "/livez"
            ],
            "bindAddress": "0.0.0.0",
            "concurrentCronJobSyncs": 16,
            "concurrentCrontabSyncs": 16,
            "concurrentFooSyncs": 5,
            "concurrentGcSyncs": 20,
            "concurrentTtlAfterFinishedSyncs": 5,
            "controllerShutdownTimeout": "10s",
            "controllerStartInterval": "0s",
            "controllerStuckTimeout": "5m",
            "controllers": [
              "*"
            ],
            "dryRun": false,
            "gcIgnoreResources": [
              "events",
              "events.events.k8s.io"
            ],
            "gcMaxDeletionsPerMinute": 0,
            "gcMode": "active",
            "installCrds": false,
            "kind": "ControllerManagerConfiguration",
            "kubeApiBurst": 30,
            "kubeApiQps": 0.0,
            "kubeconfig": "/work/admin.conf",
            "leaderElect": true,
            "leaderElectGroups": [],
            "leaderElectLeaseDuration": "15s",
            "leaderElectRenewDeadline": "10s",
            "leaderElectResourceName": "portreeve",
            "leaderElectResourceNamespace": "kube-system",
            "leaderElectRetryPeriod": "2s",
            "loggingFormat": "text",
            "minResyncPeriod": "12h",
            "queueStuckTimeout": "5m",
            "retryBurst": 100,
            "retryQps": 10.0,
            "securePort": 10257,
            "v": 0,
            "watchIdleTimeout": "90s"
          }
        }"#]]
    .assert_eq(&format!("{:#}", effective_config(None, &["--kubeconfig=admin.conf"])));
}
