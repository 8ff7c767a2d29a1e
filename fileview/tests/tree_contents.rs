//! The tree returns the stored bytes, byte for byte, whatever was removed, compacted or opened
//! before. Sizes are known before a read (F43, F44).

use std::collections::BTreeMap;

use engine::SeekError;
use fileview::tree::{KeysPage, OpenNode, RecordsQuery, TreeError, TreeOptions, ViewNode};
use fileview::{RecordRenderer, RecordSelection, ViewFormat};
use hlc::{Cut, Hlc, Moment, MomentSelector, UserTime};
use kafka_records::CompressionType;
use proptest::prelude::*;
use testkit::rng::SeededRng;

use crate::fixture::{TreeFixture, TreeTestRecord, list_node, read_node, render_expected};

const TOPIC: &str = "t";
const PARTITIONS: u32 = 2;
const FORMATS: [(ViewFormat, &str); 3] =
    [(ViewFormat::Raw, "log"), (ViewFormat::Values, "values"), (ViewFormat::Jsonl, "jsonl")];

#[derive(Clone, Debug)]
enum TreeStep {
    /// The partition, the keys with the lengths of their values, and the time.
    Produce {
        partition: u32,
        records: Vec<(u8, Option<u16>, i64)>,
        packed: bool,
    },
    DeleteTo {
        partition: u32,
        percent: u8,
    },
    Retain,
    Compact,
    Reclaim,
    RollAndMaintain,
    Restart,
    Check {
        seed: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<TreeStep>> {
    let record = (0..12_u8, prop::option::weighted(0.8, 0..3000_u16), 0..50_i64);
    let records = prop::collection::vec(record, 1..8);
    let step = prop_oneof![
        12 => (0..PARTITIONS, records, any::<bool>())
            .prop_map(|(partition, records, packed)| TreeStep::Produce { partition, records, packed }),
        1 => (0..PARTITIONS, 0..100_u8)
            .prop_map(|(partition, percent)| TreeStep::DeleteTo { partition, percent }),
        1 => Just(TreeStep::Retain),
        2 => Just(TreeStep::Compact),
        1 => Just(TreeStep::Reclaim),
        2 => Just(TreeStep::RollAndMaintain),
        1 => Just(TreeStep::Restart),
        3 => any::<u64>().prop_map(|seed| TreeStep::Check { seed }),
    ];
    prop::collection::vec(step, 5..50)
}

/// A value, and the rank that orders it among others.
type RankedValue = ((Hlc, u64), Option<Vec<u8>>);

/// A node that was opened once, and what it held.
struct OpenedNode {
    open: OpenNode,
    bytes: Vec<u8>,
    path: String,
    grows: bool,
}

struct TreeWorld {
    fixture: TreeFixture,
    moments: Vec<Cut>,
    opened: Vec<OpenedNode>,
    random: SeededRng,
}

impl TreeWorld {
    async fn new(policy: &str) -> TreeWorld {
        // So small that it takes many passes, and that little of an index stays.
        let options = TreeOptions {
            key_bytes_max: 1200,
            index_bytes_max: 1200,
            index_spacing_bytes: 500,
            ..TreeOptions::default()
        };
        let fixture = TreeFixture::with(options);
        let configs = [
            ("cleanup.policy", policy),
            ("min.cleanable.dirty.ratio", "0"),
            ("delete.retention.ms", "20"),
            ("retention.ms", "300"),
        ];
        fixture.topic(TOPIC, PARTITIONS, &configs).await;
        fixture.advance_clock(1);
        let moments = vec![fixture.now()];
        TreeWorld { fixture, moments, opened: Vec::new(), random: SeededRng::new(1) }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random.below(below.max(1))
    }

    fn moment(&mut self) -> Cut {
        let nth = self.random(self.moments.len() as u64);
        self.moments[nth as usize]
    }

    async fn act(mut self, step: &TreeStep) -> TreeWorld {
        match step {
            TreeStep::Produce { partition, records, packed } => {
                let records: Vec<TreeTestRecord> = records
                    .iter()
                    .map(|(key, length, time)| {
                        let value = length.map(|length| vec![b'a' + key; usize::from(length)]);
                        (Some(format!("key-{key}").into_bytes()), value, *time)
                    })
                    .collect();
                let codec = if *packed { CompressionType::Lz4 } else { CompressionType::None };
                self.fixture.produce_as(TOPIC, *partition, &records, codec).await;
                self.fixture.advance_clock(7);
                self.moments.push(self.fixture.now());
            }
            TreeStep::DeleteTo { partition, percent } => {
                let topic = self.fixture.engine.topics().named(TOPIC).unwrap();
                let target = &topic.partitions[*partition as usize];
                let (start, end) = (target.start().0, target.end().0);
                let before = start + (end - start) * u64::from(*percent) / 100;
                self.fixture
                    .engine
                    .topics()
                    .delete_records(&topic, *partition as i32, before as i64)
                    .await
                    .unwrap();
            }
            TreeStep::Retain => {
                self.fixture.engine.maintenance().apply_retention().await.unwrap();
            }
            TreeStep::Compact => {
                self.fixture.roll_and_index().await;
                self.fixture.engine.maintenance().compact_due().await.unwrap();
            }
            TreeStep::Reclaim => self.fixture.reclaim().await,
            TreeStep::RollAndMaintain => self.fixture.roll_and_index().await,
            TreeStep::Restart => {
                self.opened.clear();
                self.fixture = self.fixture.restart();
            }
            TreeStep::Check { seed } => {
                self.random = SeededRng::new(*seed);
                self.check().await;
            }
        }
        self
    }

    async fn check(&mut self) {
        self.check_opened().await;
        let mut asks = vec![None];
        for _ in 0..2 {
            let first = self.moment();
            let second = self.moment();
            asks.push(Some(MomentSelector::At(Moment::Sys(first))));
            asks.push(MomentSelector::window(Moment::Sys(first), Moment::Sys(second)).ok());
            let before = UserTime(self.random(50) as i64);
            asks.push(Some(MomentSelector::At(Moment::User { before, known: Some(second) })));
        }
        for selector in asks {
            self.check_partitions(selector).await;
            self.check_keys(selector).await;
        }
    }

    /// An open node shows the same bytes as before, or an error.
    async fn check_opened(&mut self) {
        for mut opened in std::mem::take(&mut self.opened) {
            let at = self.random(opened.bytes.len() as u64 + 1) as usize;
            let length = self.random(4000) as usize;
            match opened.open.read(at as u64, length).await {
                Ok(read) => {
                    let expected = &opened.bytes[at..(at + length).min(opened.bytes.len())];
                    assert!(read.starts_with(expected), "{} moved", opened.path);
                    assert!(opened.grows || read.len() == expected.len(), "{} grew", opened.path);
                }
                Err(TreeError::Gone(_)) => continue,
                Err(error) => panic!("{}: {error}", opened.path),
            }
            if opened.grows
                && let Ok(size) = opened.open.size().await
            {
                assert!(size >= opened.bytes.len() as u64, "{} shrank", opened.path);
                let appended = size as usize - opened.bytes.len();
                match opened.open.read(opened.bytes.len() as u64, appended).await {
                    Ok(read) => {
                        assert_eq!(read.len(), appended, "{}", opened.path);
                        opened.bytes.extend_from_slice(&read);
                    }
                    Err(TreeError::Gone(_)) => continue,
                    Err(error) => panic!("{}: {error}", opened.path),
                }
            }
            self.opened.push(opened);
        }
    }

    async fn check_partitions(&mut self, selector: Option<MomentSelector>) {
        let is_user = matches!(selector, Some(MomentSelector::At(Moment::User { .. })));
        for partition in 0..PARTITIONS {
            for (format, extension) in FORMATS {
                let path = match selector {
                    None => format!("topics/{TOPIC}/{partition}.{extension}"),
                    Some(selector) => {
                        format!(".at/{selector}/topics/{TOPIC}/{partition}.{extension}")
                    }
                };
                if is_user && format == ViewFormat::Raw {
                    assert_eq!(self.fixture.errno(&path).await, 22, "{path}");
                    continue;
                }
                let expected =
                    render_expected(&self.fixture.engine, TOPIC, partition, format, selector).await;
                let length = 1 + self.random(5000) as usize;
                let result = match self.fixture.node(&path).await {
                    Ok(node) => read_node(&self.fixture.tree, &node, length).await,
                    Err(error) => Err(error),
                };
                match (expected, result) {
                    (Ok(expected), Ok(bytes)) => {
                        assert!(expected == bytes, "{path}: {}, {}", expected.len(), bytes.len());
                        if format == ViewFormat::Jsonl {
                            let pages = self.record_pages(partition, selector).await.unwrap();
                            assert!(expected == pages, "{path}: pages of {} bytes", pages.len());
                        }
                        self.check_slices(&path, &expected).await;
                    }
                    (Err(SeekError::BeforeHistory { .. }), Err(error)) => {
                        assert_eq!(error.errno(), 116, "{path}: {error}");
                        let pages = self.record_pages(partition, selector).await;
                        assert_eq!(pages.unwrap_err().errno(), 116, "{path}");
                    }
                    (expected, result) => panic!("{path}: {expected:?}, {result:?}"),
                }
            }
        }
    }

    /// The lines of a partition, in pages of few records or bytes.
    async fn record_pages(
        &mut self,
        partition: u32,
        asked: Option<MomentSelector>,
    ) -> Result<Vec<u8>, TreeError> {
        let now = || MomentSelector::At(Moment::Sys(Cut::through(self.fixture.engine.frontier())));
        let at = self.fixture.tree.wait_until_closed(asked.unwrap_or_else(now)).await?;
        assert!(asked.is_none_or(|asked| asked == at), "{asked:?}, {at}");
        let (records_max, bytes_max) =
            (1 + self.random(5) as usize, 1 + self.random(2000) as usize);
        let all = RecordSelection::all();
        let lines = RecordRenderer::new(TOPIC, partition, ViewFormat::Jsonl, all).unwrap();
        let (mut text, mut after) = (Vec::new(), None);
        loop {
            let partition = Some(partition);
            let query = RecordsQuery { topic: TOPIC, partition, at, after, records_max, bytes_max };
            let (mut records, begin) = (0, text.len());
            let mut take = |_, record: &_, stamp, left| {
                let line = text.len();
                lines.append_record(record, Some(stamp), &mut text);
                let length = text.len() - line;
                if length > left {
                    text.truncate(line);
                    return None;
                }
                records += 1;
                Some(length)
            };
            let next = self.fixture.tree.records_page(&query, &mut take).await?;
            assert!(records <= records_max, "{records} records on a page of {records_max}");
            let bytes = text.len() - begin;
            assert!(records <= 1 || bytes <= bytes_max, "{bytes} on a page of {bytes_max} bytes");
            let Some(next) = next else { return Ok(text) };
            assert_eq!(next.moment(), at);
            after = Some(next.to_string().parse().unwrap());
        }
    }

    async fn check_slices(&mut self, path: &str, expected: &[u8]) {
        let node = self.fixture.node(path).await.unwrap();
        let open = self.fixture.tree.open(&node).await.unwrap();
        for _ in 0..4 {
            let at = self.random(expected.len() as u64 + 10) as usize;
            let length = self.random(6000) as usize;
            let (from, to) = (at.min(expected.len()), (at + length).min(expected.len()));
            let read = open.read(at as u64, length).await.unwrap();
            assert!(read == expected[from..to], "{path} at {at}, {length} bytes");
        }
        if self.random(3) == 0 && self.opened.len() < 20 {
            let grows = node.is_present();
            let (bytes, path) = (expected.to_vec(), path.to_owned());
            self.opened.push(OpenedNode { open, bytes, path, grows });
        }
    }

    /// `by-key` and the stream of keys equal a plain map.
    async fn check_keys(&mut self, selector: Option<MomentSelector>) {
        let path = match selector {
            None => format!("topics/{TOPIC}/by-key"),
            Some(selector) => format!(".at/{selector}/topics/{TOPIC}/by-key"),
        };
        let Ok(node) = self.fixture.node(&path).await else { return };
        let entries = match list_node(&self.fixture.tree, &node, 2).await {
            Ok(entries) => entries,
            Err(error) => {
                assert_eq!(error.errno(), 116, "{path}: {error}");
                return;
            }
        };
        let expected = self.state(selector).await;
        let names: Vec<&[u8]> = entries.iter().map(|entry| &*entry.name).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected.keys().map(|key| &**key).collect::<Vec<_>>(), "{path}");
        for entry in &entries {
            let value = read_node(&self.fixture.tree, &entry.node, 700).await.unwrap();
            assert!(value == expected[&entry.name], "{path}/{:?}", entry.name);
        }
        assert_eq!(self.fixture.errno(&format!("{path}/nobody")).await, 2);
        let ViewNode::Keys(topic) = node else { panic!("{path} is {node:?}") };
        let (mut text, mut cursor, mut topic) = (Vec::new(), None, topic);
        loop {
            let page = self.fixture.tree.keys_page(&topic, ViewFormat::Values, cursor, 500).await;
            let KeysPage { at, text: lines, next } = page.unwrap();
            text.extend(lines);
            topic.at = Some(at);
            if next.is_none() {
                break;
            }
            cursor = next.map(|next| next.to_string().parse().unwrap());
        }
        let mut lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
        lines.sort_unstable();
        let expected: Vec<Vec<u8>> =
            expected.iter().map(|(key, value)| [&**key, b"\t", &**value, b"\n"].concat()).collect();
        assert!(lines == expected, "{path}: {} and {}", lines.len(), expected.len());
    }

    /// The newest value of each key, from the lines of every partition.
    async fn state(&self, selector: Option<MomentSelector>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut state: BTreeMap<Vec<u8>, RankedValue> = BTreeMap::new();
        for partition in 0..PARTITIONS {
            let lines = render_expected(
                &self.fixture.engine,
                TOPIC,
                partition,
                ViewFormat::Jsonl,
                selector,
            )
            .await
            .unwrap();
            let topic = self.fixture.engine.topics().named(TOPIC).unwrap();
            let log = &topic.partitions[partition as usize].log;
            for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let read = fileview::RecordLine::parse(line).unwrap();
                let line: serde_json::Value = serde_json::from_slice(line).unwrap();
                let offset = line["offset"].as_u64().unwrap();
                let entry = log.entry_at(engine::Offset(offset)).unwrap().unwrap();
                let rank = (entry.stamp, offset);
                let newest = state.entry(read.key.unwrap().to_vec()).or_insert((rank, None));
                if rank >= newest.0 {
                    *newest = (rank, read.value.map(|value| value.to_vec()));
                }
            }
        }
        state.into_iter().filter_map(|(key, (_, value))| Some((key, value?))).collect()
    }
}

fn run(policy: &str, steps: &[TreeStep]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut world = TreeWorld::new(policy).await;
        for step in steps {
            world = world.act(step).await;
        }
        world.check().await;
    });
}

/// Each case runs a server from its start to its end. A few cases run, unless more are requested.
fn config() -> ProptestConfig {
    let is_set = std::env::var_os("PROPTEST_CASES").is_some();
    let default = ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::default() };
    if is_set { default } else { ProptestConfig { cases: 6, ..default } }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_tree_shows_what_is_stored(
        steps in steps(),
        policy in prop::sample::select(&["delete", "compact", "compact,delete"]),
    ) {
        run(policy, &steps);
    }
}
