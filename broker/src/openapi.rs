//! The description of the ports for operators in OpenAPI 3.1, made from the types of the documents:
//! `GET /v1/openapi.json`.

use std::sync::OnceLock;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use history_documents::{
    AclsResponse, BudgetsRequest, BudgetsResponse, CutRequest, CutResponse, DiffRequest,
    DiffResponse, GroupMomentRequest, GroupsResponse, HealthRequest, HealthResponse,
    HistoryRequest, MomentRequest, MomentResponse, OffsetsResponse, PinsRequest, PinsResponse,
    QuotasResponse, RecordsRequest, RefusalDocument, SecurityLogRequest, SecurityLogResponse,
    SecurityMomentRequest, TopicsRequest, TopicsResponse, TreeListResponse, TreeQuery,
    UsersResponse,
};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// An operation that GET serves: it changes nothing.
pub(crate) struct GetOperation {
    /// Its name in the path, and the `op` of its document.
    pub(crate) name: &'static str,
    /// The fields of a query that are JSON already, such as numbers.
    pub(crate) plain: &'static [&'static str],
    /// The fields of a query that are text with commas.
    pub(crate) lists: &'static [&'static str],
    summary: &'static str,
    request: fn(&mut SchemaGenerator) -> Value,
    response: fn(&mut SchemaGenerator) -> Value,
}

macro_rules! get_operations {
    ($($name:literal $summary:literal $request:ident $response:ident
        $plain:tt $lists:tt;)*) => {
        /// The operations that GET serves.
        pub(crate) const GET_OPERATIONS: &[GetOperation] = &[$(GetOperation {
            name: $name,
            plain: &$plain,
            lists: &$lists,
            summary: $summary,
            request: fields_of::<$request>,
            response: reference_to::<$response>,
        }),*];
    };
}

get_operations! {
    "cut" "The end of each partition at one moment" CutRequest CutResponse
        ["patience_ms"] ["topics"];
    "diff" "The differences between two moments" DiffRequest DiffResponse
        ["patience_ms", "limit"] ["topics", "only"];
    "topics" "The topics of a moment" TopicsRequest TopicsResponse ["patience_ms"] [];
    "groups" "The groups of a moment, with their members" GroupMomentRequest GroupsResponse
        ["patience_ms"] [];
    "offsets" "The committed offsets of a moment" GroupMomentRequest OffsetsResponse
        ["patience_ms"] [];
    "pins" "The pins in force" PinsRequest PinsResponse [] [];
    "acls" "The access control lists of a moment" SecurityMomentRequest AclsResponse
        ["patience_ms", "skip", "limit"] [];
    "users" "The users of a moment" SecurityMomentRequest UsersResponse
        ["patience_ms", "skip", "limit"] [];
    "quotas" "The quotas of a moment" SecurityMomentRequest QuotasResponse
        ["patience_ms", "skip", "limit"] [];
    "security-log" "The changes of access control lists, users and quotas"
        SecurityLogRequest SecurityLogResponse ["patience_ms", "after", "limit"] [];
    "budgets" "The budgets that clients share" BudgetsRequest BudgetsResponse [] [];
    "health" "What is well with the server, and what is not" HealthRequest HealthResponse [] [];
    "moment" "The moment that a text means" MomentRequest MomentResponse [] [];
}

/// Answers with the description.
pub(crate) async fn description() -> Response {
    static TEXT: OnceLock<String> = OnceLock::new();
    let text = TEXT.get_or_init(|| format!("{:#}\n", document()));
    ([(header::CONTENT_TYPE, "application/json")], text.as_str()).into_response()
}

fn document() -> Value {
    let settings = SchemaSettings::draft2020_12();
    let mut schemas = settings
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .into_generator();
    let mut paths = Map::new();
    for operation in GET_OPERATIONS {
        let fields = (operation.request)(&mut schemas);
        let response = (operation.response)(&mut schemas);
        let get = json!({
            "operationId": operation.name,
            "summary": operation.summary,
            "parameters": query_parameters(&fields),
            "responses": responses(&json!({"application/json": {"schema": response}})),
        });
        paths.insert(format!("/v1/{}", operation.name), json!({"get": get}));
    }
    let request = reference_to::<HistoryRequest>(&mut schemas);
    paths.insert(
        "/v1".to_owned(),
        json!({"post": {
            "operationId": "answer",
            "summary": "Any operation, as a document",
            "requestBody": {"required": true, "content": {"application/json": {"schema": request}}},
            "responses": responses(&json!({"application/json": {"schema": {"type": "object"}}})),
        }}),
    );
    let description = json!({"application/json": {"schema": {"type": "object"}}});
    paths.insert(
        "/v1/openapi.json".to_owned(),
        json!({"get": {
            "operationId": "openapi",
            "summary": "This description",
            "responses": responses(&description),
        }}),
    );
    add_contents(&mut paths, &mut schemas);
    let refusal = reference_to::<RefusalDocument>(&mut schemas);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Freezeframe",
            "version": "1",
            "description": "Reads of any moment: topics, groups, files, znodes. Moments are \
                spelled as docs/TIME.md says, or in words: `s1795252948259`, `yesterday 14:00`, \
                `pin:NAME`, `now`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"password": []}, {"token": []}],
        "paths": paths,
        "components": {
            "schemas": schemas.take_definitions(false),
            "responses": {"Refusal": {
                "description": "Why it failed",
                "content": {"application/json": {"schema": refusal}},
            }},
            "securitySchemes": {
                "password": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
    })
}

/// The paths of records and files.
fn add_contents(paths: &mut Map<String, Value>, schemas: &mut SchemaGenerator) {
    let parameter = |name: &str, schema: Value, description: &str| {
        json!({
            "name": name,
            "in": "path",
            "required": true,
            "schema": schema,
            "description": description,
        })
    };
    let topic = parameter("topic", json!({"type": "string"}), "The topic");
    let partition_schema = json!({"type": "integer", "minimum": 0, "maximum": i32::MAX});
    let partition = parameter("partition", partition_schema, "The partition");
    let fields = fields_of::<RecordsRequest>(schemas);
    let text = json!({"schema": {"type": "string"}});
    let contents = json!({
        "application/json": {"schema": {
            "type": "object",
            "required": ["at", "records", "next"],
            "properties": {
                "at": {"type": "string", "description": "The exact moment of the page"},
                "records": {"type": "array", "items": {"type": "object"}},
                "next": {"type": ["string", "null"], "description": "`after` of the next page"},
            },
        }},
        "application/x-ndjson": text.clone(),
        "application/vnd.apache.arrow.stream": text.clone(),
    });
    let places = [
        ("/v1/records/{topic}", "records", vec![topic.clone()]),
        ("/v1/records/{topic}/{partition}", "partitionRecords", vec![topic, partition]),
    ];
    for (path, id, mut parameters) in places {
        parameters.extend(query_parameters(&fields));
        let mut responses = responses(&contents);
        let header =
            |description: &str| json!({"description": description, "schema": {"type": "string"}});
        responses["200"]["headers"] = json!({
            "Freezeframe-At": header("The exact moment of the page"),
            "Freezeframe-Next": header("`after` of the next page; absent at the end"),
        });
        let get = json!({
            "operationId": id,
            "summary": "A page of records as of a moment, by partition and offset",
            "parameters": parameters,
            "responses": responses,
        });
        paths.insert(path.to_owned(), json!({"get": get}));
    }
    let path = parameter("path", json!({"type": "string"}), "Names with slashes between them");
    let mut parameters = vec![path];
    parameters.extend(query_parameters(&fields_of::<TreeQuery>(schemas)));
    let list = reference_to::<TreeListResponse>(schemas);
    let mut responses = responses(&json!({
        "application/json": {"schema": list},
        "application/octet-stream": text.clone(),
    }));
    responses["206"] = json!({
        "description": "A part of the bytes",
        "content": {"application/octet-stream": text},
    });
    responses["304"] = json!({"description": "The bytes that the client has"});
    let get = json!({
        "operationId": "tree",
        "summary": "The bytes of a file, or the names in a directory",
        "parameters": parameters,
        "responses": responses,
    });
    paths.insert("/v1/tree/{path}".to_owned(), json!({"get": get}));
}

/// The answers to a request: the contents, or a refusal.
fn responses(contents: &Value) -> Value {
    json!({
        "200": {"description": "The answer", "content": contents},
        "default": {"$ref": "#/components/responses/Refusal"},
    })
}

/// The schema of a type, by reference.
fn reference_to<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    schemas.subschema_for::<T>().to_value()
}

/// The schema of a request, with its fields.
fn fields_of<T: JsonSchema>(schemas: &mut SchemaGenerator) -> Value {
    T::json_schema(schemas).to_value()
}

/// The parameters of a query that has these fields. A list is text with commas.
fn query_parameters(request: &Value) -> Vec<Value> {
    let required = request["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|n| n == name));
    let Some(fields) = request["properties"].as_object() else { return Vec::new() };
    let parameter = |(name, schema): (&String, &Value)| {
        json!({
            "name": name,
            "in": "query",
            "required": is_required(name),
            "schema": schema,
            "style": "form",
            "explode": false,
        })
    };
    fields.iter().map(parameter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_knows_which_fields_are_not_text() {
        let mut schemas = SchemaSettings::draft2020_12().into_generator();
        for operation in GET_OPERATIONS {
            let request = (operation.request)(&mut schemas);
            let (mut plain, mut lists) = (Vec::new(), Vec::new());
            for (name, schema) in request["properties"].as_object().into_iter().flatten() {
                let types = schema["type"].to_string();
                if ["integer", "number", "boolean"].iter().any(|name| types.contains(name)) {
                    plain.push(name.as_str());
                } else if types.contains("array") {
                    lists.push(name.as_str());
                }
            }
            let sorted = |names: &[&'static str]| {
                let mut names = names.to_vec();
                names.sort_unstable();
                names
            };
            plain.sort_unstable();
            lists.sort_unstable();
            assert_eq!(sorted(operation.plain), plain, "{}", operation.name);
            assert_eq!(sorted(operation.lists), lists, "{}", operation.name);
        }
    }
}
