//! More data than may be in memory.

use std::io::{Read, Write};

use testkit::directory::TestDirectory;
use zk_wire::JuteWriter;

use super::client::*;

const ZNODES: usize = 600;
const SETTINGS: [&str; 3] = [
    "zookeeper.cached-bytes-max=64KiB",
    "zookeeper.4lw.commands.whitelist=*",
    "storage.tail-bytes=1MiB",
];

/// A kilobyte that only this version of this znode has.
fn data(nth: usize, version: usize) -> Vec<u8> {
    format!("{nth}-{version}-").into_bytes().into_iter().cycle().take(1024).collect()
}

fn path(nth: usize) -> String {
    format!("/data/{nth}")
}

/// A figure of `mntr`.
fn figure(address: std::net::SocketAddr, name: &str) -> usize {
    let mut stream = connect(address);
    stream.write_all(b"mntr").expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("it is text");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

#[test]
fn data_beyond_memory_is_read_as_any_other() {
    let directory = TestDirectory::new();
    let server = serve_with(&directory, &SETTINGS);
    let mut client = ZkClient::begin(address(&server));
    assert_eq!(client.create("/data", b"", 0), 0);
    for nth in 0..ZNODES {
        assert_eq!(client.create(&path(nth), &data(nth, 0), 0), 0);
    }
    for nth in (0..ZNODES).step_by(3) {
        assert_eq!(client.set(&path(nth), &data(nth, 1)), 0);
    }
    let expected = |nth: usize| data(nth, usize::from(nth.is_multiple_of(3)));
    let check = |client: &mut ZkClient| {
        for nth in 0..ZNODES {
            assert_eq!(client.get(&path(nth)).expect("it is there"), expected(nth), "{nth}");
        }
    };
    check(&mut client);
    assert!(figure(address(&server), "zk_approximate_data_size") > ZNODES * 1024);
    assert!(figure(address(&server), "zk_cached_data_size") <= 64 << 10);

    // Reads behind writes of their own connection see them, and those of others as they are.
    for nth in 0..ZNODES {
        client.ask(SET_DATA, |out| {
            out.string(Some(&path(nth)));
            out.buffer(Some(&expected(nth)));
            out.int(-1);
        });
        for read in [nth, (nth * 7 + 1) % ZNODES] {
            client.ask(GET_DATA, |out| put_path(out, &path(read)));
        }
    }
    for nth in 0..ZNODES {
        assert_eq!(client.reply().1, 0);
        for read in [nth, (nth * 7 + 1) % ZNODES] {
            let (_, err, mut body) = client.reply();
            assert_eq!((err, body.buffer().expect("it reads")), (0, Some(expected(read).into())));
        }
    }

    // More in one reply than may be in memory.
    client.ask(MULTI_READ, |out| {
        for nth in 0..ZNODES {
            put_multi_header(out, GET_DATA, false);
            put_path(out, &path(nth));
        }
        put_multi_header(out, -1, true);
    });
    let (_, err, mut body) = client.reply();
    assert_eq!(err, 0);
    for nth in 0..ZNODES {
        assert_eq!(body.int().expect("an opcode"), GET_DATA);
        body.bool().expect("whether it is the end");
        assert_eq!(body.int().expect("an error"), 0);
        assert_eq!(body.buffer().expect("it reads"), Some(expected(nth).into()), "{nth}");
        for _ in 0..68 / 4 {
            body.int().expect("the stat");
        }
    }

    server.kill().expect("it is killed");
    let server = serve_with(&directory, &SETTINGS);
    assert!(figure(address(&server), "zk_cached_data_size") <= 64 << 10);
    check(&mut ZkClient::begin(address(&server)));
}
