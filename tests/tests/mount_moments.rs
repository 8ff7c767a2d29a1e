//! Moments through the mount, after their first records were removed or a pin was set again: what
//! the kernel cached earlier is never taken for the current state (`F43`, `F44`, `G14`).

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use kafka_protocol::messages::DeleteRecordsRequest;
use kafka_protocol::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsTopic,
};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use testkit::process::mount::{self, TestMount, moment};
use testkit::process::{RawKafkaConnection, wait_until};
use testkit::requests::topic_name;

fn freezeframe(mounted: &TestMount, words: &[&str], input: &str) {
    mounted.server().run_with_input(words, input);
}

fn delete_records(mounted: &TestMount, topic: &str, before: i64) {
    let partition = DeleteRecordsPartition::default().with_partition_index(0).with_offset(before);
    let topic =
        DeleteRecordsTopic::default().with_name(topic_name(topic)).with_partitions(vec![partition]);
    let request = DeleteRecordsRequest::default().with_topics(vec![topic]).with_timeout_ms(10_000);
    let mut wire = RawKafkaConnection::connect(mounted.server().kafka);
    let answer = wire.call::<DeleteRecordsRequest>(2, &request).unwrap();
    assert_eq!(answer.topics[0].partitions[0].error_code, 0, "{answer:?}");
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<Errno> {
    Errno::from_io_error(&result.expect_err("it is refused"))
}

#[test]
fn a_moment_whose_first_records_are_deleted_is_another_file_and_an_open_one_stays_itself() {
    let Some(mounted) = mount::start("moments whose start moves", &[]) else { return };
    freezeframe(&mounted, &["topics", "create", "t"], "");
    // Longer than a page, and more than the kernel reads at once.
    let lines = |range: std::ops::Range<u32>| -> String {
        range.map(|nth| format!("{nth:099}\n")).collect()
    };
    const COUNT: u32 = 5000;
    freezeframe(&mounted, &["produce", "t", "--partition", "0"], &lines(0..COUNT));
    let then = moment();
    freezeframe(&mounted, &["produce", "t", "--partition", "0"], &lines(COUNT..COUNT + 10));
    let path = mounted.path(&format!(".at/{then}/topics/t/0.values"));
    let (before, open) = (fs::metadata(&path).unwrap(), File::open(&path).unwrap());
    // The kernel has cached the beginning of it, and a program has the rest to read.
    let mut first = [0; 200];
    open.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), before.ino(), "the same file, kept");

    delete_records(&mounted, "t", 1001);
    let after = fs::metadata(&path).unwrap();
    assert_eq!(after.len(), u64::from(COUNT - 1001) * 100);
    assert_ne!(after.ino(), before.ino());
    assert_eq!(fs::read_to_string(&path).unwrap(), lines(1001..COUNT));
    assert_eq!(fs::metadata(&path).unwrap().ino(), after.ino());
    // An open file: its own bytes at their places, or none.
    assert_eq!(open.metadata().unwrap().len(), before.len());
    for nth in (0..COUNT).step_by(250) {
        let mut line = [0; 100];
        match open.read_exact_at(&mut line, u64::from(nth) * 100) {
            Ok(()) => assert_eq!(line[..], *lines(nth..nth + 1).as_bytes(), "line {nth}"),
            Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::STALE)),
        }
    }
    // A moment of which nothing is left returns an error. Listing its names still works.
    delete_records(&mounted, "t", i64::from(COUNT) + 5);
    let listed = names(path.parent().unwrap());
    assert_eq!(listed, ["0.jsonl", "0.log", "0.values", "by-key"]);
    assert_eq!(errno(fs::read(&path)), Some(Errno::STALE));
    assert_eq!(errno(fs::metadata(&path)), Some(Errno::STALE));
}

#[test]
fn the_keys_of_a_moment_go_with_their_records() {
    let Some(mounted) = mount::start("keys of moments", &[]) else { return };
    freezeframe(&mounted, &["topics", "create", "t"], "");
    let keyed = ["produce", "t", "--partition", "0", "--key-separator", ":"];
    freezeframe(&mounted, &keyed, "a:1\nb:2\nc:3\n");
    let then = moment();
    let keys = mounted.path(&format!(".at/{then}/topics/t/by-key"));
    for _ in 0..2 {
        assert_eq!(names(&keys), ["a", "b", "c"]);
        assert_eq!(fs::read(keys.join("a")).unwrap(), b"1");
        assert_eq!(fs::read(keys.join("c")).unwrap(), b"3");
    }
    delete_records(&mounted, "t", 2);
    for _ in 0..2 {
        assert_eq!(names(&keys), ["c"]);
        assert_eq!(errno(fs::read(keys.join("a"))), Some(Errno::NOENT));
        assert_eq!(fs::read(keys.join("c")).unwrap(), b"3");
    }
}

#[test]
fn who_waits_for_a_text_can_be_ended_before_it_comes() {
    let Some(mounted) = mount::start("ended while it waits", &[]) else { return };
    freezeframe(&mounted, &["topics", "create", "t"], "");
    freezeframe(&mounted, &["produce", "t", "--partition", "0"], "1\n");
    // Soon enough to wait for, and late enough for all of this.
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let soon = now() + 4500;
    let path = mounted.path(&format!("topics/t/0.values@s{soon}"));
    let mut waiting = Command::new("cat").arg(path).spawn().unwrap();
    let of = |name: &str| fs::read_to_string(format!("/proc/{}/{name}", waiting.id())).unwrap();
    wait_until("it waits in the kernel", || of("wchan").contains("request_wait_answer"));
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert!(now() < soon, "it had to wait for its answer");
}

#[test]
fn a_pin_that_is_set_again_leads_to_its_new_moment() {
    let Some(mounted) = mount::start("pins set again", &[]) else { return };
    let link = mounted.path(".at/audit");
    let mut seen = Vec::new();
    for nth in 0..3 {
        fs::write(mounted.path("files/a"), format!("{nth}")).unwrap();
        let then = moment();
        freezeframe(&mounted, &["pins", "set", "audit", "--at", &then, "--for", "1h"], "");
        for _ in 0..2 {
            assert_eq!(fs::read_to_string(link.join("files/a")).unwrap(), format!("{nth}"));
        }
        seen.push(fs::read_link(&link).unwrap());
        // Nothing reads it meanwhile, so the kernel has no reason to drop the link.
        freezeframe(&mounted, &["pins", "remove", "audit"], "");
    }
    assert_eq!(errno(fs::symlink_metadata(&link)), Some(Errno::INVAL));
    seen.dedup();
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// More names than the kernel gets at once.
#[test]
fn g16_a_large_directory_of_a_moment_is_listed_whole_whatever_became_of_it() {
    const COUNT: usize = 1500;
    let Some(mounted) = mount::start("large directories of moments", &[]) else { return };
    let directory = mounted.path("files/d");
    fs::create_dir(&directory).unwrap();
    for nth in 0..COUNT {
        File::create(directory.join(nth.to_string())).unwrap();
    }
    let before = moment();
    for nth in 0..COUNT / 2 {
        fs::remove_file(directory.join(nth.to_string())).unwrap();
    }
    let numbers = |directory: &Path| {
        let mut numbers: Vec<usize> =
            names(directory).iter().map(|name| name.parse().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(&directory), (COUNT / 2..COUNT).collect::<Vec<_>>());
    let past = mounted.path(&format!(".at/{before}/files/d"));
    for _ in 0..2 {
        assert_eq!(numbers(&past), (0..COUNT).collect::<Vec<_>>());
    }
    assert_eq!(fs::metadata(past.join("17")).unwrap().len(), 0);
}

#[test]
fn extended_attributes_of_a_moment_are_what_they_were() {
    let Some(mounted) = mount::start("extended attributes of moments", &[]) else { return };
    let file = mounted.path("files/a");
    fs::write(&file, "x").unwrap();
    let mut moments = vec![(moment(), None)];
    for value in [&b"1"[..], b"22", b""] {
        setxattr(&file, "user.x", value, XattrFlags::empty()).unwrap();
        moments.push((moment(), Some(value.to_vec())));
    }
    removexattr(&file, "user.x").unwrap();
    moments.push((moment(), None));
    fs::remove_file(&file).unwrap();
    for (then, expected) in moments {
        for path in [format!(".at/{then}/files/a"), format!("files/a@{then}")] {
            let path = mounted.path(&path);
            let mut value = [0; 10];
            let found = getxattr(&path, "user.x", &mut value[..]);
            let found = found.map(|length| value[..length].to_vec());
            assert_eq!(found, expected.clone().ok_or(Errno::NODATA), "{}", path.display());
            let names = listxattr(&path, &mut value[..]).unwrap();
            assert_eq!(&value[..names], if expected.is_some() { &b"user.x\0"[..] } else { b"" });
            assert_eq!(setxattr(&path, "user.x", b"", XattrFlags::empty()), Err(Errno::ROFS));
        }
    }
}
