//! Objects that no schema has admitted, of any depth and size.

use serde_json::json;

use super::*;

/// Nothing that a user may store fails a list, takes a large multiple of its size, or recurses.
#[test]
fn objects_of_any_depth_and_size_are_converted() {
    const DEPTH: usize = 100_000;
    let deep = format!("{}1{}", "{\"a\":[".repeat(DEPTH), "]}".repeat(DEPTH));
    let table = [
        format!(r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{deep}}}]}},"spec":{{}}}}"#),
        format!(r#"{{"metadata":{{"annotations":{deep}}},"spec":{deep},"status":{deep}}}"#),
        format!(r#"{{"metadata":{{}},"spec":{{"schedules":[{deep}],"template":{deep},"unknown":{deep}}}}}"#),
        format!(
            r#"{{"metadata":{{"annotations":[{}]}},"spec":{{}}}}"#,
            vec![r#"{"a":1}"#; 175_000].join(",")
        ),
        format!(
            r#"{{"metadata":{{}},"spec":{{"schedules":[{}]}}}}"#,
            vec!["{}"; 400_000].join(",")
        ),
    ];
    for text in &table {
        for version in [V1, V2] {
            let mut object: LazyObject<'_> = serde_json::from_str(text).expect("it is an object");
            convert(&mut object, version).expect("the version is known");
            let converted = serde_json::to_string(&object).expect("serializes");
            assert!(
                converted.len() <= text.len() + 1_000,
                "{} of {}",
                converted.len(),
                text.len()
            );
        }
    }
}

/// The paths of leaves repeat the names above them.
#[test]
fn long_paths_of_leaves_are_not_spelled_out() {
    let fields = (0..50_000)
        .map(|number| format!(r#""{number}":1"#))
        .collect::<Vec<_>>()
        .join(",");
    let text = format!(
        r#"{{"spec":{{"template":{{"{}":{{{fields}}}}}}}}}"#,
        "x".repeat(500_000)
    );
    let mut object: LazyObject<'_> = serde_json::from_str(&text).expect("it is an object");
    convert(&mut object, V1).expect("the version is known");
    let v1 = json!(object);
    assert_eq!(
        v1,
        json!({"spec": {}, "metadata": {"annotations": {V2_FIELDS: DROPPED}}})
    );
}
