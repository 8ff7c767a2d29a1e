//! The columns and their types.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef, TimeUnit};

/// The schema of records of a topic. The topic and the moment, if there is one, go with it into a
/// stream or file, as metadata.
pub fn record_schema(topic: &str, moment: Option<&str>) -> SchemaRef {
    let topic = ("freezeframe.topic".to_owned(), topic.to_owned());
    let moment = moment.map(|moment| ("freezeframe.moment".to_owned(), moment.to_owned()));
    let metadata: HashMap<_, _> = moment.into_iter().chain([topic]).collect();
    let timestamp = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let columns = vec![
        Field::new("partition", DataType::Int32, false),
        Field::new("offset", DataType::Int64, false),
        Field::new("timestamp", timestamp, false),
        Field::new("key", DataType::Binary, true),
        Field::new("value", DataType::Binary, true),
        Field::new("headers", DataType::List(header_item()), false),
    ];
    Arc::new(Schema::new(columns).with_metadata(metadata))
}

/// An item of the column `headers`. `item` is the name that Arrow's libraries give it.
pub(crate) fn header_item() -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Struct(header_fields()), false))
}

pub(crate) fn header_fields() -> Fields {
    Fields::from(vec![
        Field::new("key", DataType::Utf8, false),
        Field::new("value", DataType::Binary, true),
    ])
}
