//! DeleteGroups (42): deletes groups without members, and their offsets.

use std::collections::HashSet;
use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_errors::group_error;
use kafka_groups::GroupError;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::delete_groups_response::DeletableGroupResult;
use kafka_protocol::messages::{DeleteGroupsRequest, DeleteGroupsResponse, GroupId};
use kafka_protocol::protocol::VersionRange;

use super::offset_commit::coordinator_error;
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

impl ApiHandler for DeleteGroupsRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DeleteGroupsResponse {
        let mut ids = HashSet::new();
        let mut results = Vec::with_capacity(self.groups_names.len());
        for group in self.groups_names.into_iter().filter(|group| ids.insert(group.clone())) {
            let code = delete(kafka, context, &group).await.err().map_or(0, |error| error.code());
            results.push(result(group, code));
        }
        DeleteGroupsResponse::default().with_results(results)
    }
}

fn result(group: GroupId, code: i16) -> DeletableGroupResult {
    DeletableGroupResult::default().with_group_id(group).with_error_code(code)
}

async fn delete(
    kafka: &KafkaServer,
    context: &RequestContext,
    group: &str,
) -> Result<(), ResponseError> {
    kafka.authorize(context, Operation::Delete, Resource::group(group))?;
    let mut deleted = kafka.coordinators.groups.delete(group).await;
    if deleted == Err(GroupError::GroupIdNotFound) {
        let offsets = kafka.engine.groups().committed_offsets(Some(group));
        if !offsets.map_err(|error| coordinator_error(&error))?.is_empty() {
            // No request has used the group in this incarnation.
            kafka.coordinators.groups.restore_without_members(group);
            deleted = kafka.coordinators.groups.delete(group).await;
        }
    }
    deleted.map_err(group_error)
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use engine::groups::OffsetCommit;
    use kafka_protocol::messages::offset_commit_request::{
        OffsetCommitRequestPartition, OffsetCommitRequestTopic,
    };
    use kafka_protocol::messages::{LeaveGroupRequest, OffsetCommitRequest};

    use super::super::join_group::test_kafka_api::{TestKafkaApi, group_id, topic_name};
    use super::*;

    async fn delete_in(api: &TestKafkaApi, version: i16, groups: &[&str]) -> Vec<(String, i16)> {
        let groups = groups.iter().map(|group| group_id(group)).collect();
        let request = DeleteGroupsRequest::default().with_groups_names(groups);
        let results = api.ask(version, request).await.results;
        results.iter().map(|result| (result.group_id.to_string(), result.error_code)).collect()
    }

    async fn commit(api: &TestKafkaApi, group: &str) {
        let fence = kafka_groups::CommitFence {
            member_id: String::new(),
            group_instance_id: None,
            generation_id: -1,
            kind: kafka_groups::CommitKind::Plain,
            knows_epochs: true,
        };
        api.kafka.coordinators.groups.commit(group, &fence, &Vec::new, || ()).unwrap();
        commit_without_coordinator(api, group).await;
    }

    /// A commit that the coordinator does not know about.
    async fn commit_without_coordinator(api: &TestKafkaApi, group: &str) {
        let offset = OffsetCommit {
            topic: "a".to_owned(),
            partition: 0,
            offset: 5,
            leader_epoch: -1,
            metadata: String::new(),
            retention_ms: None,
        };
        api.kafka.engine.groups().commit(group, vec![offset]).await.unwrap();
    }

    fn offset_count(api: &TestKafkaApi, group: &str) -> usize {
        api.kafka.engine.groups().committed_offsets(Some(group)).unwrap().len()
    }

    #[tokio::test]
    async fn a_group_of_offsets_alone_goes_with_them_for_good() {
        for version in 0..=2 {
            let api = TestKafkaApi::new();
            commit(&api, "g").await;
            commit(&api, "stays").await;
            assert_eq!(delete_in(&api, version, &["g", "g"]).await, [("g".to_owned(), 0)]);
            let api = api.restart();
            assert_eq!((offset_count(&api, "g"), offset_count(&api, "stays")), (0, 1));
            assert_eq!(api.kafka.coordinators.groups.list().len(), 1);
            assert_eq!(delete_in(&api, version, &["g"]).await, [("g".to_owned(), 69)]);
        }
    }

    #[tokio::test]
    async fn a_group_with_members_stays_and_one_that_all_have_left_goes() {
        let api = TestKafkaApi::new();
        let member = api.stable_group("g").await;
        commit_without_coordinator(&api, "g").await;
        let non_empty = ResponseError::NonEmptyGroup.code();
        let results = delete_in(&api, 2, &["g", "x"]).await;
        assert_eq!(results, [("g".to_owned(), non_empty), ("x".to_owned(), 69)]);
        assert_eq!(offset_count(&api, "g"), 1);
        let leave = LeaveGroupRequest::default().with_group_id(group_id("g"));
        assert_eq!(api.ask(0, leave.with_member_id(member.id)).await.error_code, 0);
        assert_eq!(delete_in(&api, 2, &["g"]).await, [("g".to_owned(), 0)]);
        let api = api.restart();
        assert_eq!(offset_count(&api, "g"), 0);
        assert!(api.kafka.coordinators.groups.list().is_empty());
    }

    #[tokio::test]
    async fn offsets_that_outlived_their_group_can_be_deleted() {
        let api = TestKafkaApi::new();
        commit_without_coordinator(&api, "g").await;
        assert_eq!(delete_in(&api, 2, &["g"]).await, [("g".to_owned(), 0)]);
        assert_eq!(offset_count(&api, "g"), 0);
    }

    /// It does not matter whether the commit is applied by then.
    #[tokio::test]
    async fn a_commit_on_its_way_goes_with_the_group_that_is_deleted_behind_it() {
        let api = TestKafkaApi::new();
        api.topic("a", 1).await;
        let partition = OffsetCommitRequestPartition::default().with_committed_offset(5);
        let topic = OffsetCommitRequestTopic::default()
            .with_name(topic_name("a"))
            .with_partitions(vec![partition]);
        let request = OffsetCommitRequest::default()
            .with_group_id(group_id("g"))
            .with_generation_id_or_member_epoch(-1)
            .with_topics(vec![topic]);
        let mut committing = Box::pin(api.ask(8, request));
        let mut codes = None;
        let once = std::future::poll_fn(|context| {
            if let Poll::Ready(answer) = committing.as_mut().poll(context) {
                codes = Some(answer.topics[0].partitions[0].error_code);
            }
            Poll::Ready(())
        });
        once.await;
        assert_eq!(delete_in(&api, 2, &["g"]).await, [("g".to_owned(), 0)]);
        let code = match codes {
            Some(code) => code,
            None => committing.await.topics[0].partitions[0].error_code,
        };
        assert_eq!(code, 0);
        let group_count = api.kafka.coordinators.groups.list().len();
        assert_eq!((offset_count(&api, "g"), group_count), (0, 0), "it was committed before");
    }
}
