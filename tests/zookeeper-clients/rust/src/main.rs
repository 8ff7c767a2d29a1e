//! The crate zookeeper-client against a ZooKeeper server: --connect HOST:PORT --run NAME [--past]

use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zookeeper_client::{
    Acls, AddWatchMode, Client, CreateMode, Error, EventType, LockOptions, LockPrefix,
};

const PATIENCE: Duration = Duration::from_secs(10);

type StepResult = Result<(), String>;

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, expected: T, seen: T) -> StepResult {
    if expected == seen {
        Ok(())
    } else {
        Err(format!("expected {what} {expected:?}, saw {seen:?}"))
    }
}

fn text(error: impl std::fmt::Debug) -> String {
    format!("expected no error, saw {error:?}")
}

async fn step(name: &str, body: impl Future<Output = StepResult>) {
    let result = match tokio::time::timeout(PATIENCE, body).await {
        Ok(result) => result,
        Err(_) => Err(format!("expected an end within {PATIENCE:?}, saw none")),
    };
    match result {
        Ok(()) => println!("ok {name}"),
        Err(seen) => println!("FAILED {name}: {seen}"),
    }
}

fn persistent() -> zookeeper_client::CreateOptions<'static> {
    CreateMode::Persistent.with_acls(Acls::anyone_all())
}

async fn nodes(zk: &Client) -> StepResult {
    let (created, _) = zk.create("/n", b"one", &persistent()).await.map_err(text)?;
    equal("exists", Some(Error::NodeExists), zk.create("/n", b"", &persistent()).await.err())?;
    equal("no parent", Some(Error::NoNode), zk.create("/x/n", b"", &persistent()).await.err())?;
    let (data, stat) = zk.get_data("/n").await.map_err(text)?;
    equal("data", b"one".to_vec(), data)?;
    equal("zxid", created.czxid, stat.mzxid)?;
    let changed = zk.set_data("/n", b"two", Some(0)).await.map_err(text)?;
    equal("version", 1, changed.version)?;
    equal("old", Some(Error::BadVersion), zk.set_data("/n", b"", Some(0)).await.err())?;
    zk.create("/n/c", b"", &persistent()).await.map_err(text)?;
    equal("full", Some(Error::NotEmpty), zk.delete("/n", None).await.err())?;
    let (children, stat) = zk.get_children("/n").await.map_err(text)?;
    equal("children", vec!["c".to_owned()], children)?;
    equal("cversion", 1, stat.cversion)?;
    zk.delete("/n/c", None).await.map_err(text)?;
    zk.delete("/n", Some(1)).await.map_err(text)?;
    equal("gone", None, zk.check_stat("/n").await.map_err(text)?)
}

async fn sequences(zk: &Client) -> StepResult {
    let options = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
    let mut previous = None;
    for _ in 0..3 {
        let (_, sequence) = zk.create("/s-", b"", &options).await.map_err(text)?;
        let shown = sequence.to_string();
        let number: u32 = shown[shown.len() - 10..].parse().map_err(text)?;
        equal("number", previous.unwrap_or(number), number)?;
        previous = Some(number + 1);
    }
    Ok(())
}

async fn watches(a: &Client, b: &Client) -> StepResult {
    a.create("/w", b"one", &persistent()).await.map_err(text)?;
    let (_, _, watcher) = b.get_and_watch_data("/w").await.map_err(text)?;
    let (_, appears) = b.check_and_watch_stat("/w/later").await.map_err(text)?;
    let changed = a.set_data("/w", b"two", None).await.map_err(text)?;
    let event = watcher.changed().await;
    equal("event", (EventType::NodeDataChanged, "/w"), (event.event_type, event.path.as_str()))?;
    equal("zxid", changed.mzxid, event.zxid)?;
    a.create("/w/later", b"", &persistent()).await.map_err(text)?;
    equal("event", EventType::NodeCreated, appears.changed().await.event_type)
}

async fn recursive_watches(a: &Client, b: &Client) -> StepResult {
    a.create("/r", b"", &persistent()).await.map_err(text)?;
    let mut watcher = b.watch("/r", AddWatchMode::PersistentRecursive).await.map_err(text)?;
    a.create("/r/x", b"", &persistent()).await.map_err(text)?;
    a.create("/r/x/y", b"", &persistent()).await.map_err(text)?;
    a.delete("/r/x/y", None).await.map_err(text)?;
    for expected in [
        (EventType::NodeCreated, "/r/x"),
        (EventType::NodeCreated, "/r/x/y"),
        (EventType::NodeDeleted, "/r/x/y"),
    ] {
        let event = watcher.changed().await;
        equal("event", expected, (event.event_type, event.path.as_str()))?;
    }
    Ok(())
}

async fn transactions(zk: &Client) -> StepResult {
    let mut writer = zk.new_multi_writer();
    writer.add_create("/t", b"1", &persistent()).map_err(text)?;
    writer.add_create("/t/x", b"2", &persistent()).map_err(text)?;
    writer.add_set_data("/t", b"3", Some(0)).map_err(text)?;
    equal("results", 3, writer.commit().await.map_err(text)?.len())?;
    let mut writer = zk.new_multi_writer();
    writer.add_delete("/t/x", None).map_err(text)?;
    writer.add_check_version("/t", 7).map_err(text)?;
    equal("refused", true, writer.commit().await.is_err())?;
    equal("kept", true, zk.check_stat("/t/x").await.map_err(text)?.is_some())
}

async fn locks(a: &Client, b: &Client) -> StepResult {
    a.create("/lock", b"", &persistent()).await.map_err(text)?;
    let options = || LockOptions::new(Acls::anyone_all());
    let prefix = || LockPrefix::new_curator("/lock", "latch-");
    let held = a.lock(prefix().map_err(text)?, b"", options()).await.map_err(text)?;
    let waits = b.lock(prefix().map_err(text)?, b"", options());
    tokio::pin!(waits);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut waits).await;
    equal("held by both", true, early.is_err())?;
    drop(held);
    waits.await.map(drop).map_err(text)
}

async fn ephemerals(connect: &str, root: &str, zk: &Client) -> StepResult {
    let other = Client::connect(connect).await.map_err(text)?.chroot(root.to_owned());
    let other = other.map_err(text)?;
    let options = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    other.create("/e", b"", &options).await.map_err(text)?;
    let (stat, watcher) = zk.check_and_watch_stat("/e").await.map_err(text)?;
    equal("owned", true, stat.is_some_and(|stat| stat.ephemeral_owner != 0))?;
    // Its session ends with its last handle.
    drop(other);
    equal("event", EventType::NodeDeleted, watcher.changed().await.event_type)
}

async fn past(connect: &str, root: &str, zk: &Client) -> StepResult {
    let now_ms = || SystemTime::now().duration_since(UNIX_EPOCH).expect("later").as_millis();
    zk.create("/past", b"one", &persistent()).await.map_err(text)?;
    let moment = now_ms() + 1;
    while now_ms() <= moment {
        tokio::task::yield_now().await;
    }
    zk.set_data("/past", b"two", None).await.map_err(text)?;
    let then = Client::connect(connect).await.map_err(text)?;
    let then = then.chroot(format!("/.at/s{moment}{root}")).map_err(text)?;
    equal("data then", b"one".to_vec(), then.get_data("/past").await.map_err(text)?.0)?;
    equal("a write", true, then.set_data("/past", b"", None).await.is_err())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)).cloned()
    };
    let connect = after("--connect").expect("--connect HOST:PORT");
    let root = format!("/clients-{}-rust", after("--run").expect("--run NAME"));
    let top = Client::connect(&connect).await.expect("a server");
    top.create(&root, b"", &persistent()).await.expect("a root");
    let begin = async || {
        let client = Client::connect(&connect).await.expect("a server");
        client.chroot(root.clone()).expect("a path")
    };
    let (a, b) = (begin().await, begin().await);
    step("nodes", nodes(&a)).await;
    step("sequences", sequences(&a)).await;
    step("watches", watches(&a, &b)).await;
    step("recursive-watches", recursive_watches(&a, &b)).await;
    step("transactions", transactions(&a)).await;
    step("locks", locks(&a, &b)).await;
    step("ephemerals", ephemerals(&connect, &root, &a)).await;
    if arguments.iter().any(|argument| argument == "--past") {
        step("past", past(&connect, &root, &a)).await;
    }
}
