//! The region that a client names to its server, and the errors of transfers.

/// A region of the peer's memory, as the peer described it. Nothing in it is trusted: the peer's
/// own device refuses an access outside of its registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The address of its first byte in the peer's process.
    pub address: u64,
    /// Its length in bytes.
    pub length: u64,
    /// The key that the peer's device gave it.
    pub key: u32,
}

impl RemoteRegion {
    /// Checks that `length` bytes from `at` on are inside.
    ///
    /// # Errors
    ///
    /// [`LinkError::OutOfRegion`].
    pub fn check(&self, at: u64, length: u64) -> Result<(), LinkError> {
        let is_inside = at.checked_add(length).is_some_and(|end| end <= self.length)
            && self.address.checked_add(self.length).is_some();
        if is_inside {
            return Ok(());
        }
        Err(LinkError::OutOfRegion { at, length, region: self.length })
    }
}

/// The reason why bytes were not moved.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LinkError {
    /// The transfer does not fit. Nothing was moved, and the link goes on.
    #[error("the transfer is not inside of the region. at={at}, bytes={length}, region={region}")]
    OutOfRegion {
        /// The first byte in the region.
        at: u64,
        /// The length of the transfer.
        length: u64,
        /// The length of the region.
        region: u64,
    },
    /// There is no memory for the transfer. Nothing was moved, and the link goes on.
    #[error("there is no room for {0} bytes in the memory that devices may use")]
    NoMemory(usize),
    /// The peer, the network or the device failed, or the peer does not allow the access. Some
    /// bytes may have been moved. The link is of no further use.
    #[error("the link is broken: {0}")]
    Broken(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_inside_of_a_region_is_moved() {
        let region = RemoteRegion { address: 4096, length: 100, key: 7 };
        for (at, length) in [(0, 100), (100, 0), (99, 1), (0, 0)] {
            assert_eq!(region.check(at, length), Ok(()), "{at} {length}");
        }
        for (at, length) in [(0, 101), (101, 0), (100, 1), (u64::MAX, 1), (1, u64::MAX)] {
            assert!(region.check(at, length).is_err(), "{at} {length}");
        }
        let overflowing = RemoteRegion { address: u64::MAX - 10, length: 100, key: 7 };
        assert!(overflowing.check(0, 1).is_err(), "no memory is there");
    }
}
