//! A consumer of the present: what it has read must not disappear.

use std::rc::Rc;

use testkit::rng::SeededRng;

use super::requests::fetch_from;
use super::{pause, random_partition};
use crate::facts::SimFact;
use crate::wire::SimClient;
use crate::world::SimWorld;

pub(crate) async fn run(world: Rc<SimWorld>, mut rng: SeededRng) {
    let mut client = SimClient::new(&world, rng.fork());
    while !world.is_over() {
        pause(&mut rng, 5, 100).await;
        let (topic, partition) = random_partition(&mut rng);
        // The end first, then a little before it.
        let Ok(Ok(end)) = fetch_from(&mut client, topic, partition, 0).await else { continue };
        if end.code != 0 && !end.is_before_start(0) {
            continue;
        }
        let from = end.end.saturating_sub(rng.between(0, 12)).max(end.start);
        let fetched = match fetch_from(&mut client, topic, partition, from).await {
            Ok(Ok(fetched)) => fetched,
            Ok(Err(why)) => {
                world.fail("consumer", &why);
                return;
            }
            Err(_) => continue,
        };
        let (count, code) = (fetched.records.len(), fetched.code);
        world.note("consumer", &format!("{topic}/{partition} from {from}: {count}, code {code}"));
        let mut batches: Vec<u64> = fetched.records.iter().map(|record| record.batch).collect();
        batches.dedup();
        for batch in batches {
            world.report(&SimFact::Consumed { batch });
        }
    }
}
