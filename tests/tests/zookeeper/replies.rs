//! The order of replies.

use std::net::Shutdown;

use testkit::directory::TestDirectory;

use super::client::*;

const ROUNDS: i32 = 100;
/// As many as may be on their way, and some.
const READS_BEHIND_EACH_WRITE: i32 = 1200;

/// Reads come all the time while those that came before wait for a write, and while these are
/// answered.
#[test]
fn replies_come_in_the_order_of_the_requests_however_many_are_on_their_way() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut client = ZkClient::begin(address(&server));
    client.stream.set_nodelay(true).expect("it can be set");
    let mut replies = client.stream.try_clone().expect("it can be cloned");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for nth in 0..ROUNDS {
                client.ask(CREATE, |out| put_create(out, &format!("/n{nth}"), b"x", 0));
                for _ in 0..READS_BEHIND_EACH_WRITE {
                    client.ask(GET_DATA, |out| put_path(out, "/n0"));
                }
            }
        });
        let last = ROUNDS * (READS_BEHIND_EACH_WRITE + 1);
        for expected in 1..=last {
            let mut fields = receive(&mut replies).expect("a reply");
            let xid = fields.int().expect("an xid");
            assert_eq!(xid, expected, "replies come in the order of the requests");
            fields.long().expect("a zxid");
            assert_eq!(fields.int(), Ok(0), "request {expected}");
        }
    });
}

/// A client that says nothing more, or something that nobody knows, gets the answers to what it
/// asked before.
#[test]
fn what_was_asked_before_the_end_is_answered() {
    const UNKNOWN: i32 = 77;
    const UNIMPLEMENTED: i32 = -6;
    let data = TestDirectory::new();
    let server = serve(&data);
    for turn in 0..20 {
        for ends_by_itself in [true, false] {
            let mut client = ZkClient::begin(address(&server));
            let path = format!("/n{turn}-{ends_by_itself}");
            client.ask(CREATE, |out| put_create(out, &path, b"x", 0));
            client.ask(GET_DATA, |out| put_path(out, &path));
            if ends_by_itself {
                client.stream.shutdown(Shutdown::Write).expect("it is connected");
            } else {
                client.ask(UNKNOWN, |_| ());
            }
            assert_eq!(client.reply().1, 0, "{path}");
            assert_eq!(client.reply().1, 0, "{path}");
            if !ends_by_itself {
                assert_eq!(client.reply().1, UNIMPLEMENTED);
            }
            assert!(receive(&mut client.stream).is_none(), "nothing comes behind");
        }
    }
}

/// Clients take a connection as lost after two thirds of their timeout without any packet.
#[test]
fn a_ping_is_answered_while_a_moment_is_waited_for() {
    const PING_XID: i32 = -2;
    let data = TestDirectory::new();
    let server = serve(&data);
    let mut client = ZkClient::begin(address(&server));
    assert_eq!(client.create("/a", b"x", 0), 0);
    let moment = next_millisecond() + 1000;
    client.ask(GET_DATA, |out| put_path(out, &format!("/.at/s{moment}/a")));
    client.ask(GET_DATA, |out| put_path(out, "/a"));
    let expected = [PING_XID, client.xid - 1, client.xid];
    client.ask(PING, |_| ());
    for expected in expected {
        let mut fields = receive(&mut client.stream).expect("a reply");
        assert_eq!(fields.int(), Ok(expected));
        fields.long().expect("a zxid");
        assert_eq!(fields.int(), Ok(0));
    }
}
