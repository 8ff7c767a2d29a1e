//! Throughput of each kind of extraction of user times: bytes of values per second.
//!
//! `cargo bench -p user-time`

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use user_time::{Plugin, RecordHeader, RecordParts, UserTimeExtractor, UserTimeSpec};

/// Records of one batch.
const RECORDS: usize = 1000;
const MODULE: &[u8] = include_bytes!("../../../docs/plugins/filetime.wasm");

/// A document of about 1 KiB, with its time first or last.
fn json(last: bool) -> Vec<u8> {
    let time = "\"time\":1795252948.259";
    let fields: Vec<String> =
        (0..30).map(|nth| format!("\"field{nth}\":{{\"name\":\"sensor\",\"n\":{nth}}}")).collect();
    let fields = fields.join(",");
    let text = if last { format!("{{{fields},{time}}}") } else { format!("{{{time},{fields}}}") };
    text.into_bytes()
}

fn csv() -> Vec<u8> {
    let fields: Vec<String> = (0..100).map(|nth| format!("field {nth:02}")).collect();
    format!("1795252948259,{},1795252948259\n", fields.join(",")).into_bytes()
}

/// A data frame of a unit with 120 phasors.
fn frame() -> Vec<u8> {
    let mut frame = vec![0xaa, 0x01, 0, 0, 0, 7];
    frame.extend(1_795_252_948u32.to_be_bytes());
    frame.extend(259_000u32.to_be_bytes());
    frame.extend([0x55; 970]);
    let size = frame.len() as u16 + 2;
    frame[2..4].copy_from_slice(&size.to_be_bytes());
    let crc = frame.iter().fold(0xffff_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    frame.extend(crc.to_be_bytes());
    frame
}

fn kinds(criterion: &mut Criterion) {
    let filetime = || {
        let count: i64 = (1_795_252_948_259 + 11_644_473_600_000) * 10_000;
        [&count.to_le_bytes()[..], &[0; 1016]].concat()
    };
    let be64 = [&1_795_252_948_259i64.to_be_bytes()[..], &[0; 1016]].concat();
    let cases: [(&str, &str, Vec<u8>); 9] = [
        ("timestamp", "timestamp", vec![0; 1024]),
        ("header", "header:when", vec![0; 1024]),
        ("json first", "json:/time;unit=s", json(false)),
        ("json last", "json:/time;unit=s", json(true)),
        ("csv first", "csv:1", csv()),
        ("csv last", "csv:102", csv()),
        ("be64", "be64:0", be64),
        ("pmu", "pmu;time-base=1000000", frame()),
        ("wasm", "wasm:filetime", filetime()),
    ];
    for (name, spec, value) in cases {
        let mut group = criterion.benchmark_group("user-time");
        group.throughput(Throughput::Bytes((RECORDS * value.len()) as u64));
        let spec = UserTimeSpec::parse(spec).expect("it is a spec");
        let extractor =
            match UserTimeExtractor::new(spec.clone(), |_| Err("asked below".to_owned())) {
                Ok(extractor) => extractor,
                Err(_) => {
                    let plugin = Plugin::new("filetime", MODULE).expect("the example is a plug-in");
                    UserTimeExtractor::with_plugin(spec, plugin)
                }
            };
        group.bench_function(name, |bench| {
            bench.iter(|| {
                let mut session = extractor.session();
                for _ in 0..RECORDS {
                    let headers: [RecordHeader<'_>; 2] =
                        [(b"source", Some(b"17")), (b"when", Some(b"1795252948259"))];
                    let value = Some(black_box(value.as_slice()));
                    let record = RecordParts { timestamp: 1, key: None, value, headers };
                    black_box(session.extract(record)).expect("it has a time");
                }
            });
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2))
        .sample_size(20);
    targets = kinds
}
criterion_main!(benches);
