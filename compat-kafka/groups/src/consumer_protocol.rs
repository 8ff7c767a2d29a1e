//! The bytes that members of the protocol type "consumer" exchange in classic groups: what they
//! subscribe to and own, and what they are assigned.
//!
//! The bytes come from clients: a length is checked before memory is reserved.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf, BufMut, Bytes};

use super::subscriptions::read_name;

/// From here on, a subscription says what its member owns.
const OWNED: i16 = 1;
/// From here on, it has a generation.
const GENERATION: i16 = 2;
/// From here on, it has a rack.
const RACK: i16 = 3;
const VERSION_MAX: i16 = 3;

/// A member's metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConsumerSubscription {
    pub(super) version: i16,
    pub topics: BTreeSet<String>,
    pub(super) owned: BTreeMap<String, BTreeSet<u32>>,
    pub(super) rack: Option<String>,
}

impl ConsumerSubscription {
    /// `None` if the bytes are not a subscription.
    pub fn parse(mut bytes: Bytes) -> Option<ConsumerSubscription> {
        let version = bytes.try_get_i16().ok().filter(|version| *version >= 0)?;
        let mut parsed = ConsumerSubscription { version, ..ConsumerSubscription::default() };
        for _ in 0..read_count(&mut bytes)? {
            parsed.topics.insert(read_name(&mut bytes)?);
        }
        skip_user_data(&mut bytes)?;
        if version >= OWNED {
            parsed.owned = read_partitions(&mut bytes)?;
        }
        if version >= GENERATION {
            bytes.try_get_i32().ok()?;
        }
        if version >= RACK {
            parsed.rack = match bytes.first_chunk::<2>()? {
                [0xff, 0xff] => None,
                _ => Some(read_name(&mut bytes)?),
            };
        }
        Some(parsed)
    }
}

/// The partitions of an assignment without user data; `None` for any other bytes. User data belongs
/// to an assignor of the clients, which would miss it.
pub(super) fn parse_plain_assignment(mut bytes: Bytes) -> Option<BTreeMap<String, BTreeSet<u32>>> {
    if bytes.is_empty() {
        return Some(BTreeMap::new());
    }
    bytes.try_get_i16().ok().filter(|version| *version >= 0)?;
    let partitions = read_partitions(&mut bytes)?;
    (skip_user_data(&mut bytes)? == 0).then_some(partitions)
}

/// An assignment in the format of a member whose subscription has this version.
pub(super) fn encode_assignment(version: i16, partitions: &BTreeMap<String, Vec<i32>>) -> Bytes {
    let mut bytes = Vec::new();
    bytes.put_i16(version.min(VERSION_MAX));
    bytes.put_i32(partitions.len() as i32);
    for (name, indexes) in partitions {
        bytes.put_i16(name.len() as i16);
        bytes.put_slice(name.as_bytes());
        bytes.put_i32(indexes.len() as i32);
        indexes.iter().for_each(|index| bytes.put_i32(*index));
    }
    bytes.put_i32(-1);
    bytes.into()
}

fn read_count(bytes: &mut Bytes) -> Option<usize> {
    let count = usize::try_from(bytes.try_get_i32().ok()?).ok()?;
    (count <= bytes.len() / size_of::<i16>()).then_some(count)
}

/// Returns the length of the user data.
fn skip_user_data(bytes: &mut Bytes) -> Option<usize> {
    let length = bytes.try_get_i32().ok()?;
    let length = usize::try_from(length.max(0)).ok()?;
    (length <= bytes.len()).then(|| bytes.advance(length))?;
    Some(length)
}

fn read_partitions(bytes: &mut Bytes) -> Option<BTreeMap<String, BTreeSet<u32>>> {
    let mut partitions = BTreeMap::<String, BTreeSet<u32>>::new();
    for _ in 0..read_count(bytes)? {
        let name = read_name(bytes)?;
        let count = read_count(bytes)?;
        let indexes = partitions.entry(name).or_default();
        for _ in 0..count {
            indexes.insert(u32::try_from(bytes.try_get_i32().ok()?).ok()?);
        }
    }
    Some(partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription() -> Vec<u8> {
        let mut bytes = vec![0, 3, 0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 2, 9, 9];
        bytes.extend([0, 0, 0, 1, 0, 1, b't', 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 5]);
        bytes.extend([0, 0, 0, 7, 0, 1, b'r']);
        bytes
    }

    #[test]
    fn a_subscription_is_read_whole_or_not_at_all() {
        let encoded = subscription();
        let parsed = ConsumerSubscription::parse(encoded.clone().into()).unwrap();
        assert_eq!(parsed.topics, BTreeSet::from(["t".to_owned()]));
        assert_eq!(parsed.owned, BTreeMap::from([("t".to_owned(), BTreeSet::from([4, 5]))]));
        assert_eq!(parsed.rack.as_deref(), Some("r"));
        for length in 0..encoded.len() {
            let cut = Bytes::copy_from_slice(&encoded[..length]);
            assert_eq!(ConsumerSubscription::parse(cut), None, "{length}");
        }
    }

    #[test]
    fn an_assignment_that_was_written_is_read_and_user_data_is_refused() {
        let partitions = BTreeMap::from([("t".to_owned(), vec![4, 5])]);
        let bytes = encode_assignment(9, &partitions);
        let expected = BTreeMap::from([("t".to_owned(), BTreeSet::from([4, 5]))]);
        assert_eq!(parse_plain_assignment(bytes.clone()), Some(expected));
        let mut with_data = bytes[..bytes.len() - 4].to_vec();
        with_data.extend([0, 0, 0, 1, 9]);
        assert_eq!(parse_plain_assignment(with_data.into()), None);
    }
}
