//! Bodies of requests over HTTP: documents of the history API.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use engine::security::{Principal, Requester};
use history_api::HistoryAccess;
use history_documents::HistoryRequest;

use crate::texts;
use crate::world::{PATIENCE, with_world};

pub(crate) fn run(input: &[u8]) {
    let Ok(request) = serde_json::from_slice::<HistoryRequest>(input) else { return };
    with_world(|world| {
        let who = Requester::new(Principal::anonymous(), IpAddr::V4(Ipv4Addr::LOCALHOST));
        let access = HistoryAccess::new(Arc::clone(world.engine.security()), Arc::new(who));
        let history = world.kafka.history();
        let answering = async { history.answer(request, &access).await };
        let answered =
            world.runtime.block_on(async { tokio::time::timeout(PATIENCE, answering).await });
        let document = match answered.expect("an answer does not hang") {
            Ok(text) => text,
            Err(refusal) => refusal.document(),
        };
        let read: Result<serde_json::Value, _> = serde_json::from_str(&document);
        assert!(read.is_ok(), "an answer is a document: {document}");
    });
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"op":"cut","at":"s1795252948000"}"#,
        r#"{"op":"cut","at":"u5@s6","topics":["t"]}"#,
        r#"{"op":"diff","from":"s4","until":"s5","limit":10,"cursor":"x"}"#,
        r#"{"op":"topics","at":"s5","limit":3}"#,
        r#"{"op":"offsets","group":"g","at":"s5"}"#,
        r#"{"op":"groups","at":"s5"}"#,
        r#"{"op":"seek-group","group":"g","at":"s5","topics":["t"],"dry_run":true}"#,
        r#"{"op":"restore-group","group":"g","at":"s5","dry_run":true}"#,
        r#"{"op":"pin","name":"p","at":"s5","expires_in_ms":5}"#,
        r#"{"op":"unpin","name":"p"}"#,
        r#"{"op":"pins"}"#,
        r#"{"op":"plugins"}"#,
        r#"{"op":"add-plugin","name":"p","module":"AGFzbQEAAAA="}"#,
        r#"{"op":"tree","do":"list","path":"/topics/t","after":0}"#,
        r#"{"op":"tree","do":"stat","path":"/.at/s5/topics/t/0.jsonl"}"#,
        r#"{"op":"tree","do":"read","path":"/topics/t/0.values@s5","offset":0,"length":100}"#,
        r#"{"op":"acls","at":"s5"}"#,
        r#"{"op":"users"}"#,
        r#"{"op":"quotas"}"#,
        r#"{"op":"security-log","from":0,"limit":5}"#,
    ])
}
