//! The cluster as clients see it: its nodes, the leader and the replicas of each partition, and the
//! coordinator of each group and transactional id.
//!
//! Every response that names a node or an epoch takes it from here. There is one node: it leads
//! every partition, and coordinates all groups and transactions.

use engine::Partition;
use kafka_protocol::ResponseError;
use kafka_protocol::messages::BrokerId;
use kafka_protocol::protocol::StrBytes;

use crate::options::KafkaOptions;
use crate::request::RequestContext;

#[derive(Debug)]
pub(crate) struct ClusterView {
    id: StrBytes,
    node: BrokerId,
    rack: Option<StrBytes>,
}

/// A node, and the address at which the client of a request reaches it.
#[derive(Clone, Debug)]
pub(crate) struct ClusterNode {
    pub(crate) id: BrokerId,
    pub(crate) host: StrBytes,
    pub(crate) port: u16,
    pub(crate) rack: Option<StrBytes>,
}

/// The leader of a partition, and its replicas.
#[derive(Clone, Debug)]
pub(crate) struct PartitionLeadership {
    pub(crate) leader: BrokerId,
    pub(crate) epoch: i32,
    /// The preferred leader is first.
    pub(crate) replicas: Vec<BrokerId>,
    pub(crate) in_sync: Vec<BrokerId>,
}

impl ClusterView {
    pub(crate) fn new(options: &KafkaOptions) -> ClusterView {
        ClusterView {
            id: StrBytes::from_string(options.cluster_id.clone()),
            node: BrokerId(options.node_id),
            rack: options.rack.clone().map(StrBytes::from_string),
        }
    }

    pub(crate) fn id(&self) -> StrBytes {
        self.id.clone()
    }

    pub(crate) fn this_node(&self) -> BrokerId {
        self.node
    }

    /// The id of the node that decides changes of the cluster's metadata.
    pub(crate) fn controller(&self) -> BrokerId {
        self.node
    }

    /// True if the cluster has a node of that id.
    pub(crate) fn contains(&self, node: BrokerId) -> bool {
        node == self.node
    }

    /// All nodes, for the client of a request.
    pub(crate) fn nodes(&self, context: &RequestContext) -> Vec<ClusterNode> {
        vec![self.this_node_for(context)]
    }

    /// The node that coordinates the groups and the transactional ids.
    pub(crate) fn coordinator(&self, context: &RequestContext) -> ClusterNode {
        self.this_node_for(context)
    }

    fn this_node_for(&self, context: &RequestContext) -> ClusterNode {
        let address = context.advertised_address();
        ClusterNode {
            id: self.node,
            host: StrBytes::from_string(address.host),
            port: address.port,
            rack: self.rack.clone(),
        }
    }

    pub(crate) fn leadership(&self, partition: &Partition) -> PartitionLeadership {
        PartitionLeadership {
            leader: self.node,
            epoch: leader_epoch(partition),
            replicas: vec![self.node],
            in_sync: vec![self.node],
        }
    }
}

/// The epoch of a partition's leader.
pub(crate) fn leader_epoch(partition: &Partition) -> i32 {
    i32::try_from(partition.leader_epoch()).unwrap_or(i32::MAX)
}

/// Refuses a leader epoch that is newer than the partition's (KIP-320). A negative epoch is not
/// checked.
pub(crate) fn check_leader_epoch(partition: &Partition, epoch: i32) -> Result<(), ResponseError> {
    if epoch > leader_epoch(partition) { Err(ResponseError::UnknownLeaderEpoch) } else { Ok(()) }
}
