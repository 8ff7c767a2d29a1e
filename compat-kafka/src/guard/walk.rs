//! The walk through a body along its schema: no further, and no deeper, than the schema goes.

use super::schema::{Element, Field, Fields, Kind, Request};
use super::{BadBody, Lie, memory_bytes_max};

/// A struct's first unknown tag makes a leaf of a `BTreeMap<i32, Bytes>`: 408 bytes.
const FIRST_UNKNOWN_TAG_BYTES: usize = 512;
/// Each further one takes at most a fifth of a leaf and a thirtieth of an inner node: 98 bytes.
const UNKNOWN_TAG_BYTES: usize = 112;
/// The count of tagged fields, where there are none.
const NO_TAGS_BYTES: usize = 1;
/// A tag and a size.
const SMALLEST_TAGGED_BYTES: usize = 2;

/// Where a walk is, and what it has found so far.
pub(super) struct Walk<'a> {
    /// What has not been walked. At the end of the walk, what came after the body.
    pub(super) left: &'a [u8],
    /// What decoding up to here asks for: the sum over all arrays, and over unknown tags.
    pub(super) memory_bytes: usize,
    memory_bytes_max: usize,
    version: i16,
    is_flexible: bool,
}

/// What an element takes on the wire.
pub(super) struct Extent {
    /// At least.
    pub(super) bytes: usize,
    /// The least is also the most, but for the tagged fields that may end it.
    is_fixed: bool,
}

impl<'a> Walk<'a> {
    /// The walk at its end.
    pub(super) fn through(
        request: &Request,
        version: i16,
        body: &'a [u8],
    ) -> Result<Walk<'a>, BadBody> {
        if !request.knows(version) {
            return Err(BadBody::NoSchema { api_key: request.api_key, version });
        }
        let mut walk = Walk {
            left: body,
            memory_bytes: 0,
            memory_bytes_max: memory_bytes_max(body.len()),
            version,
            is_flexible: version >= request.flexible_since,
        };
        walk.fields(request.fields).map_err(|bad| bad.within(request.name))?;
        Ok(walk)
    }

    fn fields(&mut self, fields: Fields) -> Result<(), BadBody> {
        for field in fields {
            if field.is_plain_in(self.version) {
                self.value(&field.kind).map_err(|bad| bad.within(field.name))?;
            }
        }
        if self.is_flexible { self.tagged(fields) } else { Ok(()) }
    }

    fn value(&mut self, kind: &Kind) -> Result<(), BadBody> {
        match *kind {
            Kind::Fixed(bytes) => self.skip(bytes),
            Kind::String => self.string(),
            Kind::ShortString => {
                let length = self.int16()?;
                self.skip_announced(length)
            }
            Kind::Bytes => {
                let length = self.length()?;
                self.skip_announced(length)
            }
            Kind::Array { ref of, element_bytes } => self.array(of, element_bytes),
            Kind::Inline(fields) => self.fields(fields),
            Kind::Nullable(fields) => self.nullable(fields),
        }
    }

    fn string(&mut self) -> Result<(), BadBody> {
        let length = if self.is_flexible { self.compact_length()? } else { self.int16()? };
        self.skip_announced(length)
    }

    fn nullable(&mut self, fields: Fields) -> Result<(), BadBody> {
        match self.take::<1>()?.map(|byte| byte as i8) {
            [1] => self.fields(fields),
            [-1] => Ok(()),
            [other] => Err(self.lie(Lie::Presence, other.into())),
        }
    }

    fn array(&mut self, of: &Element, element_bytes: usize) -> Result<(), BadBody> {
        let count = self.length()?;
        let Some(count) = self.announced(count)? else { return Ok(()) };
        let smallest = self.smallest_element(of);
        if count.saturating_mul(smallest.bytes) > self.left.len() {
            return Err(self.lie(Lie::Count, count as i64));
        }
        self.charge(count * element_bytes)?;
        match *of {
            Element::Fixed(bytes) => self.skip(count * bytes),
            Element::String => self.each(count, |walk| walk.string()),
            Element::Struct(_) if smallest.is_fixed && !self.is_flexible => {
                self.skip(count * smallest.bytes)
            }
            Element::Struct(fields) if smallest.is_fixed => self.each(count, |walk| {
                walk.skip(smallest.bytes - NO_TAGS_BYTES)?;
                walk.tagged(fields)
            }),
            Element::Struct(fields) => self.each(count, |walk| walk.fields(fields)),
        }
    }

    fn each(
        &mut self,
        count: usize,
        element: impl Fn(&mut Self) -> Result<(), BadBody>,
    ) -> Result<(), BadBody> {
        (0..count).try_for_each(|index| element(self).map_err(|bad| bad.at(index)))
    }

    pub(super) fn smallest_element(&self, of: &Element) -> Extent {
        match *of {
            Element::Fixed(bytes) => Extent { bytes, is_fixed: true },
            Element::String => Extent { bytes: self.prefix_bytes(2), is_fixed: false },
            Element::Struct(fields) => self.smallest(fields),
        }
    }

    /// As deep as structs stand in structs: an array is at its smallest when it is empty.
    fn smallest(&self, fields: Fields) -> Extent {
        let tags = if self.is_flexible { NO_TAGS_BYTES } else { 0 };
        let mut sum = Extent { bytes: tags, is_fixed: true };
        for field in fields.iter().filter(|field| field.is_plain_in(self.version)) {
            let (bytes, is_fixed) = match field.kind {
                Kind::Fixed(bytes) => (bytes, true),
                Kind::String => (self.prefix_bytes(2), false),
                Kind::ShortString => (2, false),
                Kind::Bytes | Kind::Array { .. } => (self.prefix_bytes(4), false),
                Kind::Nullable(_) => (1, false),
                Kind::Inline(fields) => {
                    let inner = self.smallest(fields);
                    (inner.bytes, inner.is_fixed && !self.is_flexible)
                }
            };
            sum.bytes += bytes;
            sum.is_fixed &= is_fixed;
        }
        sum
    }

    fn prefix_bytes(&self, inflexible: usize) -> usize {
        if self.is_flexible { 1 } else { inflexible }
    }

    fn tagged(&mut self, fields: Fields) -> Result<(), BadBody> {
        let count = self.varint().map_err(|bad| bad.within("tags"))?;
        if (count as usize).saturating_mul(SMALLEST_TAGGED_BYTES) > self.left.len() {
            return Err(self.lie(Lie::Count, count.into()).within("tags"));
        }
        let mut unknown = 0;
        for index in 0..count as usize {
            self.tag(fields, &mut unknown).map_err(|bad| bad.at(index).within("tags"))?;
        }
        Ok(())
    }

    fn tag(&mut self, fields: Fields, unknown: &mut usize) -> Result<(), BadBody> {
        let tag = self.varint()?;
        let size = self.varint()? as usize;
        let after = self.left.get(size..).ok_or_else(|| self.lie(Lie::Length, size as i64))?;
        match fields.iter().find(|field| field.has_tag(tag, self.version)) {
            Some(field) => self.known(field, size).map_err(|bad| bad.within(field.name))?,
            None => {
                let first = *unknown == 0;
                *unknown += 1;
                self.charge(if first { FIRST_UNKNOWN_TAG_BYTES } else { UNKNOWN_TAG_BYTES })?;
            }
        }
        self.left = after;
        Ok(())
    }

    /// A field that `kafka-protocol` decodes, not minding its size, must be just of that size.
    fn known(&mut self, field: &Field, size: usize) -> Result<(), BadBody> {
        self.left = &self.left[..size];
        self.value(&field.kind)?;
        if self.left.is_empty() { Ok(()) } else { Err(self.lie(Lie::TagSize, size as i64)) }
    }

    fn charge(&mut self, bytes: usize) -> Result<(), BadBody> {
        let left = self.memory_bytes_max - self.memory_bytes;
        if bytes > left {
            return Err(BadBody::lie(Lie::Memory, bytes as i64, left));
        }
        self.memory_bytes += bytes;
        Ok(())
    }

    /// The length of bytes, or the count of an array.
    fn length(&mut self) -> Result<i64, BadBody> {
        if self.is_flexible { self.compact_length() } else { self.int32() }
    }

    fn compact_length(&mut self) -> Result<i64, BadBody> {
        Ok(i64::from(self.varint()?) - 1)
    }

    /// What a length or count announces; `None` for a null, which is nothing.
    fn announced(&self, length: i64) -> Result<Option<usize>, BadBody> {
        match length {
            -1 => Ok(None),
            _ => usize::try_from(length).map(Some).map_err(|_| self.lie(Lie::Negative, length)),
        }
    }

    fn skip_announced(&mut self, length: i64) -> Result<(), BadBody> {
        self.announced(length)?.map_or(Ok(()), |bytes| self.skip(bytes))
    }

    fn skip(&mut self, bytes: usize) -> Result<(), BadBody> {
        self.left = self.left.get(bytes..).ok_or_else(|| self.lie(Lie::Length, bytes as i64))?;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadBody> {
        let (&taken, left) =
            self.left.split_first_chunk().ok_or_else(|| self.lie(Lie::Length, N as i64))?;
        self.left = left;
        Ok(taken)
    }

    fn int16(&mut self) -> Result<i64, BadBody> {
        self.take().map(|bytes| i16::from_be_bytes(bytes).into())
    }

    fn int32(&mut self) -> Result<i64, BadBody> {
        self.take().map(|bytes| i32::from_be_bytes(bytes).into())
    }

    fn varint(&mut self) -> Result<u32, BadBody> {
        let mut value = 0;
        for place in 0..5 {
            let [byte] = self.take()?;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 && value <= u32::MAX.into() {
                return Ok(value as u32);
            }
        }
        Err(self.lie(Lie::Varint, value as i64))
    }

    fn lie(&self, lie: Lie, announced: i64) -> BadBody {
        BadBody::lie(lie, announced, self.left.len())
    }
}
