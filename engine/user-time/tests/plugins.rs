//! Well-behaved and misbehaving plug-ins.

use user_time::{
    ExtractError, MODULE_BYTES_MAX, Plugin, RecordHeader, RecordParts, UserTimeExtractor,
    UserTimeSpec,
};

/// A module with one page of memory, whose `user_time` has this body.
fn module(user_time: &str) -> Vec<u8> {
    with("", "(i32.const 1024)", user_time)
}

fn with(more: &str, alloc: &str, user_time: &str) -> Vec<u8> {
    let text = format!(
        "(module
           (memory (export \"memory\") 1)
           {more}
           (func (export \"alloc\") (param $length i32) (result i32) {alloc})
           (func (export \"user_time\")
             (param $key i32) (param $key_length i32) (param $value i32) (param $value_length i32)
             (param $timestamp i64) (result i64)
             {user_time}))"
    );
    wat::parse_str(text).expect("the test's module is one")
}

fn extractor(module: &[u8]) -> UserTimeExtractor {
    let spec = UserTimeSpec::parse("wasm:tested").unwrap();
    UserTimeExtractor::with_plugin(spec, Plugin::new("tested", module).unwrap())
}

fn record<'a>(value: Option<&'a [u8]>) -> RecordParts<'a, std::iter::Empty<RecordHeader<'a>>> {
    RecordParts { timestamp: 7, key: Some(b"key"), value, headers: std::iter::empty() }
}

fn ask(module: &[u8], value: Option<&[u8]>) -> Result<i64, ExtractError> {
    extractor(module).extract(record(value)).map(|time| time.0)
}

/// The failure of a plug-in; the error names it.
fn failure(module: &[u8]) -> String {
    match ask(module, Some(b"value")) {
        Err(error @ (ExtractError::Plugin { .. } | ExtractError::PluginOutOfFuel { .. })) => {
            let message = error.to_string();
            assert!(message.starts_with("the plug-in tested "), "{message}");
            message
        }
        other => panic!("it should fail: {other:?}"),
    }
}

fn refusal(module: &[u8]) -> String {
    Plugin::new("tested", module).expect_err("it should be refused").to_string()
}

#[test]
fn the_example_reads_what_it_says() {
    let module = include_bytes!("../../../docs/plugins/filetime.wasm");
    let filetime = |ms: i64| (ms + 11_644_473_600_000) * 10_000 + 9_999;
    let now = filetime(1_700_000_000_123).to_le_bytes();
    let long = [&now[..], &[0; 100_000]].concat();
    assert_eq!(ask(module, Some(&now)), Ok(1_700_000_000_123));
    assert_eq!(ask(module, Some(&long)), Ok(1_700_000_000_123));
    let none = Err(ExtractError::NoTime { plugin: "tested".to_owned() });
    assert_eq!(ask(module, Some(&now[..7])), none);
    assert_eq!(ask(module, Some(&[0; 8])), none);
    assert_eq!(ask(module, None), none);
}

#[test]
fn it_sees_key_value_and_timestamp_and_tells_null_from_empty() {
    let lengths = module(
        "(i64.add (local.get $timestamp) (i64.add
           (i64.mul (i64.extend_i32_s (local.get $key_length)) (i64.const 1000))
           (i64.mul (i64.extend_i32_s (local.get $value_length)) (i64.const 10))))",
    );
    assert_eq!(ask(&lengths, Some(b"12345")), Ok(7 + 3000 + 50));
    assert_eq!(ask(&lengths, Some(b"")), Ok(7 + 3000));
    assert_eq!(ask(&lengths, None), Ok(7 + 3000 - 10));
    let first = module(
        "(i64.add (i64.load8_u (local.get $value))
           (i64.mul (i64.const 1000) (i64.load8_u (local.get $key))))",
    );
    assert_eq!(ask(&first, Some(b"A")), Ok(65 + 1000 * i64::from(b'k')));
}

#[test]
fn one_that_does_not_end_is_stopped() {
    let forever = "(loop $again (br $again))";
    let message = failure(&module(&format!("{forever} (i64.const 1)")));
    assert!(message.contains("works too long"), "{message}");
    let message = failure(&with("", &format!("{forever} (i32.const 1)"), "(i64.const 1)"));
    assert!(message.contains("works too long"), "{message}");
    let start = format!("(func $begin {forever}) (start $begin)");
    let message = refusal(&with(&start, "(i32.const 1)", "(i64.const 1)"));
    assert!(
        message.contains("cannot be started") && message.contains("works too long"),
        "{message}"
    );
    let deep = with("(func $f (result i64) (call $f))", "(i32.const 1)", "(call $f)");
    assert!(failure(&deep).contains("stack"), "{}", failure(&deep));
}

#[test]
fn one_that_wants_all_memory_does_not_get_it() {
    // Its result is the number of pages that it got.
    let grows = module(
        "(loop $again (br_if $again (i32.ne (i32.const -1) (memory.grow (i32.const 16)))))
         (i64.extend_i32_u (memory.size))",
    );
    let pages = ask(&grows, Some(&[0; 10_000])).unwrap();
    assert!((200..=256).contains(&pages), "16 MiB is the most: {pages} pages");
    let large = "(module (memory (export \"memory\") 1000)
        (func (export \"alloc\") (param i32) (result i32) (i32.const 1))
        (func (export \"user_time\") (param i32 i32 i32 i32 i64) (result i64) (i64.const 1)))";
    assert!(refusal(&wat::parse_str(large).unwrap()).contains("cannot be started"));
    let table = with("(table 1000000 funcref)", "(i32.const 1024)", "(i64.const 1)");
    assert!(refusal(&table).contains("cannot be started"));
}

#[test]
fn room_outside_of_its_memory_is_not_written_to() {
    for at in ["0", "65535", "-1", "-4096", "2147483647"] {
        let message = failure(&with("", &format!("(i32.const {at})"), "(i64.const 1)"));
        assert!(message.contains("has no room"), "{at}: {message}");
    }
    let value = vec![0; 20 << 20];
    let larger_than_any = ask(&module("(i64.const 1)"), Some(&value));
    assert!(larger_than_any.unwrap_err().to_string().contains("has no room"));
}

#[test]
fn one_that_breaks_off_is_an_error_and_the_next_record_is_read() {
    let picky = module(
        "(if (i32.eqz (i32.sub (local.get $value_length) (i32.const 3))) (then (unreachable)))
         (i64.extend_i32_s (local.get $value_length))",
    );
    let extractor = extractor(&picky);
    let mut session = extractor.session();
    let mut extract =
        |value: &'static [u8]| session.extract(record(Some(value))).map(|time| time.0);
    assert_eq!(extract(b"1"), Ok(1));
    assert!(extract(b"123").unwrap_err().to_string().contains("tested panicked"));
    assert_eq!(extract(b"12"), Ok(2));
}

#[test]
fn what_it_remembers_ends_with_the_batch() {
    let counts = with(
        "(global $count (mut i64) (i64.const 0))",
        "(i32.const 1024)",
        "(global.set $count (i64.add (global.get $count) (i64.const 1))) (global.get $count)",
    );
    let extractor = extractor(&counts);
    for _batch in 0..3 {
        let mut session = extractor.session();
        let times: Vec<i64> = (0..3).map(|_| session.extract(record(None)).unwrap().0).collect();
        assert_eq!(times, [1, 2, 3]);
    }
}

#[test]
fn a_batch_that_costs_too_much_says_so() {
    let extractor = extractor(&module("(loop $again (br $again)) (i64.const 1)"));
    let mut session = extractor.session();
    let mut records = 0;
    while session.fuel_error().is_none() {
        assert!(session.extract(record(None)).is_err());
        records += 1;
        assert!(records < 10_000, "it ends");
    }
    let message = session.fuel_error().unwrap().to_string();
    assert!(message.contains("tested works too long for the records of one batch"), "{message}");
}

/// After each failure the next record starts a new instance, and that is the cost.
#[test]
fn a_batch_of_records_that_all_break_off_costs_too_much_soon() {
    let extractor = extractor(&module("(unreachable)"));
    let mut session = extractor.session();
    let mut records = 0;
    while session.fuel_error().is_none() {
        assert!(session.extract(record(Some(b"short"))).is_err());
        records += 1;
        assert!(records < 10_000, "it ends");
    }
    // It did not run for long: it failed.
    let message = session.fuel_error().unwrap().to_string();
    assert!(message.contains("tested panicked, and is started again"), "{message}");
}

#[test]
fn a_module_has_one_memory() {
    let text = std::iter::repeat_n("(memory 256)", 99).collect::<String>();
    let many = with(&text, "(i32.const 1024)", "(i64.const 1)");
    assert!(refusal(&many).contains("no WebAssembly module that can be used"));
}

/// Further instances wait for a permit, and all of them end.
#[test]
fn many_at_once_come_to_their_end() {
    let extractor = extractor(&module("(i64.const 9)"));
    std::thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                let mut session = extractor.session();
                (0..10).for_each(|_| assert_eq!(session.extract(record(None)).unwrap().0, 9));
            });
        }
    });
}

#[test]
fn modules_that_cannot_be_plug_ins_are_refused_with_what_to_do() {
    let import = "(module (import \"env\" \"now\" (func (result i64))))";
    assert!(refusal(&wat::parse_str(import).unwrap()).contains("imports env.now"));
    assert!(refusal(&wat::parse_str("(module)").unwrap()).contains("does not export memory"));
    let no_function = "(module (memory (export \"memory\") 1))";
    assert!(refusal(&wat::parse_str(no_function).unwrap()).contains("does not export alloc(i32)"));
    let wrong = "(module (memory (export \"memory\") 1)
        (func (export \"alloc\") (param i32) (result i32) (i32.const 1))
        (func (export \"user_time\") (param i32 i32) (result i64) (i64.const 1)))";
    assert!(refusal(&wat::parse_str(wrong).unwrap()).contains("does not export user_time(i32"));
    assert!(refusal(b"").contains("no WebAssembly module"));
    let text = refusal(b"these are no bytes of a module");
    assert!(text.contains("build it for wasm32-unknown-unknown") && !text.contains('\n'), "{text}");
    assert!(refusal(b"\0asm\x01\0\0\0\xff").contains("no WebAssembly module"));
    assert!(refusal(&vec![0; MODULE_BYTES_MAX + 1]).contains("too long"));
    for name in ["", ".", "a/b", "a b", &"x".repeat(65)] {
        assert!(Plugin::new(name, b"").unwrap_err().to_string().contains("name"), "{name}");
    }
}

#[test]
fn a_module_that_was_damaged_anywhere_is_refused_or_bounded() {
    let whole = include_bytes!("../../../docs/plugins/filetime.wasm");
    let mut usable = 0;
    for at in (0..whole.len()).step_by(37) {
        let mut damaged = whole.to_vec();
        damaged[at] ^= 0x55;
        if let Ok(plugin) = Plugin::new("tested", &damaged) {
            let extractor =
                UserTimeExtractor::with_plugin(UserTimeSpec::parse("wasm:tested").unwrap(), plugin);
            let _ = extractor.extract(record(Some(&[1; 64])));
            usable += 1;
        }
    }
    assert!(usable < whole.len() / 37, "some corruption is found");
}
