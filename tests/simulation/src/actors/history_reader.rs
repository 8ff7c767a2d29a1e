//! A reader of files in the past: at moments of the wall clock, at moments that it has read before,
//! and just before and just after a change.

use std::rc::Rc;

use hlc::{Cut, Hlc, SysTime};
use testkit::rng::SeededRng;

use super::file_writer::snapshot_or_fail;
use super::pause;
use crate::clock::START_MS;
use crate::facts::SimFact;
use crate::model_tree::first_difference;
use crate::world::SimWorld;

const WHO: &str = "history_reader";

pub(crate) async fn run(world: Rc<SimWorld>, mut rng: SeededRng) {
    let mut known = Vec::new();
    while !world.is_over() {
        pause(&mut rng, 60, 400).await;
        let Some(engine) = world.engine() else { continue };
        // The file writer reads first what a crash has left.
        if world.ledger.borrow().files_incarnation != Some(world.incarnation.get()) {
            continue;
        }
        let frontier = engine.frontier();
        let bound = random_bound(&world, &mut rng, &known, frontier);
        if bound > frontier.next() {
            continue;
        }
        let cut = Cut::below(bound);
        let Some(sight) = snapshot_or_fail(&world, WHO, engine.files(), cut) else { continue };
        world.note(WHO, &format!("at {bound}: {} names", sight.len()));
        known.push(bound);
        world.report(&SimFact::Files { at: Some(bound), snapshot: sight.clone() });
        let files = &mut world.ledger.borrow_mut().files;
        let is_seen = |tree: &crate::model_tree::ModelTree| {
            first_difference(&tree.snapshot(), &sight).is_none()
        };
        let fits: Vec<usize> = files
            .within(bound)
            .filter(|(_, version)| is_seen(&version.tree))
            .map(|(nth, _)| nth)
            .collect();
        // If several match, nothing is learned.
        if let [one] = fits[..] {
            files.narrow_stamps(one, bound);
        }
    }
}

fn random_bound(world: &SimWorld, rng: &mut SeededRng, known: &[Hlc], frontier: Hlc) -> Hlc {
    match rng.below(8) {
        0..3 => Hlc::at(SysTime(world.clock.wall_ms() - rng.below(5000))),
        3 => frontier.next(),
        4 if !known.is_empty() => *rng.pick(known),
        _ => {
            let ledger = world.ledger.borrow();
            let stamp = ledger
                .files
                .nth_newest(rng.below(120) as usize)
                .stamp_at_most
                .max(Hlc::at(SysTime(START_MS)));
            if rng.one_in(2) { stamp } else { stamp.next() }
        }
    }
}
