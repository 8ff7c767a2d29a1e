//! JSON schemas of the types that are texts in documents.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{Base64Bytes, HexBytes, HistoryErrorCode, Stamp};

macro_rules! text_schemas {
    ($($name:ident: $schema:tt,)*) => {
        $(impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                Cow::Borrowed(stringify!($name))
            }

            fn json_schema(_generator: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        })*
    };
}

text_schemas! {
    Stamp: {
        "type": "string",
        "pattern": "^s(h[0-9a-f]{16}|[0-9]+|[0-9]{8}T[0-9]{6}\\.[0-9]{3}Z)$",
        "description": "A stamp, which is a moment too.",
    },
    HexBytes: {
        "type": "string",
        "pattern": "^([0-9a-f]{2})*$",
        "description": "Bytes as pairs of hex digits.",
    },
    Base64Bytes: {
        "type": "string",
        "contentEncoding": "base64",
        "description": "Bytes in base64.",
    },
    HistoryErrorCode: {
        "type": "string",
        "enum": (HistoryErrorCode::ALL.iter().map(|code| code.name()).collect::<Vec<_>>()),
        "description": "The kind of an error.",
    },
}
