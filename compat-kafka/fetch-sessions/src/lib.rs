//! Fetch sessions: the partitions that a client fetches, so that a request names only what has
//! changed (KIP-227).
//!
//! A session belongs to no connection: a client continues it over another one. A partition that is
//! not due is at its end and watched, and the client has its bounds ([`FetchSession`]).

#![forbid(unsafe_code)]

mod fetch_session;
mod fetch_sessions;

pub use fetch_session::{FetchOutcome, FetchSession, ResolvedFetchTopic, TopicNumber};
pub use fetch_sessions::{
    FetchSessionCounts, FetchSessionRequest, FetchSessions, LockedFetchSession,
};
