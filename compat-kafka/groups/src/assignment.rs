//! The partitions that a member was assigned: it parses the assignment of a "consumer" member.
//!
//! Every version of the format begins with a version, then topics with their partitions, so only
//! this prefix is read. The bytes come from a client: a count is checked before memory is reserved.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes};

use super::subscriptions::{CONSUMER_PROTOCOL_TYPE, read_name};

/// The partitions of an assignment, by topic; `None` if the group's members are not consumers, or
/// the bytes are not an assignment.
pub fn assigned(
    protocol_type: Option<&str>,
    assignment: &[u8],
) -> Option<BTreeMap<String, Vec<i32>>> {
    if protocol_type != Some(CONSUMER_PROTOCOL_TYPE) {
        return None;
    }
    // A member without partitions may have no bytes at all.
    if assignment.is_empty() {
        return Some(BTreeMap::new());
    }
    read(&mut Bytes::copy_from_slice(assignment))
}

fn read(bytes: &mut Bytes) -> Option<BTreeMap<String, Vec<i32>>> {
    let version = bytes.try_get_i16().ok()?;
    let count = bytes.try_get_i32().ok()?;
    if version < 0 || count < 0 {
        return None;
    }
    let mut topics = BTreeMap::<String, Vec<i32>>::new();
    for _ in 0..count {
        let name = read_name(bytes)?;
        let count = usize::try_from(bytes.try_get_i32().ok()?).ok()?;
        if count > bytes.len() / size_of::<i32>() {
            return None;
        }
        topics.entry(name).or_default().extend((0..count).map(|_| bytes.get_i32()));
    }
    Some(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assignment(topics: &[(&str, &[i32])], tail: &[u8]) -> Vec<u8> {
        let mut bytes = 1i16.to_be_bytes().to_vec();
        bytes.extend((topics.len() as i32).to_be_bytes());
        for (name, partitions) in topics {
            bytes.extend((name.len() as i16).to_be_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend((partitions.len() as i32).to_be_bytes());
            bytes.extend(partitions.iter().flat_map(|partition| partition.to_be_bytes()));
        }
        bytes.extend(tail);
        bytes
    }

    #[test]
    fn partitions_are_read_whatever_follows_them() {
        let expected = BTreeMap::from([("a".to_owned(), vec![0, 2]), ("b".to_owned(), vec![])]);
        for tail in [&[][..], &[0, 0, 0, 1, 9]] {
            let bytes = assignment(&[("a", &[0, 2]), ("b", &[])], tail);
            assert_eq!(assigned(Some("consumer"), &bytes), Some(expected.clone()));
        }
        assert_eq!(assigned(Some("consumer"), &[]), Some(BTreeMap::new()));
        assert_eq!(assigned(Some("connect"), &[]), None);
    }

    #[test]
    fn counts_that_cannot_be_true_are_no_assignment() {
        let encoded = assignment(&[("a", &[0, 2])], &[]);
        for length in 1..encoded.len() {
            assert_eq!(assigned(Some("consumer"), &encoded[..length]), None, "{length}");
        }
        let mut huge = encoded;
        huge[9..13].copy_from_slice(&i32::MAX.to_be_bytes());
        assert_eq!(assigned(Some("consumer"), &huge), None);
    }
}
