//! `inspect` and `check` on the files of a data directory, whole and corrupt.

use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::directory::TestDirectory;
use testkit::process::{OwnServer, TIMEOUT, TestServer, run};

fn json(text: &str) -> Value {
    assert_eq!(text.matches('\n').count(), 1, "one line: {text}");
    serde_json::from_str(text).expect("JSON")
}

#[test]
fn inspect_prints_every_kind_of_file_beside_the_server_that_uses_it() {
    let shell = OwnServer::start(&[]);
    shell.stdout_of(&["topics", "create", "t"]);
    shell.run_with_input(&["produce", "t"], "hello inspector\n");
    let data = shell.data.path();
    let file = |name: &str| data.join(name).to_str().expect("text").to_owned();
    let journal = file("journal/00000000000000000000.journal");
    let identity = shell.stdout_of(&["inspect", &file("FREEZEFRAME")]);
    for line in ["\nformat\t", "\ncluster\t", "\nchecksum\t"] {
        assert!(identity.contains(line), "{identity}");
    }
    assert!(!identity.contains("corrupt"), "{identity}");
    let lock = shell.stdout_of(&["inspect", &file("LOCK")]);
    assert!(lock.contains(&shell.server.pid().to_string()), "{lock}");
    let bound = shell.stdout_of(&["inspect", &file("journal/bound"), "--json"]);
    let slots: Vec<Value> =
        bound.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(slots.len(), 2);
    let counts = slots.iter().filter(|slot| slot["counts"] == true).count();
    assert_eq!((counts, &slots[1]["closed"]), (1, &false.into()), "{bound}");
    // The first two frames: the topic, and the batch. Preallocated zeros follow.
    let frames = |arguments: &[&str]| -> Vec<Value> {
        let text = shell.stdout_of(&[&["inspect", &journal, "--json"], arguments].concat());
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    let all = frames(&["--frames", "2"]);
    assert_eq!(all.len(), 3);
    assert_eq!((&all[0]["what"], &all[0]["whole"]), (&"segment".into(), &true.into()));
    let batch = &all[2];
    assert_eq!(
        (&batch["kind"], &batch["count"], &batch["base"]),
        (&16.into(), &1.into(), &0.into())
    );
    assert_eq!((&batch["payload_is_whole"], &batch["payload"]), (&true.into(), &Value::Null));
    let position = batch["position"].as_u64().expect("a position").to_string();
    let from = frames(&["--from", &position, "--frames", "1", "--payload"]);
    assert_eq!(from[1]["position"], batch["position"]);
    let hello: String = b"hello".iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(from[1]["payload"].as_str().expect("hex").contains(&hello));
    let text = shell.stdout_of(&["inspect", &journal, "--from", &position, "--payload"]);
    let row = text.lines().find(|line| line.starts_with(&format!("{position}\t"))).expect("a row");
    let cells: Vec<&str> = row.split('\t').collect();
    assert_eq!((cells.len(), cells[8]), (9, "ok"), "{row}");
    assert!(cells[1].starts_with("sh") && cells[1].len() == 18, "{row}");
    assert!(text.lines().any(|line| line.contains("|") && line.contains("hell")), "{text}");
}

#[test]
fn inspect_prints_sealed_and_sorted_segments_and_what_is_corrupt_in_them() {
    let data = TestDirectory::new();
    let arguments = ["--set", "storage.segment-bytes=1MiB"];
    let server = TestServer::start(data.path(), &arguments).expect("it starts");
    let lines: String = (0..10_000).map(|line| format!("line {line} of many\n")).collect();
    // Topics in turn, so that sorting by log gains something.
    for topic in ["a", "b"] {
        server.stdout_of(&["topics", "create", topic]);
    }
    for topic in ["a", "b"].into_iter().cycle().take(16) {
        server.run_with_input(&["produce", topic], &lines);
    }
    let journal = data.path().join("journal");
    let path = |name: &str| journal.join(name).to_str().expect("text").to_owned();
    let lines = |file: &str, arguments: &[&str]| -> Vec<Value> {
        let ended = run(&[&["inspect", &path(file), "--json"], arguments].concat(), "");
        assert_eq!(ended.code, Some(0), "{file}: {}", ended.stderr);
        ended.stdout().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    // The manifest is written in the background: this waits until it lists a sealed segment.
    let begun = Instant::now();
    let part = loop {
        if journal.join("manifest").exists() {
            let manifest = lines("manifest", &[]);
            assert_eq!(manifest[0]["whole"], true, "{manifest:?}");
            if let Some(part) = manifest.iter().find(|line| line["what"] == "sealed-segment") {
                break part.clone();
            }
        }
        assert!(begun.elapsed() < TIMEOUT, "a segment is indexed before long");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(part["start"], 0);
    assert!(server.stop().expect("it stops").success());
    let manifest = lines("manifest", &[]);
    let part = manifest.iter().find(|line| line["start"] == 0).expect("the first part");
    let file = part["data"].as_str().expect("a name").to_owned();
    let text = run(&["inspect", &path("manifest")], "");
    assert!(text.stdout().contains(&format!("0\t{}\t{file}\n", part["end"])), "{}", text.stdout());
    let index = format!("{}.index", file.rsplit_once('.').expect("an ending").0);
    let runs = lines(&index, &[]);
    assert_eq!((&runs[0]["what"], &runs[0]["whole"]), (&"index".into(), &true.into()));
    assert!(runs[1..].len() > 2 && runs[1..].iter().all(|line| line["what"] == "run"), "{runs:?}");
    let entries = lines(&index, &["--frames", "3"]);
    let entries: Vec<&Value> = entries.iter().filter(|line| line["what"] == "entry").collect();
    assert_eq!(entries.len(), 3);
    // The index entry matches the frame in the data file.
    let position = entries[2]["position"].as_u64().expect("a position") - 80;
    let frames = lines(&file, &["--from", &position.to_string(), "--payload"]);
    let frame = frames.iter().find(|line| line["position"] == position).expect("the frame");
    for field in ["log", "base", "count", "length", "stamp", "kind"] {
        assert_eq!(frame[field], entries[2][field], "{field}");
    }
    assert_eq!(frame["payload_is_whole"], true);
    let text = run(&["inspect", &path(&file), &path(&index), "--frames", "2"], "");
    assert_eq!(text.code, Some(0), "{}", text.stderr);
    // A block of entries, the manifest and a frame are corrupted. Everything else is printed, and
    // check reports them too.
    let corrupt = |file: &str, at: usize| {
        let mut bytes = std::fs::read(path(file)).expect("it is read");
        bytes[at] ^= 4;
        std::fs::write(path(file), bytes).expect("it is written");
    };
    corrupt(&index, 4096 + 50);
    let damaged = lines(&index, &["--frames", "1000000"]);
    assert_eq!(damaged[0]["corrupt_blocks"], serde_json::json!([1]));
    assert_eq!(damaged.iter().filter(|line| line["what"] == "run").count(), runs.len() - 1);
    assert!(damaged.iter().any(|line| line["what"] == "corruption"), "{damaged:?}");
    let directory = data.path().to_str().expect("text");
    let ended = run(&["check", directory, "--json"], "");
    let report = json(ended.stdout());
    let problems = report["problems"].as_array().expect("a list");
    assert_eq!((ended.code, problems.len()), (Some(1), 1), "{report}");
    let problem = problems[0].as_str().expect("text");
    assert!(problem.contains("it is soft") && problem.contains(&index), "{problem}");
    corrupt("manifest", 20);
    let damaged = run(&["inspect", &path("manifest")], "");
    assert!(damaged.stdout().contains("corrupt") && damaged.stdout().contains(&file));
    let whole = lines(&file, &[]).len();
    corrupt(&file, 64 + 40);
    let damaged = lines(&file, &[]);
    assert!(damaged.iter().any(|line| line["what"] == "corruption"), "{file}");
    assert_eq!(damaged.len(), whole, "one is corrupt, and all others are there");
}

#[test]
fn inspect_says_what_a_corrupt_file_holds_and_refuses_what_is_none_of_ours() {
    let directory = TestDirectory::new();
    let path = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
    let write =
        |name: &str, bytes: &[u8]| std::fs::write(path(name), bytes).expect("it is written");
    write("notes.txt", b"shopping list");
    write("empty", b"");
    for name in ["notes.txt", "empty"] {
        let words = [&path(name), "no file of a freezeframe data directory"];
        run(&["inspect", &path(name)], "").assert_failed(1, &words.map(|word| word as &str));
    }
    let folder = directory.path().to_str().expect("text");
    run(&["inspect", folder], "").assert_failed(1, &["is a directory"]);
    run(&["inspect", &path("nowhere")], "").assert_failed(1, &["nowhere"]);
    run(&["inspect"], "").assert_failed(2, &["FILE"]);
    // Files with our names, invalid in every way: no panic, and an error.
    for (name, bytes, words) in [
        ("00000000000000000008.journal", &[][..], "not whole"),
        ("00000000000000000016.journal", &[0xff; 5000], "no frame begins here"),
        ("00000000000000000024.proof", &[0; 300], "not finished"),
        ("00000000000000000032.proof", &[0xff; 300], "header is not whole"),
        ("bound", &[0xff; 100], "corrupt"),
        ("manifest", &[][..], "nothing can be read"),
        ("00000000000000000040.index", &[], "corrupt"),
        ("00000000000000000048.1.index", &[0xff; 9000], "corrupt"),
        ("00000000000000000056.1.sorted", &[], "not whole"),
        ("log-00000000000000000002.7.sorted", &[0xff; 9000], "no frame begins here"),
        ("FREEZEFRAME", &[0xff; 100], "corrupt"),
        ("FREEZEFRAME", b"format 7\ncluster c2\nchecksum 00000000\n", "checksum does not match"),
        ("LOCK", b"\x1b[31m17", "corrupt"),
    ] {
        write(name, bytes);
        let ended = run(&["inspect", &path(name)], "");
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        assert!(ended.stdout().contains(words), "{name}: {}", ended.stdout());
        let ended = run(&["inspect", "--json", "--payload", &path(name)], "");
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
        for line in ended.stdout().lines() {
            serde_json::from_str::<Value>(line).expect("JSON");
        }
    }
}

#[test]
fn g15_what_a_server_signed_is_verified_and_a_changed_byte_is_named() {
    // The key of RFC 8410, section 10.3, as OpenSSL writes it.
    const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n\
        -----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----\n\
        MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
        -----END PUBLIC KEY-----\n";
    let (keys, data) = (TestDirectory::new(), TestDirectory::new());
    let path = |name: &str| keys.path().join(name).to_str().expect("text").to_owned();
    std::fs::write(path("private"), PRIVATE).expect("it is written");
    std::fs::write(path("public"), PUBLIC).expect("it is written");
    let key = format!("storage.signing-key={}", path("private"));
    let arguments = ["--set", "storage.segment-bytes=1MiB", "--set", &key];
    let server = TestServer::start(data.path(), &arguments).expect("it starts");
    let lines: String = (0..300_000).map(|line| format!("line {line} of many\n")).collect();
    server.stdout_of(&["topics", "create", "t"]);
    server.run_with_input(&["produce", "t"], &lines);
    let proof = data.path().join("journal/00000000000000000000.proof");
    let proof = proof.to_str().expect("text");
    // Proofs are written in the background: this waits until the first is complete.
    let begun = Instant::now();
    let header = loop {
        let ended = run(&["inspect", proof, "--json", "--frames", "0"], "");
        if ended.code == Some(0) && ended.stdout().contains("signed_by") {
            break json(ended.stdout());
        }
        assert!(begun.elapsed() < TIMEOUT, "a proof is written before long");
    };
    assert_eq!((&header["chain"], &header["signature_state"]), (&"ok".into(), &"ok".into()));
    assert!(server.stop().expect("it stops").success());
    let directory = data.path().to_str().expect("text");
    let verify = ["check", directory, "--verify", "--public-key", &path("public"), "--json"];
    let ended = run(&verify, "");
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout(), ended.stderr);
    let report = json(ended.stdout());
    assert!(report["verified"]["frames"].as_u64().expect("a count") > 0, "{report}");
    assert_eq!(report["verified"]["proofs"][0]["signed_by"], header["signed_by"]);
    let journal = data.path().join("journal");
    let sealed = ["00000000000000000000.1.sorted", "00000000000000000000.journal"];
    let sealed = sealed.map(|name| journal.join(name)).into_iter().find(|file| file.exists());
    let sealed = sealed.expect("the first segment is there");
    let mut bytes = std::fs::read(&sealed).expect("it is read");
    let at = bytes.windows(7).position(|word| word == b"line 17").expect("a record");
    bytes[at] ^= 1;
    std::fs::write(&sealed, bytes).expect("it is written");
    let ended = run(&verify, "");
    assert_eq!(ended.code, Some(1));
    let changed = &json(ended.stdout())["verified"]["first_changed"];
    let name = sealed.file_name().and_then(|name| name.to_str()).expect("text");
    assert_eq!((&changed["file"], &changed["offset"]), (&name.into(), &0.into()), "{changed}");
}
