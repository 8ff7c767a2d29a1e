//! A reader of files as they were: at moments of the wall clock, at moments that it has asked for before,
//! and just in front of a change and just behind it.

use std::rc::Rc;

use hlc::{Cut, Hlc, SysTime};

use super::pause;
use super::scribe::sight_or_fail;
use crate::chance::Chance;
use crate::clock::START_MS;
use crate::facts::Fact;
use crate::tree::difference;
use crate::world::World;

const WHO: &str = "antiquary";

pub(crate) async fn run(world: Rc<World>, mut chance: Chance) {
    let mut known = Vec::new();
    while !world.is_over() {
        pause(&mut chance, 60, 400).await;
        let Some(engine) = world.engine() else { continue };
        // What a death has left is seen by the scribe first.
        if world.ledger.borrow().files_life != Some(world.deaths.get()) {
            continue;
        }
        let frontier = engine.frontier();
        let bound = some_bound(&world, &mut chance, &known, frontier);
        if bound > frontier.next() {
            continue;
        }
        let cut = Cut::below(bound);
        let Some(sight) = sight_or_fail(&world, WHO, engine.files(), cut) else { continue };
        world.note(WHO, &format!("at {bound}: {} names", sight.len()));
        known.push(bound);
        world.tell(&Fact::Files { at: Some(bound), sight: sight.clone() });
        let files = &mut world.ledger.borrow_mut().files;
        let is_seen = |tree: &crate::tree::Tree| difference(&tree.sight(), &sight).is_none();
        let fits: Vec<usize> = files
            .within(bound)
            .filter(|(_, version)| is_seen(&version.tree))
            .map(|(nth, _)| nth)
            .collect();
        // Of two that look alike nothing is learned.
        if let [one] = fits[..] {
            files.saw(one, bound);
        }
    }
}

fn some_bound(world: &World, chance: &mut Chance, known: &[Hlc], frontier: Hlc) -> Hlc {
    match chance.below(8) {
        0..3 => Hlc::at(SysTime(world.clock.wall_ms() - chance.below(5000))),
        3 => frontier.next(),
        4 if !known.is_empty() => *chance.pick(known),
        _ => {
            let ledger = world.ledger.borrow();
            let stamp =
                ledger.files.back(chance.below(120) as usize).by.max(Hlc::at(SysTime(START_MS)));
            if chance.one_in(2) { stamp } else { stamp.next() }
        }
    }
}
