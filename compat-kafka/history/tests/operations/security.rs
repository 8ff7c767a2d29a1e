//! Access control lists, users and quotas of a moment, and their changes.

use std::collections::BTreeMap;

use engine::security::{
    AclRule, Actor, ITERATIONS_MIN, Operation, PatternType, Permission, QuotaEntity, QuotaName,
    ResourceType, ScramCredential, ScramMechanism, SecurityChange,
};
use history_documents::{AclsResponse, QuotasResponse, SecurityLogResponse, UsersResponse};
use serde_json::{Value, json};

use crate::fixture::{TestHistoryApi, answer_json, api, code, moment};
use crate::same_text;

fn rule(name: &str) -> AclRule {
    AclRule {
        resource_type: ResourceType::Topic,
        pattern: PatternType::Prefixed,
        name: name.to_owned(),
        principal: "User:a".to_owned(),
        host: "*".to_owned(),
        operation: Operation::DescribeConfigs,
        permission: Permission::Deny,
    }
}

async fn change(api: &TestHistoryApi, principal: &str, changes: Vec<SecurityChange>) {
    let actor = Actor { principal: format!("User:{principal}"), from: "10.0.0.7".to_owned() };
    api.engine.security().change(actor, |_| (changes, ())).await.unwrap();
}

fn quota(rate: f64) -> SecurityChange {
    let user = Some(QuotaName::Named("u".to_owned()));
    let entity = QuotaEntity { user, client_id: Some(QuotaName::Default), ip: None };
    let quotas = BTreeMap::from([("producer_byte_rate".to_owned(), rate)]);
    SecurityChange::QuotasSet { entity, quotas }
}

/// Something of each kind is there between two moments, and gone after them. Returns them.
async fn changed_api() -> (TestHistoryApi, String, String) {
    let api = api().await;
    let before = moment(&api).await;
    let mechanism = ScramMechanism::Sha256;
    let credential = ScramCredential::from_password(mechanism, "p", vec![1; 16], ITERATIONS_MIN);
    let user = || "u".to_owned();
    let rules = ["b", "a", "c"].map(|name| SecurityChange::AclAdded(rule(name)));
    change(&api, "first", rules.into()).await;
    let set = SecurityChange::CredentialSet { user: user(), mechanism, credential };
    change(&api, "second", vec![set, quota(1.5)]).await;
    let between = moment(&api).await;
    let removed = SecurityChange::CredentialRemoved { user: user(), mechanism };
    change(&api, "third", vec![SecurityChange::AclRemoved(rule("a")), removed]).await;
    (api, before, between)
}

#[tokio::test]
async fn what_there_was_is_what_a_moment_shows() {
    let (api, before, between) = changed_api().await;
    let request_at = |op: &str, at: &str| json!({"op": op, "at": at});
    for (op, field) in [("acls", "acls"), ("users", "users"), ("quotas", "quotas")] {
        let empty = answer_json(&api, request_at(op, &before)).await;
        assert_eq!((&empty[field], &empty["at"]), (&json!([]), &json!(before)), "{op}");
        assert_eq!(empty["next"], Value::Null);
    }
    let acls = answer_json(&api, request_at("acls", &between)).await;
    let names: Vec<&Value> =
        acls["acls"].as_array().unwrap().iter().map(|rule| &rule["name"]).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let expected = json!({"resource_type": "TOPIC", "name": "a", "pattern": "PREFIXED", "principal": "User:a", "host": "*", "operation": "DESCRIBE_CONFIGS", "permission": "DENY"});
    assert_eq!(acls["acls"][0], expected);
    let users = answer_json(&api, request_at("users", &between)).await;
    let mechanism = json!({"mechanism": "SCRAM-SHA-256", "iterations": ITERATIONS_MIN});
    assert_eq!(users["users"], json!([{"user": "u", "mechanisms": [mechanism]}]));
    let quotas = answer_json(&api, request_at("quotas", &between)).await;
    let entity = json!({"user": "u", "client-id": null});
    let expected = json!([{"entity": entity, "quotas": {"producer_byte_rate": 1.5}}]);
    assert_eq!(quotas["quotas"], expected);
    // Now.
    let acls = answer_json(&api, json!({"op": "acls"})).await;
    assert_eq!(acls["acls"].as_array().unwrap().len(), 2);
    assert_eq!(answer_json(&api, json!({"op": "users"})).await["users"], json!([]));
    for op in ["acls", "users", "quotas", "security-log"] {
        let (at, until) = (request_at(op, "u5"), json!({"op": op, "until": "u5"}));
        let document = if op == "security-log" { until } else { at };
        assert_eq!(code(&api, document).await, "bad_moment", "{op}");
    }
    same_text::<AclsResponse>(&api, json!({"op": "acls", "at": between, "limit": 2})).await;
    same_text::<UsersResponse>(&api, json!({"op": "users", "at": between})).await;
    same_text::<QuotasResponse>(&api, json!({"op": "quotas", "at": between})).await;
    same_text::<SecurityLogResponse>(&api, json!({"op": "security-log", "until": between})).await;
}

#[tokio::test]
async fn pages_of_rules_and_of_changes_have_each_once() {
    let (api, before, between) = changed_api().await;
    let (mut skip, mut names) = (Value::Null, Vec::new());
    loop {
        let page = json!({"op": "acls", "at": between, "limit": 1, "skip": skip});
        let page = answer_json(&api, page).await;
        names.extend(page["acls"].as_array().unwrap().iter().map(|rule| rule["name"].clone()));
        skip = page["next"].clone();
        if skip.is_null() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c"]);
    let (mut after, mut entries) = (Value::Null, Vec::new());
    loop {
        let page = json!({"op": "security-log", "limit": 1, "after": after});
        let page = answer_json(&api, page).await;
        assert_eq!(page["entries"].as_array().unwrap().len(), 1, "an entry is not split");
        entries.push(page["entries"][0].clone());
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    let actors: Vec<&Value> = entries.iter().map(|entry| &entry["by"]).collect();
    assert_eq!(actors, ["User:first", "User:second", "User:third"]);
    assert!(entries.iter().all(|entry| entry["from"] == "10.0.0.7"));
    let kinds = |entry: &Value| -> Vec<String> {
        let changes = entry["changes"].as_array().unwrap().iter();
        changes.map(|change| change["kind"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(kinds(&entries[0]), ["acl_added"; 3]);
    assert_eq!(kinds(&entries[1]), ["password_set", "quotas_set"]);
    assert_eq!(kinds(&entries[2]), ["acl_removed", "password_removed"]);
    for (document, count) in [
        (json!({"op": "security-log", "until": before}), 0),
        (json!({"op": "security-log", "until": between}), 2),
        (json!({"op": "security-log", "from": between}), 1),
        (json!({"op": "security-log", "from": before, "until": between}), 2),
    ] {
        let answer = answer_json(&api, document.clone()).await;
        assert_eq!(answer["entries"].as_array().unwrap().len(), count, "{document}");
    }
    // A cut says where the log ends in it: there is no snapshot yet.
    for (at, entries) in [(before, 0), (between, 2)] {
        let cut = answer_json(&api, json!({"op": "cut", "at": at})).await;
        assert_eq!(cut["security"], entries);
    }
}
