//! Version 10 of OffsetCommit and OffsetFetch, which name topics by id (KIP-848), and which the
//! codec does not have.
//!
//! They differ from version 9 in nothing else. So a request is rewritten as one of version 9 whose
//! topics have their id as name, after a mark that no topic's name has; and a response the other
//! way round.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use engine::TopicId;
use kafka_protocol::messages::{ApiKey, ResponseHeader, TopicName};
use kafka_protocol::protocol::{Encodable, HeaderVersion, Request, StrBytes};
use uuid::Uuid;

use crate::request::{BadRequest, RequestBody, RequestContext, decode};
use crate::response::KafkaResponse;
use crate::wire::put_varint;

/// The version that names topics by id.
pub(crate) const BY_ID: i16 = 10;
/// The version that the codec has.
const BY_NAME: i16 = 9;
/// No topic's name has it.
const MARK: char = '#';
const NAME_BYTES: usize = 33;

/// A field of a message that is flexible (KIP-482).
enum Field {
    Fixed(usize),
    Text,
    Topic,
    /// Numbers of 32 bits.
    Numbers,
    /// Structs, each of which ends with tagged fields.
    Array(&'static [Field]),
}

use Field::{Array, Fixed, Numbers, Text, Topic};

const COMMIT_REQUEST: &[Field] =
    &[Text, Fixed(4), Text, Text, Array(&[Topic, Array(&[Fixed(16), Text])])];
const COMMIT_RESPONSE: &[Field] = &[Fixed(4), Array(&[Topic, Array(&[Fixed(6)])])];
const FETCH_REQUEST: &[Field] =
    &[Array(&[Text, Text, Fixed(4), Array(&[Topic, Numbers])]), Fixed(1)];
const FETCH_RESPONSE: &[Field] =
    &[Fixed(4), Array(&[Text, Array(&[Topic, Array(&[Fixed(16), Text, Fixed(2)])]), Fixed(2)])];

/// The name that stands for an id.
pub(crate) fn name_of_id(id: &TopicId) -> TopicName {
    TopicName(StrBytes::from_string(format!("{MARK}{}", Uuid::from_bytes(*id).simple())))
}

/// The id that a name stands for.
pub(crate) fn id_of_name(name: &str) -> Option<TopicId> {
    let id = name.strip_prefix(MARK).filter(|id| id.len() == NAME_BYTES - 1)?;
    Uuid::try_parse(id).ok().map(Uuid::into_bytes)
}

/// Decodes a request of any version.
pub(crate) fn decode_by_id<R: Request>(
    context: &RequestContext,
    body: RequestBody,
) -> Result<R, BadRequest> {
    if context.version != BY_ID {
        return decode::<R>(context, body);
    }
    let fields = if R::KEY == ApiKey::OffsetCommit as i16 { COMMIT_REQUEST } else { FETCH_REQUEST };
    let rewritten =
        rewrite(fields, body.into_bytes(), Direction::ToNames).ok_or_else(|| BadRequest {
            api: context.api_key,
            version: context.version,
            reason: "the request ends early, or has a length that cannot be".to_owned(),
        })?;
    decode::<R>(&RequestContext { version: BY_NAME, ..context.clone() }, rewritten)
}

/// Encodes a response of [`BY_ID`].
pub(crate) fn encode_by_id<R: Request>(
    context: &RequestContext,
    response: &R::Response,
) -> Result<KafkaResponse, BadRequest> {
    let bad = |reason: String| BadRequest { api: context.api_key, version: BY_ID, reason };
    let is_commit = R::KEY == ApiKey::OffsetCommit as i16;
    let fields = if is_commit { COMMIT_RESPONSE } else { FETCH_RESPONSE };
    let mut body = BytesMut::new();
    let encoded = response.encode(&mut body, BY_NAME);
    encoded.map_err(|error| bad(format!("the answer cannot be encoded: {error:#}")))?;
    let body = rewrite(fields, body.freeze(), Direction::ToIds)
        .ok_or_else(|| bad("the answer has a topic without an id".to_owned()))?;
    let (mut answer, mut result) = (KafkaResponse::new(), Ok(()));
    answer.write(|out| {
        let header = R::Response::header_version(BY_ID);
        let id = ResponseHeader::default().with_correlation_id(context.correlation_id);
        result = id.encode(out, header);
        out.put_slice(&body);
    });
    result.map(|()| answer).map_err(|error| bad(format!("{error:#}")))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToNames,
    ToIds,
}

/// `None` if the bytes are not a message of these fields.
fn rewrite(fields: &[Field], body: Bytes, direction: Direction) -> Option<Bytes> {
    let mut rewriter = Rewriter { from: body, to: BytesMut::new(), direction };
    rewriter.fields(fields)?;
    rewriter.tagged_fields()?;
    rewriter.to.extend_from_slice(&rewriter.from);
    Some(rewriter.to.freeze())
}

struct Rewriter {
    from: Bytes,
    to: BytesMut,
    direction: Direction,
}

impl Rewriter {
    fn fields(&mut self, fields: &[Field]) -> Option<()> {
        fields.iter().try_for_each(|field| self.field(field))
    }

    fn field(&mut self, field: &Field) -> Option<()> {
        match field {
            Field::Fixed(bytes) => self.copy(*bytes),
            Field::Text => {
                let length = self.length()?;
                self.copy(length)
            }
            Field::Topic => self.topic(),
            Field::Numbers => {
                let count = self.length()?;
                self.copy(count.checked_mul(size_of::<i32>())?)
            }
            Field::Array(fields) => {
                for _ in 0..self.length()? {
                    self.fields(fields)?;
                    self.tagged_fields()?;
                }
                Some(())
            }
        }
    }

    fn topic(&mut self) -> Option<()> {
        match self.direction {
            Direction::ToNames => {
                let id = self.from.try_split_to(size_of::<TopicId>())?;
                let name = name_of_id(&id[..].try_into().ok()?);
                self.to.put_u8(NAME_BYTES as u8 + 1);
                self.to.put_slice(name.as_bytes());
            }
            Direction::ToIds => {
                let length = varint(&mut self.from)?.checked_sub(1)?;
                let name = self.from.try_split_to(length as usize)?;
                let id = id_of_name(std::str::from_utf8(&name).ok()?)?;
                self.to.put_slice(&id);
            }
        }
        Some(())
    }

    /// A length or a count; 0 for null.
    fn length(&mut self) -> Option<usize> {
        let length = varint(&mut self.from)?;
        put_varint(&mut self.to, length);
        Some(length.saturating_sub(1) as usize)
    }

    fn tagged_fields(&mut self) -> Option<()> {
        let count = varint(&mut self.from)?;
        put_varint(&mut self.to, count);
        for _ in 0..count {
            let tag = varint(&mut self.from)?;
            put_varint(&mut self.to, tag);
            let length = varint(&mut self.from)?;
            put_varint(&mut self.to, length);
            self.copy(length as usize)?;
        }
        Some(())
    }

    fn copy(&mut self, bytes: usize) -> Option<()> {
        let copied = self.from.try_split_to(bytes)?;
        self.to.put_slice(&copied);
        Some(())
    }
}

/// Splits bytes off, if there are so many.
trait TrySplit: Sized {
    fn try_split_to(&mut self, at: usize) -> Option<Self>;
}

impl TrySplit for Bytes {
    fn try_split_to(&mut self, at: usize) -> Option<Bytes> {
        (at <= self.len()).then(|| self.split_to(at))
    }
}

fn varint(from: &mut Bytes) -> Option<u32> {
    let mut value = 0u64;
    for shift in (0..35).step_by(7) {
        let byte = from.try_get_u8().ok()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return u32::try_from(value).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::offset_commit_request::{
        OffsetCommitRequestPartition, OffsetCommitRequestTopic,
    };
    use kafka_protocol::messages::offset_fetch_request::{
        OffsetFetchRequestGroup, OffsetFetchRequestTopics,
    };
    use kafka_protocol::messages::{OffsetCommitRequest, OffsetFetchRequest};
    use proptest::prelude::*;

    use super::*;

    const ID: TopicId = [7; 16];

    fn encoded(message: &impl Encodable) -> Bytes {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes, BY_NAME).unwrap();
        bytes.freeze()
    }

    fn commit() -> OffsetCommitRequest {
        let partition = OffsetCommitRequestPartition::default()
            .with_committed_metadata(Some(StrBytes::from_string("m".repeat(200))));
        let topic = OffsetCommitRequestTopic::default()
            .with_name(name_of_id(&ID))
            .with_partitions(vec![partition; 3]);
        OffsetCommitRequest::default()
            .with_topics(vec![topic; 2])
            .with_unknown_tagged_field(9, Bytes::from_static(b"tag"))
    }

    fn fetch() -> OffsetFetchRequest {
        let topic = OffsetFetchRequestTopics::default()
            .with_name(name_of_id(&ID))
            .with_partition_indexes((0..300).collect());
        let named = OffsetFetchRequestGroup::default().with_topics(Some(vec![topic]));
        let all = OffsetFetchRequestGroup::default().with_topics(None);
        OffsetFetchRequest::default().with_groups(vec![named, all]).with_require_stable(true)
    }

    /// The bytes of version 10, by hand: its topics begin with 16 bytes, and no length.
    #[test]
    fn ids_become_names_and_names_become_ids() {
        let by_id = [&[2, b'g', 0, 0, 0, 1, 2, b'm', 0, 2][..], &ID, &[1, 0, 0]].concat();
        let by_name = rewrite(COMMIT_REQUEST, by_id.clone().into(), Direction::ToNames).unwrap();
        let name = [&[34], name_of_id(&ID).as_bytes()].concat();
        let expected = [&[2, b'g', 0, 0, 0, 1, 2, b'm', 0, 2][..], &name, &[1, 0, 0]].concat();
        assert_eq!(by_name, expected);
        for (fields, message) in
            [(COMMIT_REQUEST, encoded(&commit())), (FETCH_REQUEST, encoded(&fetch()))]
        {
            let by_id = rewrite(fields, message.clone(), Direction::ToIds).unwrap();
            assert!(by_id.len() < message.len());
            assert_eq!(rewrite(fields, by_id.clone(), Direction::ToNames), Some(message));
            for length in 0..by_id.len() {
                assert_eq!(rewrite(fields, by_id.slice(..length), Direction::ToNames), None);
            }
        }
    }

    #[test]
    fn only_names_with_the_mark_stand_for_ids() {
        assert_eq!(id_of_name(&name_of_id(&ID)), Some(ID));
        let plain = name_of_id(&ID).as_str()[1..].to_owned();
        assert_eq!(id_of_name(&plain), None);
        assert_eq!(id_of_name("#07"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_more_than_they_are_worth(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            for fields in [COMMIT_REQUEST, FETCH_REQUEST] {
                let length = bytes.len();
                let rewritten = rewrite(fields, bytes.clone().into(), Direction::ToNames);
                prop_assert!(rewritten.is_none_or(|rewritten| rewritten.len() <= 3 * length));
            }
        }
    }
}
