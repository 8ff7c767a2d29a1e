//! Runs one world: its actors side by side, until its time is up or something does not hold.

use std::rc::Rc;

use testkit::rng::SeededRng;
use tokio::task::LocalSet;

use crate::SimReport;
use crate::actors::{self, SimAdmin};
use crate::node::{WorldShape, seed_ids};
use crate::world::SimWorld;

/// Runs the world of `seed`. An error is what did not hold, with the last events.
pub(crate) fn run(seed: u64, prints: bool) -> Result<SimReport, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads can be made");
    seed_ids(seed);
    let everything = async {
        let world = Rc::new(SimWorld::new(WorldShape::of(seed), prints));
        run_to_end(&world, seed).await;
        world.report_end()
    };
    LocalSet::new().block_on(&runtime, everything)
}

async fn run_to_end(world: &Rc<SimWorld>, seed: u64) {
    tokio::select! {
        () = run_actors(world, seed) => {}
        () = world.node_panicked.notified() => {
            world.fail("the node", "the work of its threads panicked");
        }
    }
}

async fn run_actors(world: &Rc<SimWorld>, seed: u64) {
    let mut rng = SeededRng::new(seed);
    let mut admin = SimAdmin::new(world, rng.fork());
    admin.begin().await;
    let actors = actors::spawn_all(world, &mut rng);
    admin.run().await;
    for actor in actors {
        if let Err(error) = actor.await {
            world.fail("an actor", &error.to_string());
        }
    }
    admin.end().await;
}
