//! The order of replies.

use testkit::directory::TestDirectory;

use crate::client::*;

const ROUNDS: i32 = 100;
/// As many as may be on their way, and some.
const READS_BEHIND_EACH_WRITE: i32 = 1200;

/// Reads come all the time while those that came before wait for a write, and while these are answered.
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
