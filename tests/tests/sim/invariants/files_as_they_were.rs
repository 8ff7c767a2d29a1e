//! Files with overwrites: names, attributes and every byte are, now and as of any moment, what the changes
//! up to there make of them. A change is in a moment or it is not, whole, and that is so for ever.

use super::{Invariant, Verdict};
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};
use crate::tree::difference;

pub(super) struct FilesAsTheyWere;

impl Invariant for FilesAsTheyWere {
    fn name(&self) -> &'static str {
        "files_as_they_were"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, ledger: &Ledger) -> Verdict {
        let Fact::Files { at, sight } = fact else { return Ok(()) };
        let mut odd = String::new();
        let candidates: Vec<_> = match at {
            None => vec![ledger.files.last()],
            Some(bound) => ledger.files.within(*bound).map(|(_, version)| version).collect(),
        };
        for version in &candidates {
            match difference(&version.tree.sight(), sight) {
                None => return Ok(()),
                Some(why) => odd = why,
            }
        }
        let count = candidates.len();
        Err(format!("of {count} that files may be in the cut at {at:?} they are none: {odd}"))
    }
}
