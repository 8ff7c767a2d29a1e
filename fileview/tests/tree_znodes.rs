//! Znodes as files: their data, their children, and their past.

use std::sync::Arc;

use crate::fixture::TreeFixture;
use bytes::Bytes;
use engine::znodes::acl::{self, Acl, AclEntry, AclId};
use engine::znodes::{ZnodeLifetime, ZnodeOp};
use hlc::Cut;
use testkit::znodes::change_znode;

fn change(fixture: &TreeFixture, op: ZnodeOp) {
    change_znode(fixture.engine.znodes(), op).unwrap();
}

fn create(path: &str, data: &'static str, acl: Acl) -> ZnodeOp {
    let (path, lifetime) = (path.to_owned(), ZnodeLifetime::Persistent);
    let data = Some(Bytes::from_static(data.as_bytes()));
    ZnodeOp::Create { path, data, acl, lifetime, is_sequential: false }
}

fn open() -> Acl {
    acl::anyone(acl::ALL)
}

fn shown(cut: Cut) -> String {
    hlc::Moment::Sys(cut).to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_znode_is_a_directory_with_its_data_and_its_children() {
    let fixture = TreeFixture::new();
    assert_eq!(fixture.names("/znodes").await, ["data", "zookeeper"]);
    let long = format!("/app/{}", "l".repeat(300));
    for path in ["/app", "/app/data", "/app/50%@home", &long] {
        change(&fixture, create(path, "first", open()));
    }
    let before = shown(fixture.now());
    change(
        &fixture,
        ZnodeOp::SetData {
            path: "/app".to_owned(),
            data: Some(Bytes::from_static(b"the second")),
            version: -1,
        },
    );
    change(&fixture, ZnodeOp::Delete { path: "/app/data".to_owned(), version: -1 });
    let names = fixture.names("/znodes/app").await;
    assert_eq!(names[..2], ["50%25%40home", "data"]);
    assert_eq!(fixture.text(&format!("/znodes/app/{}/data", names[2])).await, "first");
    assert_eq!(fixture.text("/znodes/app/data").await, "the second");
    assert_eq!(fixture.text("/znodes/app/50%25%40home/data").await, "first");
    assert_eq!(fixture.errno("/znodes/app/%64ata/data").await, 2, "it is deleted");
    for path in [
        format!("/.at/{before}/znodes/app/data"),
        format!("/znodes/app/data@{before}"),
        format!("/znodes/app@{before}/data"),
        // The child that has the name of the file.
        format!("/.at/{before}/znodes/app/%64ata/data"),
    ] {
        assert_eq!(fixture.text(&path).await, "first", "{path}");
    }
    let node = fixture.node("/znodes/app/data").await.unwrap();
    let stat = fixture.tree.stat(&node).await.unwrap();
    assert_eq!((stat.size, stat.mode), (10, 0o444));
    assert!(stat.modified > stat.created);
    assert_eq!(fixture.errno("/znodes/app").await, 21, "a directory has no bytes");
    assert_eq!(fixture.errno("/znodes/none/data").await, 2);
    assert_eq!(fixture.errno("/znodes/app/data/x").await, 20);
    assert_eq!(fixture.errno("/.at/u5/znodes/app/data").await, 22, "it has no user time");
}

/// A reader of files has no identity in ZooKeeper. The list of that time decides.
#[tokio::test(flavor = "multi_thread")]
async fn a_znode_that_not_everybody_may_read_is_refused() {
    let fixture = TreeFixture::new();
    let owner = AclId::new("digest", "me:hash");
    let closed: Acl = Arc::new([AclEntry { permissions: acl::ALL, id: owner }]);
    change(&fixture, create("/open", "x", open()));
    change(&fixture, create("/secret", "x", Arc::clone(&closed)));
    let before = shown(fixture.now());
    let (path, version) = ("/open".to_owned(), -1);
    change(&fixture, ZnodeOp::SetAcl { path, acl: closed, version });
    let after = shown(fixture.now());
    assert_eq!(fixture.names("/znodes").await, ["data", "open", "secret", "zookeeper"]);
    for path in [
        "/znodes/secret/data".to_owned(),
        "/znodes/open/data".to_owned(),
        format!("/znodes/open/data@{after}"),
        format!("/.at/{before}/znodes/secret/data"),
    ] {
        assert_eq!(fixture.errno(&path).await, 13, "{path}");
    }
    assert_eq!(fixture.text(&format!("/znodes/open/data@{before}")).await, "x");
}
