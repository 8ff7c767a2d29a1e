//! Differences between two moments, against a replay of the whole history (F3).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use engine::CoreOptions;
use engine::diff::{DiffPageRequest, DiffSection, Difference};
use engine::groups::{OffsetCommit, StoredGroup};
use engine::znodes::{ZnodeAtMoment, ZnodeLifetime, ZnodeOp, acl};
use engine::{EngineError, EngineOptions, Isolation, SeekError, WaitPolicy};
use hlc::{Cut, ManualClock, SysTime};
use proptest::prelude::*;
use storage::disk::MemoryDisk;
use testkit::engine::EngineFixture;
use testkit::znodes::change_znode;

const NOW: WaitPolicy = WaitPolicy::Refuse;
const TOPICS: [&str; 3] = ["a", "b", "c"];
const GROUPS: [&str; 2] = ["g", "h"];
const ZNODES: [&str; 3] = ["/a", "/b", "/c"];

/// A record in a batch of the fixture has eight bytes, and so has the header of the batch.
const WORD: u64 = 8;

/// The replay's view of a topic: its id, settings, and where each partition ends, in records and
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReplayTopic {
    id: u8,
    configs: BTreeMap<String, String>,
    partitions: Vec<(u64, u64)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ReplayState {
    topics: BTreeMap<String, ReplayTopic>,
    /// Deleted topics, in their last state.
    deleted: Vec<(String, ReplayTopic)>,
    offsets: BTreeMap<(String, String, u32), i64>,
    groups: BTreeMap<String, StoredGroup>,
    /// The transaction that created a znode, and its version.
    znodes: BTreeMap<String, (i64, i32)>,
    /// Each time that a pin was set or removed.
    pins: Vec<String>,
}

#[derive(Clone, Debug)]
enum DiffStep {
    Create { topic: usize, partitions: u32 },
    Delete { topic: usize },
    Grow { topic: usize },
    Configure { topic: usize, bytes: u32 },
    Append { topic: usize, records: usize },
    Commit { group: usize, topic: usize, offset: i64 },
    Uncommit { group: usize, topic: usize },
    Save { group: usize, byte: u8 },
    DeleteGroup { group: usize },
    CreateZnode { znode: usize },
    SetZnode { znode: usize },
    DeleteZnode { znode: usize },
    Pin { name: usize },
    Unpin { name: usize },
    Pass,
}

fn step() -> impl Strategy<Value = DiffStep> {
    let (topic, group) = (|| 0..TOPICS.len(), || 0..GROUPS.len());
    let znode = || 0..ZNODES.len();
    prop_oneof![
        3 => (topic(), 1..4u32).prop_map(|(topic, partitions)| DiffStep::Create { topic, partitions }),
        1 => topic().prop_map(|topic| DiffStep::Delete { topic }),
        1 => topic().prop_map(|topic| DiffStep::Grow { topic }),
        2 => (topic(), 1..4u32).prop_map(|(topic, bytes)| DiffStep::Configure { topic, bytes }),
        8 => (topic(), 1..4usize).prop_map(|(topic, records)| DiffStep::Append { topic, records }),
        5 => (group(), topic(), 0..4i64)
            .prop_map(|(group, topic, offset)| DiffStep::Commit { group, topic, offset }),
        1 => (group(), topic()).prop_map(|(group, topic)| DiffStep::Uncommit { group, topic }),
        2 => (group(), 0..3u8).prop_map(|(group, byte)| DiffStep::Save { group, byte }),
        1 => group().prop_map(|group| DiffStep::DeleteGroup { group }),
        2 => znode().prop_map(|znode| DiffStep::CreateZnode { znode }),
        2 => znode().prop_map(|znode| DiffStep::SetZnode { znode }),
        1 => znode().prop_map(|znode| DiffStep::DeleteZnode { znode }),
        1 => (0..2usize).prop_map(|name| DiffStep::Pin { name }),
        1 => (0..2usize).prop_map(|name| DiffStep::Unpin { name }),
        3 => Just(DiffStep::Pass),
    ]
}

struct DiffWorld {
    fixture: EngineFixture,
    state: ReplayState,
    ids: u8,
}

impl DiffWorld {
    async fn take(&mut self, step: &DiffStep) {
        let (engine, state) = (&self.fixture.engine, &mut self.state);
        match *step {
            DiffStep::Create { topic, partitions } => {
                let name = TOPICS[topic];
                let id = self.ids;
                let created = engine
                    .topics()
                    .create(name, partitions, BTreeMap::new(), [id; 16], false)
                    .await;
                assert_eq!(created.is_ok(), !state.topics.contains_key(name));
                if created.is_ok() {
                    self.ids += 1;
                    let partitions = vec![(0, 0); partitions as usize];
                    let topic = ReplayTopic { id, configs: BTreeMap::new(), partitions };
                    state.topics.insert(name.to_owned(), topic);
                }
            }
            DiffStep::Delete { topic } => {
                let name = TOPICS[topic];
                let Some(topic) = state.topics.remove(name) else { return };
                engine.topics().delete([topic.id; 16]).await.unwrap();
                state.deleted.push((name.to_owned(), topic));
                state.offsets.retain(|(_, topic, _), _| topic != name);
            }
            DiffStep::Grow { topic } => {
                let Some(topic_then) = state.topics.get_mut(TOPICS[topic]) else { return };
                topic_then.partitions.push((0, 0));
                let total = topic_then.partitions.len() as u32;
                engine.topics().add_partitions(TOPICS[topic], total, false).await.unwrap();
            }
            DiffStep::Configure { topic, bytes } => {
                let Some(topic_then) = state.topics.get_mut(TOPICS[topic]) else { return };
                let (key, value) = ("max.message.bytes".to_owned(), (bytes * 1000).to_string());
                topic_then.configs.insert(key, value);
                let configs = topic_then.configs.clone();
                let change = |set: &mut BTreeMap<String, String>| {
                    *set = configs;
                    Ok::<_, EngineError>(())
                };
                engine.topics().configure(TOPICS[topic], change, false).await.unwrap();
            }
            DiffStep::Append { topic, records } => {
                let Some(topic_then) = state.topics.get_mut(TOPICS[topic]) else { return };
                let partition = records % topic_then.partitions.len();
                let (count, bytes) = &mut topic_then.partitions[partition];
                *count += records as u64;
                *bytes += WORD * (records as u64 + 1);
                let topic = engine.topics().named(TOPICS[topic]).unwrap();
                self.fixture.append(&topic, partition as u32, &vec![1; records]).await.unwrap();
            }
            DiffStep::Commit { group, topic, offset } => {
                let place = (GROUPS[group].to_owned(), TOPICS[topic].to_owned(), 0);
                let topic = place.1.clone();
                let commit = OffsetCommit {
                    topic,
                    partition: 0,
                    offset,
                    leader_epoch: -1,
                    metadata: String::new(),
                    retention_ms: None,
                };
                engine.groups().commit(&place.0, vec![commit]).await.unwrap();
                state.offsets.insert(place, offset);
            }
            DiffStep::Uncommit { group, topic } => {
                let place = (GROUPS[group].to_owned(), TOPICS[topic].to_owned(), 0);
                let deleted = vec![(place.1.clone(), 0)];
                engine.groups().delete_offsets(&place.0, deleted).await.unwrap();
                state.offsets.remove(&place);
            }
            DiffStep::Save { group, byte } => {
                // Of some groups, members are stored one by one.
                let (group, snapshot) = (GROUPS[group], vec![byte]);
                let mut stored = StoredGroup::whole(snapshot.clone());
                if byte % 2 == 0 {
                    engine.groups().save(group, snapshot).await.unwrap();
                } else {
                    let members = vec![("m".to_owned(), Some(vec![byte]))];
                    engine.groups().save_changes(group, snapshot, members, true).await.unwrap();
                    stored.members.insert("m".to_owned(), vec![byte]);
                }
                state.groups.insert(group.to_owned(), stored);
            }
            DiffStep::DeleteGroup { group } => {
                engine.groups().delete(GROUPS[group]).await.unwrap();
                state.groups.remove(GROUPS[group]);
                state.offsets.retain(|(name, ..), _| name != GROUPS[group]);
            }
            DiffStep::CreateZnode { znode } => {
                let (path, lifetime) = (ZNODES[znode].to_owned(), ZnodeLifetime::Persistent);
                let acl = acl::anyone(acl::ALL);
                let op = ZnodeOp::Create { path, data: None, acl, lifetime, is_sequential: false };
                let created = change_znode(engine.znodes(), op);
                assert_eq!(created.is_err(), state.znodes.contains_key(ZNODES[znode]));
                if let Ok(zxid) = created {
                    state.znodes.insert(ZNODES[znode].to_owned(), (zxid, 0));
                }
            }
            DiffStep::SetZnode { znode } => {
                let path = ZNODES[znode].to_owned();
                let op = ZnodeOp::SetData { path: path.clone(), data: None, version: -1 };
                let is_done = change_znode(engine.znodes(), op).is_ok();
                assert_eq!(is_done, state.znodes.contains_key(&path));
                state.znodes.entry(path).and_modify(|(_, version)| *version += 1);
            }
            DiffStep::DeleteZnode { znode } => {
                let path = ZNODES[znode].to_owned();
                let op = ZnodeOp::Delete { path: path.clone(), version: -1 };
                let is_done = change_znode(engine.znodes(), op).is_ok();
                assert_eq!(is_done, state.znodes.remove(&path).is_some());
            }
            DiffStep::Pin { name } => {
                let (name, at) = (format!("p{name}"), Cut::before(SysTime(testkit::engine::START)));
                let expires = SysTime(self.fixture.clock_ms() + 1_000_000);
                if engine.pins().set(&name, at, NOW, expires, None).await.is_ok() {
                    state.pins.push(format!("+{name}"));
                }
            }
            DiffStep::Unpin { name } => {
                let name = format!("p{name}");
                if engine.pins().remove(&name).await.is_ok() {
                    state.pins.push(format!("-{name}"));
                }
            }
            DiffStep::Pass => self.fixture.advance_clock(1),
        }
    }
}

/// The differences, one line each.
fn replayed(before: &ReplayState, after: &ReplayState) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let was_there = |id: u8| before.topics.values().any(|topic| topic.id == id);
    let deleted = after.deleted.iter().filter(|(_, topic)| was_there(topic.id));
    let deleted: Vec<_> = deleted.collect();
    let topics = after.topics.iter();
    for (name, topic) in topics.chain(deleted.iter().map(|(name, topic)| (name, topic))) {
        let past = before.topics.get(name).filter(|past| past.id == topic.id);
        match past {
            None => drop(lines.insert(format!("created {name} {}", topic.id))),
            Some(past) => {
                let is_same = past.configs == topic.configs
                    && past.partitions.len() == topic.partitions.len();
                if !is_same {
                    let (old, new) = (past.partitions.len(), topic.partitions.len());
                    lines.insert(format!("changed {name} {old} {new} {:?}", topic.configs));
                }
            }
        }
        for (nth, (end, bytes)) in topic.partitions.iter().enumerate() {
            let old = past.and_then(|past| past.partitions.get(nth)).copied().unwrap_or((0, 0));
            if old.0 < *end {
                let (start, bytes) = (old.0, bytes - old.1);
                lines.insert(format!("appended {name} {} {nth} {start}..{end} {bytes}", topic.id));
            }
        }
    }
    for (name, topic) in deleted {
        lines.insert(format!("deleted {name} {}", topic.id));
    }
    for (place, offset) in &after.offsets {
        let old = before.offsets.get(place);
        if old != Some(offset) {
            lines.insert(format!("offset {place:?} {old:?} {:?}", Some(offset)));
        }
    }
    for (place, offset) in &before.offsets {
        if !after.offsets.contains_key(place) {
            lines.insert(format!("offset {place:?} {:?} None", Some(offset)));
        }
    }
    for group in before.groups.keys().chain(after.groups.keys()) {
        let (old, new) = (before.groups.get(group), after.groups.get(group));
        if old != new {
            lines.insert(format!("group {group} {old:?} {new:?}"));
        }
    }
    for path in before.znodes.keys().chain(after.znodes.keys()) {
        let (old, new) = (before.znodes.get(path), after.znodes.get(path));
        if old != new {
            lines.insert(format!("znode {path} {old:?} {new:?}"));
        }
    }
    for (nth, pin) in after.pins.iter().enumerate().skip(before.pins.len()) {
        lines.insert(format!("pin {nth} {pin}"));
    }
    lines
}

const SECTIONS: [DiffSection; 6] = [
    DiffSection::Topics,
    DiffSection::Records,
    DiffSection::Pins,
    DiffSection::Offsets,
    DiffSection::Groups,
    DiffSection::Znodes,
];

fn is_of(section: DiffSection, line: &str) -> bool {
    let first = line.split(' ').next().unwrap();
    match section {
        DiffSection::Topics => ["created", "changed", "deleted"].contains(&first),
        DiffSection::Records => first == "appended",
        DiffSection::Pins => first == "pin",
        DiffSection::Offsets => first == "offset",
        DiffSection::Groups => first == "group",
        DiffSection::Znodes => first == "znode",
    }
}

async fn diff(
    fixture: &EngineFixture,
    from: Cut,
    until: Cut,
    limit: usize,
    pins_before: usize,
) -> Vec<String> {
    diff_of(fixture, from, until, limit, pins_before, None).await
}

/// All pages of a difference, each of at most `limit`, in the same format. Without transactions, it
/// does not depend on the isolation.
async fn diff_of(
    fixture: &EngineFixture,
    from: Cut,
    until: Cut,
    limit: usize,
    pins_before: usize,
    only: Option<&[DiffSection]>,
) -> Vec<String> {
    let pages = |isolation| pages_of(fixture, from, until, limit, pins_before, only, isolation);
    let lines = pages(Isolation::Committed).await;
    assert_eq!(lines, pages(Isolation::Uncommitted).await);
    lines
}

async fn pages_of(
    fixture: &EngineFixture,
    from: Cut,
    until: Cut,
    limit: usize,
    pins_before: usize,
    only: Option<&[DiffSection]>,
    isolation: Isolation,
) -> Vec<String> {
    let (mut lines, mut after) = (Vec::new(), None);
    let mut pins = pins_before;
    loop {
        let request = DiffPageRequest {
            from,
            until,
            topics: None,
            only,
            isolation,
            after: after.as_ref(),
            limit,
        };
        let page = fixture.engine.diff(request, NOW).await.unwrap();
        assert_eq!((page.from, page.until), (from, until));
        assert!(page.differences.len() <= limit);
        for difference in &page.differences {
            lines.push(line(difference, &mut pins));
        }
        match page.next {
            // As a client sends it back.
            Some(next) => after = Some(next.to_string().parse().unwrap()),
            None => return lines,
        }
    }
}

fn line(difference: &Difference, pins: &mut usize) -> String {
    let mut pin = |text: String| {
        *pins += 1;
        format!("pin {} {text}", *pins - 1)
    };
    match difference {
        Difference::TopicCreated(topic) => format!("created {} {}", topic.name, topic.id[0]),
        Difference::TopicDeleted { topic, .. } => format!("deleted {} {}", topic.name, topic.id[0]),
        Difference::TopicChanged { before, after } => {
            let (old, new) = (before.partitions.len(), after.partitions.len());
            format!("changed {} {old} {new} {:?}", after.name, after.config.overrides())
        }
        Difference::Appended { topic, partition, start, end, records, bytes } => {
            assert_eq!(*records, end.0 - start.0);
            let (name, id) = (&topic.name, topic.id[0]);
            format!("appended {name} {id} {partition} {}..{} {bytes}", start.0, end.0)
        }
        Difference::PinSet { name, .. } => pin(format!("+{name}")),
        Difference::PinRemoved { name, .. } => pin(format!("-{name}")),
        Difference::Offset(offset) => {
            let place = (&offset.group, &offset.topic, offset.partition);
            let number = |committed: &Option<engine::groups::CommittedOffset>| {
                committed.as_ref().map(|committed| committed.offset)
            };
            format!("offset {place:?} {:?} {:?}", number(&offset.before), number(&offset.after))
        }
        Difference::Group(group) => {
            format!("group {} {:?} {:?}", group.group, group.before, group.after)
        }
        Difference::Znode(znode) => {
            let shown = |znode: &Option<ZnodeAtMoment>| {
                znode.as_ref().map(|znode| (znode.stat.czxid, znode.stat.version))
            };
            format!("znode {} {:?} {:?}", znode.path, shown(&znode.before), shown(&znode.after))
        }
    }
}

async fn compare(steps: Vec<DiffStep>) {
    let mut world =
        DiffWorld { fixture: EngineFixture::new(), state: ReplayState::default(), ids: 0 };
    let mut history = vec![(world.fixture.now(), world.state.clone())];
    for step in &steps {
        world.take(step).await;
        history.push((world.fixture.now(), world.state.clone()));
    }
    let fixture = world.fixture.restart();
    for (nth, (from, before)) in history.iter().enumerate().step_by(3) {
        for (until, after) in history[nth + 1..].iter().step_by(4) {
            let whole = diff(&fixture, *from, *until, 1000, before.pins.len()).await;
            let lines: BTreeSet<String> = whole.iter().cloned().collect();
            assert_eq!(lines.len(), whole.len(), "each once: {whole:?}");
            assert_eq!(lines, replayed(before, after), "{from:?}..{until:?}");
            for section in SECTIONS {
                let only = [section];
                let of_it =
                    diff_of(&fixture, *from, *until, 3, before.pins.len(), Some(&only)).await;
                let expected = whole.iter().filter(|line| is_of(section, line));
                assert_eq!(of_it, expected.cloned().collect::<Vec<_>>(), "{section:?}");
            }
            let paged = diff(&fixture, *from, *until, 2, before.pins.len()).await;
            assert_eq!(paged, whole, "in pages too");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn f3_what_differs_between_two_moments_is_what_a_replay_says(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(compare(steps));
    }
}

#[tokio::test]
async fn a_topic_that_came_and_went_in_between_is_no_difference() {
    let fixture = EngineFixture::new();
    let from = fixture.now();
    let topic = engine_topic(&fixture, "a", 1).await;
    fixture.append(&topic, 0, &[1, 2]).await.unwrap();
    let within = fixture.now();
    fixture.engine.topics().delete(topic.id).await.unwrap();
    let after_deletion = fixture.now();
    engine_topic(&fixture, "a", 2).await;
    let until = fixture.now();
    assert_eq!(diff(&fixture, from, after_deletion, 10, 0).await, Vec::<String>::new());
    assert_eq!(diff(&fixture, from, until, 10, 0).await, ["created a 2"]);
    assert_eq!(diff(&fixture, within, until, 10, 0).await, ["deleted a 1", "created a 2"]);
    // Requesting it by name is not an error.
    let topics = ["a".to_owned()];
    let request = DiffPageRequest {
        from,
        until: after_deletion,
        topics: Some(&topics),
        only: None,
        isolation: Isolation::Committed,
        after: None,
        limit: 10,
    };
    assert!(fixture.engine.diff(request, NOW).await.unwrap().differences.is_empty());
}

/// Creates a topic with one partition.
async fn engine_topic(fixture: &EngineFixture, name: &str, id: u8) -> Arc<engine::Topic> {
    fixture.engine.topics().create(name, 1, BTreeMap::new(), [id; 16], false).await.unwrap()
}

#[tokio::test]
async fn what_was_deleted_is_an_error_and_not_less() {
    let fixture = EngineFixture::new();
    let (t, u) = (fixture.topic("t", 1).await, fixture.topic("u", 1).await);
    let from = fixture.now();
    fixture.append(&t, 0, &[1]).await.unwrap();
    fixture.append(&u, 0, &[1]).await.unwrap();
    let middle = fixture.now();
    fixture.append(&t, 0, &[1]).await.unwrap();
    fixture.engine.topics().delete_records(&t, 0, 1).await.unwrap();
    let until = fixture.now();
    let request = DiffPageRequest {
        from,
        until,
        topics: None,
        only: None,
        isolation: Isolation::Committed,
        after: None,
        limit: 10,
    };
    let refused = fixture.engine.diff(request, NOW).await;
    let Err(SeekError::BeforeHistory { lost }) = refused else { panic!("{refused:?}") };
    assert_eq!(&*lost[0].topic, "t");
    // From that moment on, and for other topics, the query can be answered.
    assert_eq!(
        fixture
            .engine
            .diff(DiffPageRequest { from: middle, ..request }, NOW)
            .await
            .unwrap()
            .differences
            .len(),
        1
    );
    let topics = ["u".to_owned()];
    let page = fixture
        .engine
        .diff(DiffPageRequest { topics: Some(&topics), ..request }, NOW)
        .await
        .unwrap();
    assert_eq!(page.differences.len(), 1);
    // Sections with a longer retention can be requested by themselves.
    let only = [DiffSection::Topics, DiffSection::Pins, DiffSection::Offsets, DiffSection::Groups];
    let page =
        fixture.engine.diff(DiffPageRequest { only: Some(&only), ..request }, NOW).await.unwrap();
    assert!(page.differences.is_empty() && page.next.is_none(), "{page:?}");
    let unknown = ["no".to_owned()];
    let refused =
        fixture.engine.diff(DiffPageRequest { topics: Some(&unknown), ..request }, NOW).await;
    assert!(matches!(refused, Err(SeekError::NoTopic { .. })), "{refused:?}");
}

#[tokio::test]
async fn what_is_deleted_between_two_pages_is_an_error_on_the_next_wherever_it_begins() {
    let storage = storage::Options { manual_maintenance: true, ..storage::Options::default() };
    let options = EngineOptions {
        core: CoreOptions { storage, ..CoreOptions::default() },
        ..EngineOptions::default()
    };
    let clock = Arc::new(ManualClock::at(SysTime(testkit::engine::START)));
    let fixture = EngineFixture::with(MemoryDisk::new(), clock, options);
    let topic = fixture.topic("t", 3).await;
    fixture.append(&topic, 0, &[1]).await.unwrap();
    fixture.advance_clock(1);
    let from = fixture.now();
    for partition in 0..3 {
        fixture.append(&topic, partition, &[1, 2]).await.unwrap();
    }
    fixture.advance_clock(1);
    let until = fixture.now();
    let only = [DiffSection::Records];
    let request = DiffPageRequest {
        from,
        until,
        topics: None,
        only: Some(&only),
        isolation: Isolation::Committed,
        after: None,
        limit: 1,
    };
    let first = fixture.engine.diff(request, NOW).await.unwrap();
    assert_eq!(first.differences.len(), 1);
    let after = first.next.as_ref();
    let second = fixture.engine.diff(DiffPageRequest { after, ..request }, NOW).await.unwrap();
    assert_eq!(second.differences.len(), 1);
    // Everything between the moments was removed, and its space is reclaimed: both moments end
    // there now.
    for partition in 0..3 {
        fixture.append(&topic, partition, &[1]).await.unwrap();
    }
    let engine = Arc::new(fixture.engine);
    engine.maintenance().roll_segment().await.unwrap();
    engine.maintenance().index_and_sort().await.unwrap();
    engine.topics().delete_records(&topic, 1, 3).await.unwrap();
    for _ in 0..2 {
        engine.maintenance().reclaim().await.unwrap();
    }
    let log = &topic.partitions[1].log;
    assert_eq!(log.tip_at(from).unwrap().end, log.tip_at(until).unwrap().end);
    for limit in [1, 10] {
        let refused = engine.diff(DiffPageRequest { after, limit, ..request }, NOW).await;
        let Err(SeekError::BeforeHistory { lost }) = refused else { panic!("{refused:?}") };
        assert_eq!((lost.len(), lost[0].partition), (1, 1));
    }
}

#[tokio::test]
async fn a_page_does_not_grow_with_what_clients_wrote() {
    let fixture = EngineFixture::new();
    let from = fixture.now();
    for group in 0..12 {
        fixture.engine.groups().save(&format!("g{group:02}"), vec![1; 1 << 20]).await.unwrap();
    }
    let until = fixture.now();
    let (mut groups, mut pages, mut after) = (0, 0, None);
    loop {
        let request = DiffPageRequest {
            from,
            until,
            topics: None,
            only: None,
            isolation: Isolation::Committed,
            after: after.as_ref(),
            limit: 1000,
        };
        let page = fixture.engine.diff(request, NOW).await.unwrap();
        assert!(page.differences.len() <= 4, "{} on one page", page.differences.len());
        groups += page.differences.len();
        pages += 1;
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert!(groups == 12 && pages >= 3, "{groups} groups on {pages} pages");
}

#[tokio::test]
async fn what_did_not_come_yet_is_refused_or_answered_at_the_frontier() {
    let fixture = EngineFixture::new();
    let t = fixture.topic("t", 1).await;
    let from = fixture.now();
    fixture.append(&t, 0, &[1]).await.unwrap();
    let soon = Cut::before(SysTime(fixture.clock_ms() + 100));
    let request = DiffPageRequest {
        from,
        until: soon,
        topics: None,
        only: None,
        isolation: Isolation::Committed,
        after: None,
        limit: 10,
    };
    assert!(matches!(fixture.engine.diff(request, NOW).await, Err(SeekError::NotYet { .. })));
    let page = fixture.engine.diff(request, WaitPolicy::AtFrontier).await.unwrap();
    assert!(page.until < soon && page.differences.len() == 1, "{page:?}");
    let later = Cut::before(SysTime(fixture.clock_ms() + 50));
    let refused = fixture
        .engine
        .diff(DiffPageRequest { from: later, ..request }, WaitPolicy::AtFrontier)
        .await;
    assert!(matches!(refused, Err(SeekError::NotYet { .. })), "{refused:?}");
}
