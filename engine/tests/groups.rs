//! Committed offsets, present and past.

use engine::WaitPolicy;
use engine::groups::OffsetCommit;
use hlc::Cut;
use testkit::engine::EngineFixture;

fn commit(topic: &str, partition: u32, offset: i64) -> OffsetCommit {
    let topic = topic.to_owned();
    OffsetCommit {
        topic,
        partition,
        offset,
        leader_epoch: -1,
        metadata: "m".to_owned(),
        retention_ms: None,
    }
}

async fn offsets_at(fixture: &EngineFixture, cut: Cut) -> Vec<(String, u32, i64)> {
    let query = fixture.engine.groups().offsets_at(Some("g"), cut, WaitPolicy::Refuse);
    let (_, _, offsets) = query.await.expect("the moment can be read");
    offsets
        .into_iter()
        .map(|offset| (offset.topic, offset.partition, offset.committed.offset))
        .collect()
}

#[tokio::test]
async fn offsets_read_as_they_were_committed_at_each_moment() {
    let fixture = EngineFixture::new();
    fixture.topic("t", 2).await;
    fixture.engine.groups().commit("g", vec![commit("t", 0, 5), commit("t", 1, 7)]).await.unwrap();
    fixture.advance_clock(10);
    let first = fixture.now();
    fixture.engine.groups().commit("g", vec![commit("t", 0, 9)]).await.unwrap();
    fixture.engine.groups().delete_offsets("g", vec![("t".to_owned(), 1)]).await.unwrap();
    fixture.advance_clock(10);
    let fixture = fixture.restart();
    assert_eq!(offsets_at(&fixture, first).await, [("t".to_owned(), 0, 5), ("t".to_owned(), 1, 7)]);
    assert_eq!(offsets_at(&fixture, fixture.now()).await, [("t".to_owned(), 0, 9)]);
    assert_eq!(fixture.engine.groups().committed_offset("g", "t", 0).unwrap().unwrap().offset, 9);
}

#[tokio::test]
async fn a_group_is_deleted_with_its_offsets_and_no_other_group_s() {
    let fixture = EngineFixture::new();
    fixture.topic("t", 1).await;
    for group in ["g", "g2", "g\0", ""] {
        fixture.engine.groups().commit(group, vec![commit("t", 0, 1)]).await.unwrap();
    }
    fixture.engine.groups().delete("g").await.unwrap();
    assert!(offsets_at(&fixture, fixture.now()).await.is_empty());
    for group in ["g2", "g\0", ""] {
        assert!(
            fixture.engine.groups().committed_offset(group, "t", 0).unwrap().is_some(),
            "{group:?}"
        );
    }
}

#[tokio::test]
async fn offsets_of_a_deleted_topic_go_with_it_and_stay_in_the_past() {
    let fixture = EngineFixture::new();
    let topic = fixture.topic("t", 1).await;
    fixture.engine.groups().commit("g", vec![commit("t", 0, 1)]).await.unwrap();
    fixture.advance_clock(10);
    let before = fixture.now();
    fixture.engine.topics().delete(topic.id).await.unwrap();
    assert!(fixture.engine.groups().committed_offset("g", "t", 0).unwrap().is_none());
    assert_eq!(offsets_at(&fixture, before).await.len(), 1);
}

#[tokio::test]
async fn a_producer_id_is_never_allocated_twice_over_restarts() {
    let mut fixture = EngineFixture::new();
    let mut ids = Vec::new();
    for _ in 0..3 {
        for _ in 0..5 {
            ids.push(fixture.engine.new_producer_id().await.unwrap());
        }
        fixture = fixture.crash(|_| 0);
    }
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
}
