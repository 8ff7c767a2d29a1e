//! Streams groups.

use testkit::streams::{TestStreamsHeartbeat, TestTopology};

use super::super::{streams_group_describe, streams_group_heartbeat};
use super::*;
use crate::wire::{put_array, put_no_tags, put_text};

const MISSING_INTERNAL_TOPICS: i8 = 3;

fn join() -> TestStreamsHeartbeat {
    TestStreamsHeartbeat {
        group: "g".to_owned(),
        member: "m".to_owned(),
        topology: Some(TestTopology::counting("t", "repartition", "changelog")),
        owned: Some(Vec::new()),
        ..TestStreamsHeartbeat::default()
    }
}

/// The error, its message, the member's epoch, and the statuses of the answer.
async fn heartbeat(
    guarded: &GuardedKafkaApi,
    request: TestStreamsHeartbeat,
) -> (i16, Option<String>, i32, Vec<(i8, String)>) {
    let key = streams_group_heartbeat::API_KEY;
    let mut answer = guarded.ask_raw(key, 0, request.body()).await;
    let (code, message) = (answer.i16().unwrap(), answer.nullable_text().unwrap());
    answer.text().unwrap();
    let epoch = answer.i32().unwrap();
    for _ in 0..3 {
        answer.i32().unwrap();
    }
    let status = |reader: &mut WireReader| {
        let code = reader.i8()?;
        let detail = reader.text()?;
        reader.end()?;
        Some((code, detail))
    };
    (code, message, epoch, answer.nullable_array(status).unwrap().unwrap_or_default())
}

/// The error, its message, and the state of the group.
async fn describe(guarded: &GuardedKafkaApi) -> (i16, Option<String>, String) {
    let mut out = BytesMut::new();
    put_array(&mut out, ["g"].into_iter(), |out, id| put_text(out, Some(id)));
    out.extend_from_slice(&[1]);
    put_no_tags(&mut out);
    let key = streams_group_describe::API_KEY;
    let mut answer = guarded.ask_raw(key, 0, out.freeze()).await;
    let mut described = None;
    let mut group = |reader: &mut WireReader| {
        let (code, message) = (reader.i16()?, reader.nullable_text()?);
        assert_eq!(reader.text().as_deref(), Some("g"));
        described = Some((code, message, reader.text()?));
        // Only the first group is read.
        None::<()>
    };
    assert!(answer.array(&mut group).is_none());
    described.unwrap()
}

#[tokio::test]
async fn members_describe_the_topics_of_their_topology_and_create_what_is_missing() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    let refused = |code: i16| (code, None, 0, Vec::new());
    assert_eq!(heartbeat(&guarded, join()).await, refused(GROUP_REFUSED));
    guarded.allow(Operation::Read, Resource::group("g")).await;
    for topic in ["t", "repartition", "changelog"] {
        assert_eq!(heartbeat(&guarded, join()).await, refused(TOPIC_REFUSED), "{topic}");
        guarded.allow(Operation::Describe, Resource::topic(topic)).await;
    }
    guarded.allow(Operation::Create, Resource::topic("changelog")).await;
    let (code, _, epoch, statuses) = heartbeat(&guarded, join()).await;
    let detail = "Internal topics are missing: changelog, repartition; Unauthorized to CREATE on topics repartition.";
    assert_eq!((code, statuses), (0, vec![(MISSING_INTERNAL_TOPICS, detail.to_owned())]));
    assert!(guarded.api.kafka.engine.topics().named("changelog").is_none(), "all or nothing");
    guarded.allow(Operation::Create, Resource::topic("repartition")).await;
    let alive = || TestStreamsHeartbeat { topology: None, owned: None, epoch, ..join() };
    assert_eq!(heartbeat(&guarded, alive()).await.0, 0);
    assert!(guarded.api.kafka.engine.topics().named("repartition").is_some());
    let (code, _, _, statuses) = heartbeat(&guarded, alive()).await;
    assert_eq!((code, statuses), (0, Vec::new()));
    guarded.revoke(Operation::Read, Resource::group("g")).await;
    assert_eq!(heartbeat(&guarded, alive()).await, refused(GROUP_REFUSED));
}

#[tokio::test]
async fn a_moment_of_a_topic_is_described_as_the_topic_is() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    let moment = guarded.moment_of("t").await;
    guarded.allow(Operation::Read, Resource::group("g")).await;
    for topic in ["repartition", "changelog"] {
        guarded.allow(Operation::Describe, Resource::topic(topic)).await;
    }
    let topology = TestTopology::counting(&moment, "repartition", "changelog");
    let join = || TestStreamsHeartbeat { topology: Some(topology.clone()), ..join() };
    assert_eq!(heartbeat(&guarded, join()).await.0, TOPIC_REFUSED);
    guarded.allow(Operation::Describe, Resource::topic("t")).await;
    assert_eq!(heartbeat(&guarded, join()).await.0, 0);
}

#[tokio::test]
async fn a_group_with_topics_that_a_client_may_not_describe_is_hidden() {
    let guarded = GuardedKafkaApi::new();
    guarded.api.topic("t", 1).await;
    guarded.allow(Operation::All, Resource::group("g")).await;
    guarded.allow(Operation::Create, Resource::CLUSTER).await;
    let topics = ["t", "repartition", "changelog"];
    for topic in topics {
        guarded.allow(Operation::Describe, Resource::topic(topic)).await;
    }
    assert_eq!(heartbeat(&guarded, join()).await.0, 0);
    assert!(guarded.api.kafka.engine.topics().named("changelog").is_some());
    assert_eq!(describe(&guarded).await.0, 0);
    for topic in topics {
        guarded.revoke(Operation::Describe, Resource::topic(topic)).await;
        let message =
            "The described group uses topics that the client is not authorized to describe.";
        let hidden = (TOPIC_REFUSED, Some(message.to_owned()), String::new());
        assert_eq!(describe(&guarded).await, hidden, "{topic}");
        guarded.allow(Operation::Describe, Resource::topic(topic)).await;
    }
    guarded.revoke(Operation::All, Resource::group("g")).await;
    assert_eq!(describe(&guarded).await, (GROUP_REFUSED, None, String::new()));
}
