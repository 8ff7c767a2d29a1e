//! The world behind the doors: an engine in memory, and its servers, renewed now and then so that
//! no input meets what a million others have left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bearer_tokens::{KeySource, TokenOptions, TokenValidator};
use compat_kafka::{
    KafkaFormat, KafkaListener, KafkaOptions, KafkaServer, SaslMechanism, SaslOptions,
};
use compat_zk::{ZkOptions, ZkServer};
use engine::security::ScramMechanism;
use engine::{CoreOptions, Engine, EngineOptions};
use fileview::tree::{TreeOptions, ViewTree};
use hlc::{ManualClock, SysTime};
use parking_lot::Mutex;
use storage::disk::MemoryDisk;
use testkit::tokens::{TokenIssuer, key_set};
use tokio::runtime::{Builder, Runtime};

/// The most inputs of one world.
const INPUTS_MAX: usize = 20_000;
/// The time limit of an input. Nothing behind the doors waits for longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// The wall clock, which stands still.
pub(crate) const NOW: SysTime = SysTime(1_795_252_948_000);
/// The audience of the tokens that users of the world log in with.
pub(crate) const AUDIENCE: &str = "frames";

pub(crate) struct World {
    pub(crate) runtime: Runtime,
    pub(crate) engine: Arc<Engine>,
    pub(crate) kafka: Arc<KafkaServer>,
    pub(crate) zookeeper: Arc<ZkServer>,
    pub(crate) tree: ViewTree,
    pub(crate) open: Arc<KafkaListener>,
    pub(crate) with_login: Arc<KafkaListener>,
    pub(crate) issuer: TokenIssuer,
    pub(crate) tokens: Arc<TokenValidator>,
    inputs: usize,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// Does something with the world.
pub(crate) fn with_world(act: impl FnOnce(&World)) {
    let mut slot = WORLD.lock();
    if slot.as_ref().is_some_and(|world| world.inputs >= INPUTS_MAX) {
        slot.take().expect("it is there").end();
    }
    let world = slot.get_or_insert_with(World::new);
    world.inputs += 1;
    act(world);
}

impl World {
    fn new() -> World {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let guard = runtime.enter();
        let short = Duration::from_millis(1);
        let core = CoreOptions {
            storage: storage::Options { tail_bytes_max: 8 << 20, ..storage::Options::default() },
            topics_max: 40,
            all_partitions_max: 200,
            ..CoreOptions::default()
        };
        let options = KafkaOptions {
            moment_patience: short,
            muted_look_interval: short,
            ..KafkaOptions::default()
        };
        let format = KafkaFormat { decompressed_bytes_max: 1 << 20 };
        let engine = Engine::open(
            Arc::new(MemoryDisk::new()),
            EngineOptions { core, ..EngineOptions::default() },
            Arc::new(ManualClock::at(NOW)),
            Arc::new(format),
        );
        let engine = Arc::new(engine.unwrap());
        let tree = TreeOptions { patience: short, ..TreeOptions::default() };
        let tree = ViewTree::new(Arc::clone(&engine), tree);
        let kafka = KafkaServer::with_tree(Arc::clone(&engine), options, &tree).unwrap();
        let zookeeper = ZkOptions { moment_patience: short, ..ZkOptions::default() };
        let zookeeper = ZkServer::new(Arc::clone(engine.znodes()), zookeeper);
        let issuer = TokenIssuer::new("key");
        let tokens = Arc::new(validator(&issuer));
        let topic = engine.topics().create("t", 2, Default::default(), [7; 16], false);
        runtime.block_on(topic).unwrap();
        drop(guard);
        let sasl = SaslOptions {
            mechanisms: BTreeSet::from([
                SaslMechanism::Plain,
                SaslMechanism::Scram(ScramMechanism::Sha256),
                SaslMechanism::Scram(ScramMechanism::Sha512),
                SaslMechanism::OauthBearer,
            ]),
            failure_delay: Duration::ZERO,
            tokens: Some(Arc::clone(&tokens)),
            ..SaslOptions::default()
        };
        let with_login = Arc::new(KafkaListener { sasl: Some(sasl), ..KafkaListener::plain() });
        let open = Arc::new(KafkaListener::plain());
        World {
            runtime,
            engine,
            kafka,
            zookeeper,
            tree,
            open,
            with_login,
            issuer,
            tokens,
            inputs: 0,
        }
    }

    fn end(self) {
        self.kafka.close();
        self.engine.close();
        self.runtime.shutdown_background();
    }
}

/// Checks the tokens of one issuer.
fn validator(issuer: &TokenIssuer) -> TokenValidator {
    let path = std::env::temp_dir().join(format!("freezeframe-fuzz-keys-{}", std::process::id()));
    std::fs::write(&path, key_set(&[issuer])).unwrap();
    TokenValidator::new(TokenOptions {
        keys: KeySource::File(path),
        trust: None,
        refresh: Duration::from_secs(3600),
        retry: (Duration::from_secs(1), Duration::from_secs(10)),
        audiences: BTreeSet::from([AUDIENCE.to_owned()]),
        issuer: None,
        clock_skew: Duration::ZERO,
        subject_claim: "sub".to_owned(),
    })
}
