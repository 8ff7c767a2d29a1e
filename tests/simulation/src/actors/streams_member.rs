//! A thread of an application with the streams protocol: it joins with its topology, does as it is
//! told, leaves, and is sometimes silent for too long, or gone without a word.

use std::collections::BTreeSet;
use std::rc::Rc;

use testkit::rng::SeededRng;
use testkit::streams::{
    TestStreamsAnswer, TestStreamsHeartbeat, TestSubtopology, TestTasks, TestTopology,
};
use tokio::time::Instant;
use uuid::Uuid;

use super::pause;
use crate::facts::{FIRST_THREAD, OwnedPartitions, SimFact};
use crate::node::GROUP_SESSION_TIMEOUT;
use crate::wire::SimClient;
use crate::world::SimWorld;

/// Kafka's codes for a member that must join again: unknown, no such group, fenced.
const FENCED_CODES: [i16; 3] = [25, 69, 110];

pub(crate) struct StreamsMember {
    world: Rc<SimWorld>,
    client: SimClient,
    rng: SeededRng,
    nth: usize,
    name: String,
    /// The number of its starts.
    starts: u32,
    epoch: i32,
    tasks: TestTasks,
    /// The send time of the last heartbeat that was answered.
    answered: Instant,
    says_all: bool,
}

impl StreamsMember {
    pub(crate) fn new(world: &Rc<SimWorld>, nth: usize, mut rng: SeededRng) -> StreamsMember {
        StreamsMember {
            world: Rc::clone(world),
            client: SimClient::new(world, rng.fork()),
            rng,
            nth,
            name: format!("thread{nth}"),
            starts: 0,
            epoch: 0,
            tasks: TestTasks::new(),
            answered: Instant::now(),
            says_all: true,
        }
    }

    pub(crate) async fn run(mut self) {
        while !self.world.is_over() {
            // Some are silent for longer than they may be.
            let most_ms = if self.rng.one_in(25) { 5000 } else { 300 };
            pause(&mut self.rng, 20, most_ms).await;
            if self.answered.elapsed() >= GROUP_SESSION_TIMEOUT {
                self.forget("its session has ended");
            }
            if self.rng.one_in(40) {
                self.forget("it starts again");
                self.starts += 1;
            } else if self.rng.one_in(40) {
                self.leave().await;
            } else {
                self.heartbeat().await;
            }
        }
    }

    fn request(&self) -> TestStreamsHeartbeat {
        let part = |source: &str| TestSubtopology {
            source: Some(source.to_owned()),
            ..TestSubtopology::default()
        };
        let joins = self.epoch == 0;
        TestStreamsHeartbeat {
            group: "streams".to_owned(),
            member: format!("{}-{}", self.name, self.starts),
            epoch: self.epoch,
            topology: joins.then(|| TestTopology(vec![part("plain"), part("short")])),
            owned: (joins || self.says_all).then(|| self.tasks.clone()),
        }
    }

    async fn heartbeat(&mut self) {
        let sent = Instant::now();
        match self.call(&self.request()).await {
            Ok(answer) => self.hear(sent, answer),
            // The server may have heard it.
            Err(_) => self.says_all = true,
        }
    }

    async fn call(&mut self, request: &TestStreamsHeartbeat) -> std::io::Result<TestStreamsAnswer> {
        self.client.send(&request.frame()).await?;
        Ok(TestStreamsAnswer::parse(self.client.receive_frame().await?))
    }

    fn hear(&mut self, sent: Instant, answer: TestStreamsAnswer) {
        if FENCED_CODES.contains(&answer.error) {
            self.forget("it is fenced");
            return;
        }
        if answer.error != 0 {
            self.says_all = true;
            return;
        }
        (self.answered, self.epoch, self.says_all) = (sent, answer.epoch, false);
        if let Some(tasks) = answer.active {
            // It gives up, and says so with its next heartbeat.
            self.says_all = tasks != self.tasks;
            self.tasks = tasks;
            let count: usize = self.tasks.iter().map(|(_, indexes)| indexes.len()).sum();
            self.world.note(&self.name, &format!("has {count} tasks in epoch {}", self.epoch));
        }
        self.report();
    }

    async fn leave(&mut self) {
        let request =
            TestStreamsHeartbeat { epoch: -1, topology: None, owned: None, ..self.request() };
        self.forget("it leaves");
        // It may be heard or not: what it had is nobody's until its session ends.
        let _ = self.call(&request).await;
    }

    fn forget(&mut self, why: &str) {
        if self.epoch != 0 {
            self.world.note(&self.name, why);
        }
        (self.epoch, self.says_all) = (0, true);
        self.tasks.clear();
        self.answered = Instant::now();
        self.report();
    }

    fn report(&self) {
        // A task is a partition of its subtopology.
        let each = |(id, indexes): &(String, Vec<i32>)| {
            let subtopology = Uuid::from_u128(id.parse().expect("a number"));
            indexes.iter().map(|index| (subtopology, *index)).collect::<Vec<_>>()
        };
        let partitions: BTreeSet<(Uuid, i32)> = self.tasks.iter().flat_map(each).collect();
        self.world.report(&SimFact::Owned(OwnedPartitions {
            member: FIRST_THREAD + self.nth,
            partitions,
            now: Instant::now(),
            until: self.answered + GROUP_SESSION_TIMEOUT,
        }));
    }
}
