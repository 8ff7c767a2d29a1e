//! What POSIX allows is done with files, and what it forbids is refused.

use super::{Invariant, Verdict};
use crate::facts::Fact;
use crate::ledger::{Ledger, Step};

pub(super) struct FilesKeepTheRules;

impl Invariant for FilesKeepTheRules {
    fn name(&self) -> &'static str {
        "files_keep_the_rules"
    }

    fn on_fact(&mut self, fact: &Fact, _step: Step, _ledger: &Ledger) -> Verdict {
        match fact {
            Fact::FilesAnswered { change, should_be: true, refused: Some(why) } => {
                Err(format!("{change} was refused: {why}"))
            }
            Fact::FilesAnswered { change, should_be: false, refused: None } => {
                Err(format!("{change} was done"))
            }
            _ => Ok(()),
        }
    }
}
