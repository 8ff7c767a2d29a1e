//! How many files and sockets this process may have open.
//!
//! Every connection has one, and so many of the journal's files are open as the limit leaves room for.
//! Systems often give a process 1024 softly and far more if it asks; so it asks.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Below this a server with some clients runs out.
const ENOUGH: u64 = 4096;

/// Raises the soft limit to the hard one, and says what it is.
pub(crate) fn raise() {
    let before = getrlimit(Resource::Nofile);
    let raised = raised(before);
    if let Err(error) = &raised {
        tracing::warn!(%error, "the limit on open files and sockets was not raised");
    }
    match raised.unwrap_or(before).current {
        Some(limit) if limit < ENOUGH => tracing::warn!(
            limit,
            "few files and sockets may be open at once: raise the hard limit (ulimit -Hn, LimitNOFILE=) to {ENOUGH} or more"
        ),
        Some(limit) => tracing::info!(limit, "files and sockets that may be open at once"),
        None => tracing::info!("any number of files and sockets may be open at once"),
    }
}

fn raised(before: Rlimit) -> io::Result<Rlimit> {
    let wanted = Rlimit { current: before.maximum, maximum: before.maximum };
    if before.current != wanted.current {
        setrlimit(Resource::Nofile, wanted)?;
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        let less = hard.map_or(8000, |hard| hard - 1);
        let low = Rlimit { current: Some(less), maximum: hard };
        setrlimit(Resource::Nofile, low).expect("less can be had");
        raise();
        assert_eq!(getrlimit(Resource::Nofile).current, hard);
    }
}
