//! Walks through a body along its schema: no further, and no deeper, than the schema goes.

use crate::schema::{ElementType, FieldSchema, FieldType, RequestSchema, SchemaFields};
use crate::{RequestBodyError, SchemaViolation, memory_bytes_max};

/// A struct's first unknown tag allocates a leaf of a `BTreeMap<i32, Bytes>`: 408 bytes.
const FIRST_UNKNOWN_TAG_BYTES: usize = 512;
/// Each further one takes at most a fifth of a leaf and a thirtieth of an inner node: 98 bytes.
const UNKNOWN_TAG_BYTES: usize = 112;
/// The longest string, also where its length has more than 16 bits: Kafka takes no longer one.
const STRING_BYTES_MAX: i64 = i16::MAX as i64;
/// The count of tagged fields, if there are none.
const NO_TAGS_BYTES: usize = 1;
/// A tag and a size.
const SMALLEST_TAGGED_BYTES: usize = 2;

/// The position of a walk, and its results so far.
pub(crate) struct SchemaWalker<'a> {
    /// The bytes that are not walked yet. At the end of the walk, the bytes after the body.
    pub(crate) left: &'a [u8],
    /// The memory that decoding up to here asks for: the sum over all arrays, and over unknown
    /// tags.
    pub(crate) memory_bytes: usize,
    memory_bytes_max: usize,
    version: i16,
    is_flexible: bool,
}

/// The size of an element on the wire.
pub(crate) struct WireSize {
    /// The minimum.
    pub(crate) bytes: usize,
    /// True if the minimum is also the maximum, not counting the tagged fields at the end.
    is_fixed: bool,
}

impl<'a> SchemaWalker<'a> {
    /// The walk at its end.
    pub(crate) fn through(
        request: &RequestSchema,
        version: i16,
        body: &'a [u8],
    ) -> Result<SchemaWalker<'a>, RequestBodyError> {
        if !request.knows(version) {
            return Err(RequestBodyError::NoSchema { api_key: request.api_key, version });
        }
        let mut walk = SchemaWalker {
            left: body,
            memory_bytes: 0,
            memory_bytes_max: memory_bytes_max(body.len()),
            version,
            is_flexible: version >= request.flexible_since,
        };
        walk.fields(request.fields).map_err(|bad| bad.in_struct(request.name))?;
        Ok(walk)
    }

    fn fields(&mut self, fields: SchemaFields) -> Result<(), RequestBodyError> {
        for field in fields {
            if field.is_plain_in(self.version) {
                self.value(&field.kind).map_err(|bad| bad.in_struct(field.name))?;
            }
        }
        if self.is_flexible { self.tagged(fields) } else { Ok(()) }
    }

    fn value(&mut self, kind: &FieldType) -> Result<(), RequestBodyError> {
        match *kind {
            FieldType::Fixed(bytes) => self.skip(bytes),
            FieldType::String => self.string(),
            FieldType::ShortString => {
                let length = self.int16()?;
                self.skip_announced(length)
            }
            FieldType::Bytes => {
                let length = self.length()?;
                self.skip_announced(length)
            }
            FieldType::Array { ref of, element_bytes } => self.array(of, element_bytes),
            FieldType::Inline(fields) => self.fields(fields),
            FieldType::Nullable(fields) => self.nullable(fields),
        }
    }

    fn string(&mut self) -> Result<(), RequestBodyError> {
        let length = if self.is_flexible { self.compact_length()? } else { self.int16()? };
        if length > STRING_BYTES_MAX {
            return Err(self.violation(SchemaViolation::Length, length));
        }
        self.skip_announced(length)
    }

    fn nullable(&mut self, fields: SchemaFields) -> Result<(), RequestBodyError> {
        match self.take::<1>()?.map(|byte| byte as i8) {
            [1] => self.fields(fields),
            [-1] => Ok(()),
            [other] => Err(self.violation(SchemaViolation::Presence, other.into())),
        }
    }

    fn array(&mut self, of: &ElementType, element_bytes: usize) -> Result<(), RequestBodyError> {
        let count = self.length()?;
        let Some(count) = self.announced(count)? else { return Ok(()) };
        let smallest = self.smallest_element(of);
        if count.saturating_mul(smallest.bytes) > self.left.len() {
            return Err(self.violation(SchemaViolation::Count, count as i64));
        }
        self.charge(count * element_bytes)?;
        match *of {
            ElementType::Fixed(bytes) => self.skip(count * bytes),
            ElementType::String => self.each(count, |walk| walk.string()),
            ElementType::Struct(_) if smallest.is_fixed && !self.is_flexible => {
                self.skip(count * smallest.bytes)
            }
            ElementType::Struct(fields) if smallest.is_fixed => self.each(count, |walk| {
                walk.skip(smallest.bytes - NO_TAGS_BYTES)?;
                walk.tagged(fields)
            }),
            ElementType::Struct(fields) => self.each(count, |walk| walk.fields(fields)),
        }
    }

    fn each(
        &mut self,
        count: usize,
        element: impl Fn(&mut Self) -> Result<(), RequestBodyError>,
    ) -> Result<(), RequestBodyError> {
        (0..count).try_for_each(|index| element(self).map_err(|bad| bad.in_element(index)))
    }

    pub(crate) fn smallest_element(&self, of: &ElementType) -> WireSize {
        match *of {
            ElementType::Fixed(bytes) => WireSize { bytes, is_fixed: true },
            ElementType::String => WireSize { bytes: self.prefix_bytes(2), is_fixed: false },
            ElementType::Struct(fields) => self.smallest(fields),
        }
    }

    /// The smallest size. The recursion is as deep as structs are nested: an array is smallest when
    /// it is empty.
    fn smallest(&self, fields: SchemaFields) -> WireSize {
        let tags = if self.is_flexible { NO_TAGS_BYTES } else { 0 };
        let mut sum = WireSize { bytes: tags, is_fixed: true };
        for field in fields.iter().filter(|field| field.is_plain_in(self.version)) {
            let (bytes, is_fixed) = match field.kind {
                FieldType::Fixed(bytes) => (bytes, true),
                FieldType::String => (self.prefix_bytes(2), false),
                FieldType::ShortString => (2, false),
                FieldType::Bytes | FieldType::Array { .. } => (self.prefix_bytes(4), false),
                FieldType::Nullable(_) => (1, false),
                FieldType::Inline(fields) => {
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

    fn tagged(&mut self, fields: SchemaFields) -> Result<(), RequestBodyError> {
        let count = self.varint().map_err(|bad| bad.in_struct("tags"))?;
        if (count as usize).saturating_mul(SMALLEST_TAGGED_BYTES) > self.left.len() {
            return Err(self.violation(SchemaViolation::Count, count.into()).in_struct("tags"));
        }
        let mut unknown = 0;
        for index in 0..count as usize {
            self.tag(fields, &mut unknown)
                .map_err(|bad| bad.in_element(index).in_struct("tags"))?;
        }
        Ok(())
    }

    fn tag(&mut self, fields: SchemaFields, unknown: &mut usize) -> Result<(), RequestBodyError> {
        let tag = self.varint()?;
        let size = self.varint()? as usize;
        let after = self
            .left
            .get(size..)
            .ok_or_else(|| self.violation(SchemaViolation::Length, size as i64))?;
        match fields.iter().find(|field| field.has_tag(tag, self.version)) {
            Some(field) => self.known_tag(field, size).map_err(|bad| bad.in_struct(field.name))?,
            None => {
                let first = *unknown == 0;
                *unknown += 1;
                self.charge(if first { FIRST_UNKNOWN_TAG_BYTES } else { UNKNOWN_TAG_BYTES })?;
            }
        }
        self.left = after;
        Ok(())
    }

    /// A field that `kafka-protocol` decodes without checking its size must have just that size.
    fn known_tag(&mut self, field: &FieldSchema, size: usize) -> Result<(), RequestBodyError> {
        self.left = &self.left[..size];
        self.value(&field.kind)?;
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(self.violation(SchemaViolation::TagSize, size as i64))
        }
    }

    fn charge(&mut self, bytes: usize) -> Result<(), RequestBodyError> {
        let left = self.memory_bytes_max - self.memory_bytes;
        if bytes > left {
            return Err(RequestBodyError::violation(SchemaViolation::Memory, bytes as i64, left));
        }
        self.memory_bytes += bytes;
        Ok(())
    }

    /// The length of bytes, or the count of an array.
    fn length(&mut self) -> Result<i64, RequestBodyError> {
        if self.is_flexible { self.compact_length() } else { self.int32() }
    }

    fn compact_length(&mut self) -> Result<i64, RequestBodyError> {
        Ok(i64::from(self.varint()?) - 1)
    }

    /// The announced length or count; `None` for a null, which is nothing.
    fn announced(&self, length: i64) -> Result<Option<usize>, RequestBodyError> {
        match length {
            -1 => Ok(None),
            _ => usize::try_from(length)
                .map(Some)
                .map_err(|_| self.violation(SchemaViolation::Negative, length)),
        }
    }

    fn skip_announced(&mut self, length: i64) -> Result<(), RequestBodyError> {
        self.announced(length)?.map_or(Ok(()), |bytes| self.skip(bytes))
    }

    fn skip(&mut self, bytes: usize) -> Result<(), RequestBodyError> {
        self.left = self
            .left
            .get(bytes..)
            .ok_or_else(|| self.violation(SchemaViolation::Length, bytes as i64))?;
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], RequestBodyError> {
        let (&taken, left) = self
            .left
            .split_first_chunk()
            .ok_or_else(|| self.violation(SchemaViolation::Length, N as i64))?;
        self.left = left;
        Ok(taken)
    }

    fn int16(&mut self) -> Result<i64, RequestBodyError> {
        self.take().map(|bytes| i16::from_be_bytes(bytes).into())
    }

    fn int32(&mut self) -> Result<i64, RequestBodyError> {
        self.take().map(|bytes| i32::from_be_bytes(bytes).into())
    }

    fn varint(&mut self) -> Result<u32, RequestBodyError> {
        let mut value = 0;
        for place in 0..5 {
            let [byte] = self.take()?;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 && value <= u32::MAX.into() {
                return Ok(value as u32);
            }
        }
        Err(self.violation(SchemaViolation::Varint, value as i64))
    }

    fn violation(&self, violation: SchemaViolation, announced: i64) -> RequestBodyError {
        RequestBodyError::violation(violation, announced, self.left.len())
    }
}
