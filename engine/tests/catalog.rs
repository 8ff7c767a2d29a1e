//! A failing catalog: it is soft, so the service goes on. A read returns the right result, or an
//! error to retry.

#![allow(clippy::disallowed_methods, reason = "it waits for the thing itself, up to a bound")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::files::FileError;
use engine::groups::OffsetCommit;
use engine::{CoreOptions, EngineError, EngineOptions, SeekError, WaitPolicy};
use hlc::{Cut, ManualClock, SysTime};
use storage::catalog::CatalogFaults;
use storage::disk::MemoryDisk;
use testkit::directory::TestDirectory;
use testkit::engine::{EngineFixture, START};

const PATIENCE: Duration = Duration::from_secs(60);

/// An engine with a catalog on disk, and the faults of that catalog.
struct FaultyCatalogFixture {
    fixture: EngineFixture,
    faults: CatalogFaults,
    catalog: TestDirectory,
}

impl FaultyCatalogFixture {
    fn new() -> FaultyCatalogFixture {
        let clock = Arc::new(ManualClock::at(SysTime(START)));
        FaultyCatalogFixture::on(MemoryDisk::new(), clock, TestDirectory::new())
    }

    fn on(
        disk: MemoryDisk,
        clock: Arc<ManualClock>,
        catalog: TestDirectory,
    ) -> FaultyCatalogFixture {
        let faults = CatalogFaults::default();
        let options = EngineOptions {
            core: CoreOptions {
                catalog: Some(catalog.path().to_owned()),
                catalog_faults: faults.clone(),
                ..CoreOptions::default()
            },
            ..EngineOptions::default()
        };
        FaultyCatalogFixture { fixture: EngineFixture::with(disk, clock, options), faults, catalog }
    }

    /// The process dies, and another one starts.
    fn crash(self) -> FaultyCatalogFixture {
        let FaultyCatalogFixture { fixture, catalog, .. } = self;
        let (disk, clock) = (fixture.disk.after_kill(), Arc::clone(&fixture.clock));
        drop(fixture);
        clock.advance(Duration::from_secs(3));
        FaultyCatalogFixture::on(disk, clock, catalog)
    }

    /// Retries until the catalog is rebuilt.
    fn retry<T>(&self, query: impl Fn() -> Result<T, EngineError>) -> T {
        let begun = Instant::now();
        loop {
            match query() {
                Ok(answer) => return answer,
                Err(EngineError::Loading(_)) => {}
                Err(error) => panic!("{error}"),
            }
            assert!(begun.elapsed() < PATIENCE, "the catalog is rebuilt");
            std::thread::yield_now();
        }
    }

    fn committed(&self, group: &str, topic: &str) -> Option<i64> {
        let offset = self.retry(|| self.fixture.engine.groups().committed_offset(group, topic, 0));
        offset.map(|committed| committed.offset)
    }

    fn has_file(&self, name: &str) -> bool {
        self.retry(|| match self.fixture.engine.files().stat(name, Cut::ALL) {
            Ok(_) => Ok(true),
            Err(FileError::NotFound(_)) => Ok(false),
            Err(FileError::Loading(error)) => Err(EngineError::Loading(error)),
            Err(error) => panic!("{error}"),
        })
    }

    async fn make_file(&self, name: &str) {
        let begun = Instant::now();
        loop {
            match self.fixture.engine.files().create(name, 0o644).await {
                Err(FileError::Loading(_)) => assert!(begun.elapsed() < PATIENCE),
                // It was created, and could not be read back.
                Ok(_) | Err(FileError::Exists(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn commit(&self, group: &str, topic: &str, offset: i64) {
        let metadata = "m".repeat(100);
        let topic = topic.to_owned();
        let commit = OffsetCommit {
            topic,
            partition: 0,
            offset,
            leader_epoch: -1,
            metadata,
            retention_ms: None,
        };
        self.fixture
            .engine
            .groups()
            .commit(group, vec![commit])
            .await
            .expect("it is in the journal");
    }

    async fn offset_at(&self, group: &str, cut: Cut) -> Option<i64> {
        let begun = Instant::now();
        loop {
            match self
                .fixture
                .engine
                .groups()
                .offsets_at(Some(group), cut, WaitPolicy::Refuse)
                .await
            {
                Ok((.., offsets)) => return offsets.first().map(|first| first.committed.offset),
                Err(SeekError::Engine(EngineError::Loading(_))) => {
                    assert!(begun.elapsed() < PATIENCE);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catalog_that_fails_at_any_step_is_rebuilt_while_service_goes_on() {
    let mut frail = FaultyCatalogFixture::new();
    let topic = frail.fixture.topic("gone", 1).await;
    frail.fixture.topic("t", 1).await;
    frail.commit("old", "gone", 7).await;
    frail.fixture.engine.topics().delete(topic.id).await.unwrap();
    let (mut history, mut rebuilds) = (BTreeMap::new(), 0);
    for round in 0..30_i64 {
        frail.faults.fail_after(round as u64);
        frail.commit("g", "t", round).await;
        frail.make_file(&format!("/f{round}")).await;
        let topic = frail.fixture.topic(&format!("u{round}"), 1).await;
        frail.commit("g", &format!("u{round}"), 1).await;
        frail.fixture.engine.topics().delete(topic.id).await.unwrap();
        assert_eq!(frail.committed("g", "t"), Some(round));
        assert_eq!(frail.committed("g", &format!("u{round}")), None, "it went with its topic");
        assert_eq!(frail.committed("old", "gone"), None);
        assert!(frail.has_file(&format!("/f{round}")) && !frail.has_file("/g"));
        frail.fixture.advance_clock(10);
        history.insert(frail.fixture.now(), round);
        // The next incarnation starts with what the failure left undone.
        if round % 10 == 9 {
            rebuilds += frail.fixture.engine.catalog_rebuilds().0;
            frail = frail.crash();
        }
    }
    assert!(rebuilds > 10, "{rebuilds}");
    for (cut, offset) in history {
        assert_eq!(frail.offset_at("g", cut).await, Some(offset));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_disk_has_no_room_for_a_catalog_one_in_memory_takes_its_place() {
    let frail = FaultyCatalogFixture::new();
    frail.fixture.topic("t", 1).await;
    frail.commit("g", "t", 1).await;
    frail.faults.set_full(true);
    for offset in 2..50 {
        frail.commit("g", "t", offset).await;
        assert_eq!(frail.committed("g", "t"), Some(offset));
    }
    assert_eq!(frail.fixture.engine.catalog_rebuilds(), (1, true));
    // The next incarnation finds room.
    let frail = frail.crash();
    assert_eq!(frail.fixture.engine.catalog_rebuilds(), (0, false));
    assert_eq!(frail.committed("g", "t"), Some(49));
    frail.commit("g", "t", 50).await;
    assert_eq!(frail.committed("g", "t"), Some(50));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_topic_costs_what_groups_have_of_it_and_not_what_there_is() {
    let frail = FaultyCatalogFixture::new();
    let topic = frail.fixture.topic("gone", 1).await;
    frail.fixture.topic("t", 1).await;
    for group in 0..500 {
        frail.commit(&format!("g{group}"), "t", 1).await;
    }
    frail.commit("g7", "gone", 1).await;
    frail.faults.fail_after(40);
    frail.fixture.engine.topics().delete(topic.id).await.unwrap();
    assert_eq!(frail.committed("g7", "gone"), None);
    assert!(frail.faults.has_pending_failure(), "few steps were done");
    assert_eq!(frail.committed("g8", "t"), Some(1));
}
