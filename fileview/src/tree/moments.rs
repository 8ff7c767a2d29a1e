//! From a moment in a name to one that is absolute, and past.

use std::collections::{HashMap, VecDeque};

use engine::When;
use hlc::{Ask, Cut, Moment};
use parking_lot::Mutex;

use super::{Tree, TreeError};

/// How many moments of user time are remembered.
const KNOWN_MAX: usize = 4096;

/// Moments of user time that did not say as known when, and what they were first answered with: asked
/// again, they get the same.
#[derive(Default)]
pub(crate) struct Known(Mutex<(HashMap<Ask, Cut>, VecDeque<Ask>)>);

impl Known {
    fn of(&self, ask: Ask, frontier: impl FnOnce() -> Cut) -> Cut {
        let mut state = self.0.lock();
        let (known, order) = &mut *state;
        if let Some(cut) = known.get(&ask) {
            return *cut;
        }
        if order.len() == KNOWN_MAX
            && let Some(oldest) = order.pop_front()
        {
            known.remove(&oldest);
        }
        let cut = frontier();
        known.insert(ask, cut);
        order.push_back(ask);
        cut
    }
}

/// The cut of system time that bounds a moment which has been settled.
pub(crate) fn bound(ask: &Ask) -> Cut {
    match ask {
        Ask::At(moment) | Ask::Window(_, moment) => match moment {
            Moment::Sys(cut) => *cut,
            Moment::User { known, .. } => known.unwrap_or(Cut::ALL),
        },
    }
}

impl Tree {
    /// Waits until nothing can enter a moment any more, and makes it absolute.
    pub(crate) async fn settle(&self, ask: Ask) -> Result<Ask, TreeError> {
        let named = match ask {
            Ask::At(Moment::Sys(cut)) | Ask::Window(_, Moment::Sys(cut)) => Some(cut),
            Ask::At(Moment::User { known, .. }) => known,
            // A window is seen as known at one moment: the later of those that its ends name.
            Ask::Window(Moment::User { known: first, .. }, Moment::User { known, .. }) => {
                first.max(known)
            }
            Ask::Window(Moment::Sys(_), Moment::User { known, .. }) => known,
        };
        let cut =
            named.unwrap_or_else(|| self.known.of(ask, || Cut::through(self.engine.frontier())));
        let (cut, _) = self.engine.settle(cut, When::Wait(self.options.patience)).await?;
        let settled = |moment| match moment {
            Moment::User { before, .. } => Moment::User { before, known: Some(cut) },
            sys @ Moment::Sys(_) => sys,
        };
        Ok(match ask {
            Ask::At(moment) => Ask::At(settled(moment)),
            Ask::Window(first, second) => Ask::Window(settled(first), settled(second)),
        })
    }
}
