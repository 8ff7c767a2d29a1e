//! The statuses of a group, which its members get beside their tasks.

/// Something that members should know of their group. The numbers are Kafka's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamsStatus {
    pub code: i8,
    pub detail: String,
}

const STALE_TOPOLOGY: i8 = 0;
const MISSING_SOURCE_TOPICS: i8 = 1;
const INCORRECTLY_PARTITIONED_TOPICS: i8 = 2;
const MISSING_INTERNAL_TOPICS: i8 = 3;
const SHUTDOWN_APPLICATION: i8 = 4;
const ASSIGNMENT_DELAYED: i8 = 5;

impl StreamsStatus {
    pub(super) fn stale_topology(member: i32, group: i32) -> StreamsStatus {
        let detail = format!(
            "The member's topology epoch {member} is behind the group's topology epoch {group}."
        );
        StreamsStatus { code: STALE_TOPOLOGY, detail }
    }

    pub(super) fn missing_sources(topics: &str) -> StreamsStatus {
        let detail = format!("Source topics {topics} are missing.");
        StreamsStatus { code: MISSING_SOURCE_TOPICS, detail }
    }

    /// Topics have other numbers of partitions than the topology needs.
    pub(super) fn misfit(detail: String) -> StreamsStatus {
        StreamsStatus { code: INCORRECTLY_PARTITIONED_TOPICS, detail }
    }

    pub(super) fn missing_internal(topics: &str) -> StreamsStatus {
        let detail = format!("Internal topics are missing: {topics}");
        StreamsStatus { code: MISSING_INTERNAL_TOPICS, detail }
    }

    pub(super) fn shutdown(member: &str) -> StreamsStatus {
        let detail = format!(
            "Streams group member {member} encountered a fatal error and requested a shutdown for the \
             entire application."
        );
        StreamsStatus { code: SHUTDOWN_APPLICATION, detail }
    }

    pub(super) fn delayed(setting: &str) -> StreamsStatus {
        let detail = format!("Assignment delayed due to the configured {setting}.");
        StreamsStatus { code: ASSIGNMENT_DELAYED, detail }
    }

    /// Returns true if internal topics are missing.
    pub fn is_missing_internal(&self) -> bool {
        self.code == MISSING_INTERNAL_TOPICS
    }
}
