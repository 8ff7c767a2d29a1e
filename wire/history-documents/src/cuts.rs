//! Cuts: one moment across all partitions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::completeness::{complete, is_complete};
use crate::moment::{Isolation, PendingMomentPolicy, Stamp};

/// A request for a cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CutRequest {
    /// The moment, of either time.
    pub at: String,
    /// Restricts the cut to these topics.
    #[serde(default)]
    pub topics: Option<Vec<String>>,
    /// The policy for a moment that is not final yet.
    #[serde(default)]
    pub when: PendingMomentPolicy,
    /// The longest wait for the moment; if `None`, as long as the server's settings say.
    #[serde(default)]
    pub patience_ms: Option<u64>,
    /// The isolation level: it selects the records of transactions that are in the cut.
    #[serde(default, skip_serializing_if = "Isolation::is_default")]
    pub isolation: Isolation,
}

/// A cut: the end of each partition at one moment, and how precise the answer is.
///
/// A cut may have very many partitions. The server puts a type in their place that is written
/// without a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CutResponse<Partitions = Vec<CutPartitionOffsets>> {
    /// The moment of the answer, in its resolved form.
    pub at: String,
    /// The kind of answer for each partition: `prefix`, all records up to an offset.
    pub kind: String,
    /// True if the cut is causally closed: with an event, it holds all events that happened before
    /// it. True by system time, false by user time.
    pub closed: bool,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// `frontier` in milliseconds since 1970.
    pub frontier_ms: u64,
    /// The largest difference of the server's clocks, from its settings.
    pub skew_ms: u64,
    /// The estimated error of the server's wall clock: the kernel's value, at most `skew_ms`.
    pub clock_error_ms: u64,
    /// True if the server's kernel reports a synchronised wall clock.
    pub clock_synchronised: bool,
    /// The lead of stamps over the server's wall clock, in milliseconds: usually 0.
    pub ahead_ms: u64,
    /// True if everything in the cut is on stable storage.
    pub durable: bool,
    /// The cut hash: always the same for the same moment and isolation. It stands for topics and
    /// their records; `zxid` and `security` stand for the rest. Both isolations have the same hash
    /// unless a transaction was committed before the moment whose markers come after it.
    pub hash: String,
    /// The isolation level: it selects the records of transactions that are in the cut. The hash
    /// stands for these.
    #[serde(default)]
    pub isolation: Isolation,
    /// The last transaction on znodes in the cut; `null` by user time, where it is not kept, and
    /// for those who may not describe the cluster.
    #[serde(default)]
    pub zxid: Option<i64>,
    /// The end of the log of access control lists, users, quotas and tokens in the cut: another one
    /// once any has changed. `null` as `zxid` is.
    #[serde(default)]
    pub security: Option<u64>,
    /// True if nothing was left out. The answer leaves out what the requester may not see.
    #[serde(default = "complete", skip_serializing_if = "is_complete")]
    pub complete: bool,
    /// The partitions.
    pub partitions: Partitions,
}

/// A partition within a cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CutPartitionOffsets<Topic = String> {
    /// The topic.
    pub topic: Topic,
    /// The partition.
    pub partition: i32,
    /// The first offset in the cut.
    pub start: i64,
    /// The first offset after it.
    pub end: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_out_as_it_went_in() {
        let text = r#"{"at":"s5","kind":"prefix","closed":true,"frontier":"sh0000000000050001","frontier_ms":5,"skew_ms":500,"clock_error_ms":3,"clock_synchronised":true,"ahead_ms":0,"durable":true,"hash":"00112233445566778899aabbccddeeff","isolation":"committed","zxid":7,"security":3,"partitions":[{"topic":"a","partition":0,"start":0,"end":17}]}"#;
        let cut: CutResponse = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&cut).unwrap(), text);
    }
}
