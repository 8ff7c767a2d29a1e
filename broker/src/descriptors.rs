//! The limit on open files and sockets of this process.
//!
//! The journal has a share for its files. A reserve is kept for everything else that the server
//! opens. Client connections get the rest, so that no number of clients prevents the store from
//! opening a file. Systems often set a soft limit of 1024 and allow a process to raise it much
//! further. The server raises it.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// The reserve: for the admin port (at most 32), the control socket, mounts, the catalog, files
/// that are being written, and connections that are refused.
const RESERVED_DESCRIPTORS: u64 = 128;
/// The least number of client connections, however low the limit is.
const CONNECTIONS_MIN: u64 = 8;

/// Raises the soft limit to the hard one, and returns it; `None` if there is no limit.
pub(crate) fn raise_limit() -> Option<u64> {
    let before = getrlimit(Resource::Nofile);
    let raised = raise_soft_limit(before);
    if let Err(error) = &raised {
        tracing::warn!(%error, "the limit on open files and sockets was not raised");
    }
    raised.unwrap_or(before).current
}

/// Lowers `max.connections` to what the limit on open files and sockets allows.
pub(crate) fn limit_connections(config: &mut Config) {
    // A link has a descriptor of its own.
    let descriptors_each = 1 + u64::from(config.links.may_open());
    let connections = &mut config.kafka_server.dynamic.limits.max;
    *connections = connections_max(raise_limit(), *connections, descriptors_each);
}

/// The number of client connections, at most `wanted`, of a process that may open `limit` files and
/// sockets, where each connection takes `each` of them. Logs it.
pub(crate) fn connections_max(limit: Option<u64>, wanted: usize, each: u64) -> usize {
    let Some(limit) = limit else {
        tracing::info!(connections = wanted, "any number of files and sockets may be open at once");
        return wanted;
    };
    let reserved = storage::disk::descriptors_max(Some(limit)) + RESERVED_DESCRIPTORS;
    let rest = (limit.saturating_sub(reserved) / each).max(CONNECTIONS_MIN);
    let connections = usize::try_from(rest).unwrap_or(usize::MAX).min(wanted);
    if connections < wanted {
        let limit_needed = needed_for(wanted as u64 * each);
        tracing::warn!(
            limit,
            connections,
            "few files and sockets may be open at once: for {wanted} connections (max.connections), raise the hard limit (ulimit -Hn, LimitNOFILE=) to {limit_needed}"
        );
    } else {
        tracing::info!(limit, connections, "files and sockets that may be open at once");
    }
    connections
}

/// The limit that is enough where connections take this many files and sockets.
fn needed_for(connections: u64) -> u64 {
    let upper_bound = connections + RESERVED_DESCRIPTORS + storage::disk::descriptors_max(None);
    // Up to its maximum, the store takes a quarter.
    let quarter = (connections + RESERVED_DESCRIPTORS).saturating_mul(4).div_ceil(3) + 1;
    quarter.min(upper_bound)
}

fn raise_soft_limit(before: Rlimit) -> io::Result<Rlimit> {
    let raised = Rlimit { current: before.maximum, maximum: before.maximum };
    if before.current != raised.current {
        setrlimit(Resource::Nofile, raised)?;
    }
    Ok(raised)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        let soft = hard.map_or(8000, |hard| hard - 1);
        let low = Rlimit { current: Some(soft), maximum: hard };
        setrlimit(Resource::Nofile, low).expect("less can be had");
        assert_eq!(raise_limit(), hard);
        assert_eq!(getrlimit(Resource::Nofile).current, hard);
    }

    #[test]
    fn clients_are_left_what_the_store_does_not_need() {
        assert_eq!(connections_max(None, 4096, 1), 4096);
        assert_eq!(connections_max(Some(1 << 20), 4096, 1), 4096);
        assert_eq!(connections_max(Some(1024), 4096, 1), 1024 - 256 - 128);
        assert_eq!(connections_max(Some(256), 4096, 1), 64);
        assert_eq!(connections_max(Some(256), 10, 1), 10, "no more than are wanted");
        assert_eq!(connections_max(Some(1024), 4096, 2), (1024 - 256 - 128) / 2);
        assert_eq!(connections_max(Some(64), 4096, 1), 8, "some, however low the limit is");
        for wanted in [1, 64, 640, 2000, 4096, 100_000] {
            assert_eq!(
                connections_max(Some(needed_for(wanted)), wanted as usize, 1),
                wanted as usize
            );
        }
    }
}
