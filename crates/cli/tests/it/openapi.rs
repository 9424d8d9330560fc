//! Checks answers of the daemon against docs/openapi.json.

use std::sync::LazyLock;

use serde_json::Value;

use crate::fixture::{Place, ask, stop};

const TEXT: &str = include_str!("../../../../docs/openapi.json");

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| serde_json::from_str(TEXT).unwrap());

/// Checks an answer against the document's description of its request.
pub fn check(method: &str, target: &str, status: u16, body: &str) {
    let path = target.split('?').next().unwrap_or_default();
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let found = paths.iter().find(|(template, _)| is_like(template, path));
    let operation = found.map_or(&Value::Null, |(_, item)| &item[method.to_lowercase()]);
    if operation.is_null() {
        assert_eq!(status, 404, "{method} {target} is not in the document");
        return holds("Error", &serde_json::from_str(body).unwrap());
    }
    let responses = &operation["responses"];
    let exact = responses.get(status.to_string());
    assert!(exact.is_some() || status >= 400, "{method} {target}: {status} is not in the document");
    let content = &exact.unwrap_or(&responses["default"])["content"]["application/json"];
    if let Some(schema) = content.get("schema") {
        let value: Value = serde_json::from_str(body).unwrap();
        fits(schema, &value, &format!("{method} {target} {status}"));
    }
}

fn is_like(template: &str, path: &str) -> bool {
    let (template, path): (Vec<_>, Vec<_>) =
        (template.split('/').collect(), path.split('/').collect());
    let same = |(part, word): (&&str, &&str)| part == word || *part == "{name}";
    template.len() == path.len() && template.iter().zip(&path).all(same)
}

/// Checks a value against the schema of this name.
pub fn holds(name: &str, value: &Value) {
    fits(&DOCUMENT["components"]["schemas"][name], value, name);
}

/// Checks the parts of JSON Schema that the document uses.
fn fits(schema: &Value, value: &Value, at: &str) {
    const KNOWN: [&str; 14] = [
        "$ref",
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "nullable",
        "allOf",
        "anyOf",
        "minimum",
        "maximum",
        "description",
        "example",
    ];
    for word in schema.as_object().unwrap().keys() {
        assert!(KNOWN.contains(&word.as_str()), "{at}: `{word}` is not looked at");
    }
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.strip_prefix("#/components/schemas/").unwrap();
        let named = &DOCUMENT["components"]["schemas"][name];
        assert!(named.is_object(), "{at}: there is no schema {name}");
        return fits(named, value, at);
    }
    let parts = |word: &str| schema[word].as_array().map_or(&[][..], Vec::as_slice);
    parts("allOf").iter().for_each(|part| fits(part, value, at));
    let types = parts("anyOf").iter().map(|part| part["type"].as_str().unwrap());
    let types: Vec<&str> = types.chain(schema["type"].as_str()).collect();
    assert!(
        types.is_empty() || types.iter().any(|it| is_a(it, value)),
        "{at}: {value} is no {types:?}"
    );
    let choices = parts("enum");
    assert!(choices.is_empty() || choices.contains(value), "{at}: {value} is none of {choices:?}");
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        fits(&schema["items"], item, &format!("{at}[{number}]"));
    }
    let members = value.as_object();
    for word in parts("required") {
        let word = word.as_str().unwrap();
        assert!(members.is_some_and(|it| it.contains_key(word)), "{at} has no {word}: {value}");
    }
    for (key, member) in members.into_iter().flatten() {
        let at = format!("{at}.{key}");
        match (schema["properties"].get(key), &schema["additionalProperties"]) {
            (Some(schema), _) => fits(schema, member, &at),
            (None, Value::Bool(false)) => panic!("{at} is not in the document: {member}"),
            (None, schema) if schema.is_object() => fits(schema, member, &at),
            (None, _) => {}
        }
    }
}

fn is_a(name: &str, value: &Value) -> bool {
    match name {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("`{name}` is no type"),
    }
}

#[test]
fn the_daemon_has_the_document_and_answers_as_it_says() {
    let place = Place::new();
    let daemon = place.serve(&["--backend", "null:1M", "--name", "a"]);
    let (status, text) = ask(&place, "GET", "/v1/openapi.json", "");
    assert_eq!((status, &*text), (200, TEXT));
    // Requests that other tests do not make in this way.
    for (method, target, body, status) in [
        ("GET", "/v1/stats", "", 200),
        ("GET", "/v1/stats?buckets=1", "", 200),
        ("GET", "/v1/stats?buckets=2", "", 400),
        ("GET", "/v1/numa", "", 200),
        ("GET", "/v1/disks", "", 200),
        ("GET", "/v1/disks/a", "", 200),
        ("GET", "/v1/disks/a/layout", "", 200),
        ("GET", "/v1/disks/b/layout", "", 404),
        ("PATCH", "/v1/disks/a", r#"{"limit":"iops=7","weight":3}"#, 200),
        ("PATCH", "/v1/disks/a", r#"{"size":"2M"}"#, 501),
        ("GET", "/v1/groups", "", 200),
        ("POST", "/v1/reload", "", 501),
        ("GET", "/v1/nothing", "", 404),
    ] {
        let (answered, text) = ask(&place, method, target, body);
        assert_eq!(answered, status, "{method} {target}: {text}");
    }
    stop(daemon);
}

#[test]
fn what_does_not_fit_is_noticed() {
    let refuses = |name: &'static str, value: Value| {
        std::panic::catch_unwind(move || holds(name, &value)).is_err()
    };
    let group = |limit: Value| serde_json::json!({ "name": "a", "limit": limit, "origin": "api", "disks": ["b"] });
    holds("Group", &group(Value::Null));
    holds("Group", &group(serde_json::json!({ "iops": 3, "bytes_per_s": null, "burst_s": 0.1 })));
    assert!(refuses("Group", group("off".into())));
    assert!(refuses("Group", group(serde_json::json!({ "iops": 3 }))));
    let mut more = group(Value::Null);
    more["more"] = 1.into();
    assert!(refuses("Group", more));
    let mut origin = group(Value::Null);
    origin["origin"] = "both".into();
    assert!(refuses("Group", origin));
    let mut disks = group(Value::Null);
    disks["disks"] = serde_json::json!([1]);
    assert!(refuses("Group", disks));
}
