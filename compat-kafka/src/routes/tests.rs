use std::collections::BTreeMap;

use super::*;

/// The APIs that a broker of Apache Kafka 4.3.1 lists in ApiVersions on its port for clients, as it
/// was measured: key, name, and the first and the last version.
#[rustfmt::skip]
const KAFKA: [(i16, &str, i16, i16); 75] = [
    (0, "Produce", 0, 13),
    (1, "Fetch", 4, 18),
    (2, "ListOffsets", 1, 11),
    (3, "Metadata", 0, 13),
    (8, "OffsetCommit", 2, 10),
    (9, "OffsetFetch", 1, 10),
    (10, "FindCoordinator", 0, 6),
    (11, "JoinGroup", 0, 9),
    (12, "Heartbeat", 0, 4),
    (13, "LeaveGroup", 0, 5),
    (14, "SyncGroup", 0, 5),
    (15, "DescribeGroups", 0, 6),
    (16, "ListGroups", 0, 5),
    (17, "SaslHandshake", 0, 1),
    (18, "ApiVersions", 0, 4),
    (19, "CreateTopics", 2, 7),
    (20, "DeleteTopics", 1, 6),
    (21, "DeleteRecords", 0, 2),
    (22, "InitProducerId", 0, 5),
    (23, "OffsetForLeaderEpoch", 2, 4),
    (24, "AddPartitionsToTxn", 0, 5),
    (25, "AddOffsetsToTxn", 0, 4),
    (26, "EndTxn", 0, 5),
    (27, "WriteTxnMarkers", 1, 2),
    (28, "TxnOffsetCommit", 0, 5),
    (29, "DescribeAcls", 1, 3),
    (30, "CreateAcls", 1, 3),
    (31, "DeleteAcls", 1, 3),
    (32, "DescribeConfigs", 1, 4),
    (33, "AlterConfigs", 0, 2),
    (34, "AlterReplicaLogDirs", 1, 2),
    (35, "DescribeLogDirs", 1, 5),
    (36, "SaslAuthenticate", 0, 2),
    (37, "CreatePartitions", 0, 3),
    (38, "CreateDelegationToken", 1, 3),
    (39, "RenewDelegationToken", 1, 2),
    (40, "ExpireDelegationToken", 1, 2),
    (41, "DescribeDelegationToken", 1, 3),
    (42, "DeleteGroups", 0, 2),
    (43, "ElectLeaders", 0, 2),
    (44, "IncrementalAlterConfigs", 0, 1),
    (45, "AlterPartitionReassignments", 0, 1),
    (46, "ListPartitionReassignments", 0, 0),
    (47, "OffsetDelete", 0, 0),
    (48, "DescribeClientQuotas", 0, 1),
    (49, "AlterClientQuotas", 0, 1),
    (50, "DescribeUserScramCredentials", 0, 0),
    (51, "AlterUserScramCredentials", 0, 0),
    (55, "DescribeQuorum", 0, 2),
    (57, "UpdateFeatures", 0, 2),
    (60, "DescribeCluster", 0, 2),
    (61, "DescribeProducers", 0, 0),
    (64, "UnregisterBroker", 0, 0),
    (65, "DescribeTransactions", 0, 0),
    (66, "ListTransactions", 0, 2),
    (68, "ConsumerGroupHeartbeat", 0, 1),
    (69, "ConsumerGroupDescribe", 0, 1),
    (74, "ListConfigResources", 0, 1),
    (75, "DescribeTopicPartitions", 0, 0),
    (76, "ShareGroupHeartbeat", 1, 1),
    (77, "ShareGroupDescribe", 1, 1),
    (78, "ShareFetch", 1, 2),
    (79, "ShareAcknowledge", 1, 2),
    (80, "AddRaftVoter", 0, 1),
    (81, "RemoveRaftVoter", 0, 0),
    (83, "InitializeShareGroupState", 0, 0),
    (84, "ReadShareGroupState", 0, 0),
    (85, "WriteShareGroupState", 0, 1),
    (86, "DeleteShareGroupState", 0, 0),
    (87, "ReadShareGroupStateSummary", 0, 1),
    (88, "StreamsGroupHeartbeat", 0, 0),
    (89, "StreamsGroupDescribe", 0, 0),
    (90, "DescribeShareGroupOffsets", 0, 1),
    (91, "AlterShareGroupOffsets", 0, 0),
    (92, "DeleteShareGroupOffsets", 0, 0),
];

/// The rows of the table in `docs/KAFKA.md` that has this header: the name of each API, and its
/// versions.
fn documented(header: &str) -> BTreeMap<i16, (String, VersionRange)> {
    let manual = include_str!("../../../docs/KAFKA.md");
    let table = manual.lines().skip_while(|line| *line != header).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (min, max) = cells[3].split_once('–').unwrap_or((cells[3], cells[3]));
        let versions = VersionRange { min: min.parse().unwrap(), max: max.parse().unwrap() };
        (cells[1].parse().unwrap(), (cells[2].to_owned(), versions))
    };
    rows.map(row).collect()
}

#[test]
fn no_api_is_listed_twice() {
    let keys: Vec<i16> = routes().iter().map(|route| route.key).collect();
    assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
}

#[test]
fn what_is_served_the_codec_can_read() {
    for route in routes() {
        let Ok(name) = ApiKey::try_from(route.key) else {
            let by_hand = [
                crate::apis::streams_group_heartbeat::API_KEY,
                crate::apis::streams_group_describe::API_KEY,
            ];
            assert!(by_hand.contains(&route.key), "{} is read by hand", route.key);
            continue;
        };
        let codec = name.valid_versions();
        // The fields of the newest version of these are read and written by hand.
        let is_ahead = matches!(
            name,
            ApiKey::ShareFetch
                | ApiKey::ShareAcknowledge
                | ApiKey::DescribeShareGroupOffsets
                | ApiKey::DescribeLogDirs
        );
        let last = codec.max + i16::from(is_ahead);
        assert!(codec.min <= route.versions.min && route.versions.max <= last, "{name:?}");
    }
}

#[test]
fn what_is_served_is_in_the_manual_and_what_is_in_the_manual_is_served() {
    let served = routes().iter().map(|route| {
        let name = ApiKey::try_from(route.key).map(|key| format!("{key:?}"));
        let of_kafka = KAFKA.iter().find(|(key, ..)| *key == route.key);
        let name = name.unwrap_or_else(|()| of_kafka.unwrap().1.to_owned());
        (route.key, (name, route.versions))
    });
    let served: BTreeMap<i16, (String, VersionRange)> = served.collect();
    assert_eq!(documented("| key | API | versions | remarks |"), served);
}

#[test]
fn what_kafka_has_and_this_server_does_not_is_in_the_manual_and_nothing_else() {
    let missing = KAFKA.iter().filter_map(|(key, name, first, last)| {
        let name = (*name).to_owned();
        let Some(route) = route(*key) else {
            return Some((*key, (name, VersionRange { min: *first, max: *last })));
        };
        assert!(route.advertised.min <= *first, "{name} begins later than in Kafka");
        let is_missing = route.advertised.max < *last;
        let versions = VersionRange { min: route.advertised.max + 1, max: *last };
        is_missing.then_some((*key, (name, versions)))
    });
    let missing: BTreeMap<i16, (String, VersionRange)> = missing.collect();
    assert_eq!(documented("| key | API | versions of Kafka | why not |"), missing);
    // It lists these only if a plug-in takes what clients push.
    let optional = [ApiKey::GetTelemetrySubscriptions as i16, ApiKey::PushTelemetry as i16];
    let unknown: Vec<i16> = routes()
        .iter()
        .map(|route| route.key)
        .filter(|key| !KAFKA.iter().any(|(known, ..)| known == key) && !optional.contains(key))
        .collect();
    assert!(unknown.is_empty(), "Kafka lists no such API: {unknown:?}");
}
