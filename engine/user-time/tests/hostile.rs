//! Hostile records and settings: each gives a result or an error, and no panic.

use proptest::prelude::*;
use user_time::{RecordHeader, RecordParts, UserTimeExtractor, UserTimeSpec};

const SPECS: [&str; 9] = [
    "header:t;unit=s",
    "header:t;as=be64;unit=s",
    "json:/a/0;unit=ns",
    "json:;unit=us",
    "csv:2;separator=%09",
    "csv:1;unit=s",
    "be64:1;unit=s",
    "be64:1073741824",
    "pmu;time-base=16777215",
];

fn ask_all(value: &[u8]) {
    for spec in SPECS {
        let headers: [RecordHeader<'_>; 2] = [(b"t", Some(value)), (b"u", None)];
        for value in [None, Some(value)] {
            let record = RecordParts { timestamp: -1, key: None, value, headers };
            let _ = UserTimeExtractor::parse(spec).unwrap().extract(record);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn bytes_of_any_kind_are_read_or_refused(value in prop::collection::vec(any::<u8>(), 0..80)) {
        ask_all(&value);
    }

    #[test]
    fn text_that_is_almost_right_is_read_or_refused(
        value in "[\\[{\"]{0,3}[ta\":,\\\\u0-9eE.+TZ -]{0,40}[\\]}\"\t\n]{0,3}",
    ) {
        ask_all(value.as_bytes());
    }

    #[test]
    fn frames_that_are_almost_right_are_read_or_refused(
        rest in prop::collection::vec(any::<u8>(), 0..40), size in 0u16..60,
    ) {
        let mut frame = vec![0xaa, 1];
        frame.extend(size.to_be_bytes());
        frame.extend(rest);
        ask_all(&frame);
    }

    #[test]
    fn any_text_is_a_spec_or_refused(text in "(timestamp|header|json|csv|be64|pmu|wasm)?[:;=/~%a-z0-9.é-]{0,30}") {
        let _ = UserTimeSpec::parse(&text);
    }
}
