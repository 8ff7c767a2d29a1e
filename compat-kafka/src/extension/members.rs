//! The members of a group at a moment, from the coordinator's snapshot.

use serde_json::{Value, json};

use crate::groups::{GroupSnapshot, MemberSnapshot, assigned};

/// A group's generation and its members; null for a snapshot that this version cannot read.
pub(super) fn membership(snapshot: &[u8]) -> Value {
    match GroupSnapshot::decode(snapshot) {
        Ok(snapshot) => {
            let kind = snapshot.protocol_type.as_deref();
            let members = snapshot.members.iter().map(|one| member(one, kind)).collect::<Vec<_>>();
            json!({
                "generation": snapshot.generation,
                "state": if members.is_empty() { "Empty" } else { "Stable" },
                "kind": snapshot.protocol_type,
                "protocol": snapshot.protocol,
                "leader": snapshot.leader,
                "members": members,
            })
        }
        Err(error) => {
            tracing::warn!(%error, "the snapshot of a group cannot be read");
            Value::Null
        }
    }
}

fn member(member: &MemberSnapshot, kind: Option<&str>) -> Value {
    json!({
        "id": member.member_id,
        "instance": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.client_host,
        // Other kinds of groups use another format.
        "reads": assigned(kind, &member.assignment),
    })
}
