//! Our own client library: Kafka's protocol, and the requests about the past that Kafka does not
//! have.
//!
//! The library finds the leader of a partition, negotiates versions, and transfers batches of
//! records as bytes. It does not know what is in a batch (`kafka-records` does), only which offsets
//! it has, nor how anything looks on a terminal. With a stock Kafka everything works except
//! [`history`], which reports that the server is not Freezeframe.
//!
//! These properties hold: every wait has a limit, and an announced length allocates no memory
//! before the bytes arrive.
//!
//! ```no_run
//! # async fn example() -> Result<(), client::ClientError> {
//! use client::{Client, FetchOptions, Options};
//!
//! let mut client = Client::connect("127.0.0.1:9092", Options::default()).await?;
//! let fetched = client.fetch("orders", &[(0, 0)], &FetchOptions::default()).await?;
//! println!("{} bytes", fetched[0].batches.len());
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod api;
mod bootstrap;
mod cluster;
mod connection;
mod cut;
mod error;
mod fetch;
mod frame;
mod groups;
pub mod history;
mod import;
mod link;
mod login;
mod offsets;
mod partitioner;
pub mod plugins;
mod produce;
mod quotas;
mod security;
mod stream;
mod topics;
mod transaction;
pub mod tree;
pub mod zookeeper;

pub use cluster::{Client, Options};
pub use cut::{CutPartitionRecords, CutRecords};
pub use error::ClientError;
pub use fetch::{BatchStamps, FetchOptions, FetchPosition, FetchedPartition};
pub use frame::FRAME_BYTES_MAX;
pub use groups::{
    ConsumerGroupDescription, GroupCommittedOffset, GroupListing, GroupMemberDescription,
};
pub use history_documents::Isolation;
pub use import::ImportedBatches;
pub use kafka_protocol::ResponseError;
pub use link::LinkChoice;
pub use login::{ClientLogin, LoginMechanism};
pub use offsets::OffsetSpec;
pub use partitioner::partition_of_key;
pub use produce::{ProducedBatch, RequiredAcks};
pub use security::UserDescription;
pub use topics::{NewTopic, PartitionDescription, TopicConfigValue, TopicDescription};
pub use transaction::{ClientTransaction, TransactionDescription};
