//! Fetch sessions: the partitions that a client fetches, so that a request names only what has
//! changed (KIP-227).

#![forbid(unsafe_code)]

mod fetch_session;
mod fetch_sessions;

pub use fetch_session::{FetchOutcome, FetchSession, ResolvedFetchTopic, TopicNumber};
pub use fetch_sessions::{FetchSessionCounts, FetchSessions, SharedFetchSession};
