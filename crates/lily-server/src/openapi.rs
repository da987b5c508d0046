//! `GET /openapi.json`: the API's description. It is data, `openapi.json` beside this file; the tests here and in
//! the server ring hold it against the routes, the fields that are read, and the statuses that are answered.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};

static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| include_str!("openapi.json").replacen("\"VERSION\"", concat!("\"", env!("CARGO_PKG_VERSION"), "\""), 1));

pub(crate) async fn show() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT.as_str()).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::DOCUMENT;
    use crate::{anthropic, chat, completions, format, responses, router};

    fn document() -> Value {
        serde_json::from_str(&DOCUMENT).expect("the description is JSON")
    }

    #[test]
    fn every_route_is_described_and_nothing_else() {
        let routes = router::api_routes().map(|(path, _)| format!("/v1{}", path.replace("{*", "{")));
        let others = ["/metrics", "/health", "/openapi.json", "/"].map(str::to_owned);
        let expected: BTreeSet<String> = routes.into_iter().chain(others).collect();
        let described: BTreeSet<String> = document()["paths"].as_object().unwrap().keys().cloned().collect();
        assert_eq!(described, expected);
    }

    /// The names of a schema's fields, those of its parts included.
    fn fields<'a>(document: &'a Value, schema: &'a Value, found: &mut BTreeSet<&'a str>) {
        found.extend(schema["properties"].as_object().into_iter().flat_map(|properties| properties.keys().map(String::as_str)));
        for part in schema["allOf"].as_array().into_iter().flatten() {
            match part["$ref"].as_str() {
                Some(pointer) => fields(document, document.pointer(pointer.trim_start_matches('#')).expect(pointer), found),
                None => fields(document, part, found),
            }
        }
    }

    #[test]
    fn every_field_that_is_read_is_described_and_nothing_else() {
        let document = document();
        let cases: [(&str, &[&str], &[&str]); 4] = [
            ("ChatRequest", chat::request::KNOWN, format::FIELDS),
            ("CompletionRequest", completions::request::KNOWN, format::FIELDS),
            ("ResponsesRequest", responses::request::KNOWN, &[]),
            ("MessagesRequest", anthropic::request::KNOWN, &[]),
        ];
        for (name, known, forms) in cases {
            let mut described = BTreeSet::new();
            fields(&document, &document["components"]["schemas"][name], &mut described);
            assert_eq!(described, known.iter().chain(forms).copied().collect(), "{name}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn check(document: &Value, value: &Value, found: &mut usize) {
            if let Some(pointer) = value["$ref"].as_str() {
                assert!(document.pointer(pointer.trim_start_matches('#')).is_some(), "{pointer}");
                *found += 1;
            }
            let inner: Vec<&Value> = match value {
                Value::Object(map) => map.values().collect(),
                Value::Array(items) => items.iter().collect(),
                _ => Vec::new(),
            };
            inner.into_iter().for_each(|value| check(document, value, found));
        }
        let (document, mut found) = (document(), 0);
        check(&document, &document, &mut found);
        assert!(found > 100, "{found}");
    }
}
