//! The effective settings without a file.

use expect_test::expect_file;

use super::effective_config;

#[test]
fn effective_config_contains_every_default() {
    expect_file!["defaults.json"].assert_eq(&format!("{:#}", effective_config(None, &["--kubeconfig=admin.conf"])));
}
