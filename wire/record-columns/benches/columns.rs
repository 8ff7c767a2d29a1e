//! The cost of 10^6 records of 100 bytes: as columns, and as a stream of them.

use std::hint::black_box;
use std::io;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kafka_records::KafkaRecord;
use record_columns::{ArrowStreamWriter, RecordColumns, record_schema};

const RECORDS: i64 = 1_000_000;
const ROWS: usize = 65_536;

fn benches(criterion: &mut Criterion) {
    let value = Bytes::from_static(&[b'x'; 100]);
    let record = |offset: i64| KafkaRecord {
        offset,
        timestamp: 1_700_000_000_000 + offset,
        key: Some(Bytes::copy_from_slice(&offset.to_be_bytes())),
        value: Some(value.clone()),
        headers: Vec::new(),
    };
    let records: Vec<_> = (0..RECORDS).map(record).collect();
    let mut group = criterion.benchmark_group("10^6 records");
    group.throughput(Throughput::Elements(RECORDS as u64)).sample_size(10);
    group.bench_function("stream", |bench| {
        bench.iter(|| {
            let mut columns = RecordColumns::new(record_schema("orders", None));
            let mut stream =
                ArrowStreamWriter::try_new(io::sink(), columns.schema()).expect("a sink");
            for chunk in records.chunks(ROWS) {
                for record in chunk {
                    columns.push(0, black_box(record)).expect("below 2 GiB");
                }
                stream.write(&columns.finish()).expect("a sink");
            }
            stream.finish().expect("a sink");
        });
    });
    group.finish();
}

criterion_group!(columns, benches);
criterion_main!(columns);
