//! The pushes of clients: the part of OpenTelemetry's `MetricsData` (version 1) that they use.
//! Gauges and sums are read; histograms, which no client of Kafka has, are not.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct MetricsData {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(oneof = "Data", tags = "5, 7")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberDataPoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberDataPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct NumberDataPoint {
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
    #[prost(oneof = "Number", tags = "4, 6")]
    value: Option<Number>,
}

#[derive(Clone, Copy, PartialEq, prost::Oneof)]
enum Number {
    #[prost(double, tag = "4")]
    AsDouble(f64),
    #[prost(sfixed64, tag = "6")]
    AsInt(i64),
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    String(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
}

/// The most series of a client.
pub(crate) const SERIES_MAX: usize = 2000;
/// The most bytes of the name and the labels of a series.
pub(crate) const SERIES_BYTES_MAX: usize = 2048;
/// About the length of a number as a text.
const NUMBER_BYTES: usize = 24;

/// The temporality of a sum that says how much came since the last push.
const DELTA: i32 = 1;

/// A value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    /// The attributes that the client gives of the sample and of itself, by name.
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) value: f64,
    pub(crate) kind: SampleKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SampleKind {
    Gauge,
    /// A sum that only rises: all of it.
    Counter,
    /// The amount by which a sum that only rises has risen.
    Increase,
}

/// The samples of a push; `None` if the bytes are none.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<Sample>> {
    let data = MetricsData::decode(bytes).ok()?;
    let mut samples = Vec::new();
    for of_resource in data.resource_metrics {
        let resource = of_resource.resource.unwrap_or_default().attributes;
        let metrics = of_resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics);
        metrics.for_each(|metric| append(metric, &resource, &mut samples));
    }
    Some(samples)
}

fn append(metric: Metric, resource: &[KeyValue], samples: &mut Vec<Sample>) {
    let (points, kind) = match metric.data {
        None => return,
        Some(Data::Gauge(gauge)) => (gauge.data_points, SampleKind::Gauge),
        Some(Data::Sum(sum)) if !sum.is_monotonic => (sum.data_points, SampleKind::Gauge),
        Some(Data::Sum(sum)) if sum.aggregation_temporality == DELTA => {
            (sum.data_points, SampleKind::Increase)
        }
        Some(Data::Sum(sum)) => (sum.data_points, SampleKind::Counter),
    };
    let metric_bytes = resource.iter().map(attribute_bytes).sum::<usize>() + metric.name.len();
    for point in points {
        // Each sample copies the metric's name and the client's attributes. Points beyond a limit
        // are skipped before they are copied.
        let bytes = metric_bytes + point.attributes.iter().map(attribute_bytes).sum::<usize>();
        if samples.len() >= SERIES_MAX {
            return;
        }
        if bytes > SERIES_BYTES_MAX {
            continue;
        }
        let value = match point.value {
            Some(Number::AsDouble(value)) => value,
            Some(Number::AsInt(value)) => value as f64,
            None => continue,
        };
        let attributes = resource.iter().chain(&point.attributes);
        let attributes = attributes.filter_map(|attribute| {
            let value = match attribute.value.as_ref()?.value.as_ref()? {
                Value::String(text) => text.clone(),
                Value::Bool(value) => value.to_string(),
                Value::Int(value) => value.to_string(),
                Value::Double(value) => value.to_string(),
            };
            Some((attribute.key.clone(), value))
        });
        let (name, attributes) = (metric.name.clone(), attributes.collect());
        samples.push(Sample { name, attributes, value, kind });
    }
}

fn attribute_bytes(attribute: &KeyValue) -> usize {
    let value = match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::String(text)) => text.len(),
        Some(Value::Bool(_) | Value::Int(_) | Value::Double(_)) => NUMBER_BYTES,
        None => 0,
    };
    attribute.key.len() + value
}

#[cfg(test)]
pub(crate) fn encode(name: &str, value: f64, temporality: i32) -> Vec<u8> {
    let text = |key: &str, value: &str| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(Value::String(value.to_owned())) }),
    };
    let point = NumberDataPoint {
        attributes: vec![text("topic", "t")],
        value: Some(Number::AsDouble(value)),
    };
    let data = match temporality {
        0 => Data::Gauge(Gauge { data_points: vec![point] }),
        aggregation_temporality => {
            let data_points = vec![point];
            Data::Sum(Sum { data_points, aggregation_temporality, is_monotonic: true })
        }
    };
    let metric = Metric { name: name.to_owned(), data: Some(data) };
    let resource = Some(Resource { attributes: vec![text("group_id", "g")] });
    let scope_metrics = vec![ScopeMetrics { metrics: vec![metric] }];
    MetricsData { resource_metrics: vec![ResourceMetrics { resource, scope_metrics }] }
        .encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few kilobytes that unpack to a megabyte must not become gigabytes.
    #[test]
    fn what_is_repeated_for_each_point_is_not_copied_without_bounds() {
        let long_attribute = KeyValue {
            key: "k".to_owned(),
            value: Some(AnyValue { value: Some(Value::String("v".repeat(500_000))) }),
        };
        let point = NumberDataPoint { attributes: Vec::new(), value: Some(Number::AsInt(1)) };
        let data_of = |attributes: Vec<KeyValue>, name: &str| {
            let data_points = vec![point.clone(); 45_000];
            let data = Some(Data::Gauge(Gauge { data_points }));
            let metric = Metric { name: name.to_owned(), data };
            let scope_metrics = vec![ScopeMetrics { metrics: vec![metric] }];
            let resource = Some(Resource { attributes });
            MetricsData { resource_metrics: vec![ResourceMetrics { resource, scope_metrics }] }
                .encode_to_vec()
        };
        assert_eq!(decode(&data_of(vec![long_attribute], "m")), Some(Vec::new()));
        assert_eq!(decode(&data_of(Vec::new(), &"m".repeat(5000))), Some(Vec::new()));
        assert_eq!(decode(&data_of(Vec::new(), "m")).unwrap().len(), SERIES_MAX);
    }
}
