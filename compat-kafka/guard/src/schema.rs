//! The types of schemas, and the functions that `table.rs` is written with.
//!
//! A schema has a fixed depth: it contains other lists of fields, and never itself. So a walk along
//! it is as deep as the table says, whatever the body contains.

use kafka_protocol::protocol::StrBytes;

pub(crate) type SchemaFields = &'static [FieldSchema];

/// A request that is flexible (KIP-482) in no version.
pub(crate) const NEVER: i16 = i16::MAX;

/// A request or its header: the fields in each version.
pub(crate) struct RequestSchema {
    pub(crate) api_key: i16,
    pub(crate) name: &'static str,
    /// The lowest and the highest, both included.
    pub(crate) versions: (i16, i16),
    /// From here on lengths are varints, and every struct ends with tagged fields.
    pub(crate) flexible_since: i16,
    pub(crate) fields: SchemaFields,
}

impl RequestSchema {
    pub(crate) fn knows(&self, version: i16) -> bool {
        (self.versions.0..=self.versions.1).contains(&version)
    }
}

/// A field, in the order of the wire.
pub(crate) struct FieldSchema {
    pub(crate) name: &'static str,
    since: i16,
    until: i16,
    tag: Option<u32>,
    pub(crate) kind: FieldType,
}

impl FieldSchema {
    /// True if the field is in its place, without a tag, in this version.
    pub(crate) fn is_plain_in(&self, version: i16) -> bool {
        self.tag.is_none() && self.is_in(version)
    }

    pub(crate) fn has_tag(&self, tag: u32, version: i16) -> bool {
        self.tag == Some(tag) && self.is_in(version)
    }

    fn is_in(&self, version: i16) -> bool {
        self.since <= version && version <= self.until
    }

    pub(crate) const fn since(mut self, version: i16) -> FieldSchema {
        self.since = version;
        self
    }

    pub(crate) const fn until(mut self, version: i16) -> FieldSchema {
        self.until = version;
        self
    }

    pub(crate) const fn tag(mut self, tag: u32) -> FieldSchema {
        self.tag = Some(tag);
        self
    }
}

/// The encoding of a field.
pub(crate) enum FieldType {
    /// A fixed number of bytes.
    Fixed(usize),
    /// A length of 16 bits, or a varint where flexible.
    String,
    /// A length of 16 bits, even where flexible: the client id in the header.
    ShortString,
    /// A length of 32 bits, or a varint where flexible. Record batches too.
    Bytes,
    /// A count of 32 bits, or a varint where flexible; and the size of each decoded element, not
    /// counting what it points at.
    Array { of: ElementType, element_bytes: usize },
    /// A struct in place.
    Inline(SchemaFields),
    /// A byte that is 1 before a struct, and -1 for none.
    Nullable(SchemaFields),
}

pub(crate) enum ElementType {
    Fixed(usize),
    String,
    Struct(SchemaFields),
}

pub(crate) const fn request(
    api_key: i16,
    name: &'static str,
    versions: (i16, i16),
    flexible_since: i16,
    fields: SchemaFields,
) -> RequestSchema {
    RequestSchema { api_key, name, versions, flexible_since, fields }
}

const fn field(name: &'static str, kind: FieldType) -> FieldSchema {
    FieldSchema { name, since: i16::MIN, until: i16::MAX, tag: None, kind }
}

macro_rules! fixed {
    ($($name:ident: $bytes:literal,)*) => {
        $(pub(crate) const fn $name(name: &'static str) -> FieldSchema {
            field(name, FieldType::Fixed($bytes))
        })*
    };
}

fixed! { bool: 1, int8: 1, int16: 2, uint16: 2, int32: 4, int64: 8, float64: 8, uuid: 16, }

macro_rules! fixed_arrays {
    ($($name:ident: $bytes:literal,)*) => {
        $(pub(crate) const fn $name(name: &'static str) -> FieldSchema {
            field(name, FieldType::Array { of: ElementType::Fixed($bytes), element_bytes: $bytes })
        })*
    };
}

fixed_arrays! { int8s: 1, int32s: 4, int64s: 8, }

pub(crate) const fn string(name: &'static str) -> FieldSchema {
    field(name, FieldType::String)
}

pub(crate) const fn short_string(name: &'static str) -> FieldSchema {
    field(name, FieldType::ShortString)
}

pub(crate) const fn bytes(name: &'static str) -> FieldSchema {
    field(name, FieldType::Bytes)
}

pub(crate) const fn strings(name: &'static str) -> FieldSchema {
    field(name, FieldType::Array { of: ElementType::String, element_bytes: size_of::<StrBytes>() })
}

/// An array of structs, each a `T` once `kafka-protocol` has decoded it.
pub(crate) const fn array<T>(name: &'static str, fields: SchemaFields) -> FieldSchema {
    field(name, FieldType::Array { of: ElementType::Struct(fields), element_bytes: size_of::<T>() })
}

pub(crate) const fn inline(name: &'static str, fields: SchemaFields) -> FieldSchema {
    field(name, FieldType::Inline(fields))
}

pub(crate) const fn nullable(name: &'static str, fields: SchemaFields) -> FieldSchema {
    field(name, FieldType::Nullable(fields))
}
