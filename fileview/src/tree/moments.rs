//! Resolution of a moment in a name to one that is absolute and final.

use std::collections::{HashMap, VecDeque};

use engine::WaitPolicy;
use hlc::{Cut, Moment, MomentSelector};
use parking_lot::Mutex;

use super::{TreeError, ViewTree};

/// The most user-time moments that are remembered.
const CUTS_MAX: usize = 4096;

/// User-time moments that did not say as of when they are known, with the cut of the first answer.
/// Later requests get the same cut.
#[derive(Default)]
pub(crate) struct UserTimeCuts(Mutex<(HashMap<MomentSelector, Cut>, VecDeque<MomentSelector>)>);

impl UserTimeCuts {
    fn get_or_insert(&self, selector: MomentSelector, frontier: impl FnOnce() -> Cut) -> Cut {
        let mut state = self.0.lock();
        let (cuts, order) = &mut *state;
        if let Some(cut) = cuts.get(&selector) {
            return *cut;
        }
        if order.len() == CUTS_MAX
            && let Some(oldest) = order.pop_front()
        {
            cuts.remove(&oldest);
        }
        let cut = frontier();
        cuts.insert(selector, cut);
        order.push_back(selector);
        cut
    }
}

/// The cut of system time that bounds a resolved moment.
pub(crate) fn system_cut(selector: &MomentSelector) -> Cut {
    match selector {
        MomentSelector::At(moment) | MomentSelector::Window(_, moment) => match moment {
            Moment::Sys(cut) => *cut,
            Moment::User { known, .. } => known.unwrap_or(Cut::ALL),
        },
    }
}

impl ViewTree {
    /// Waits until a moment is final, and makes it absolute.
    ///
    /// # Errors
    /// [`TreeError::NotYet`] after the patience of the tree's options, or
    /// [`TreeError::FarFuture`].
    pub async fn wait_until_closed(
        &self,
        selector: MomentSelector,
    ) -> Result<MomentSelector, TreeError> {
        let cut = match selector {
            MomentSelector::At(Moment::Sys(cut)) | MomentSelector::Window(_, Moment::Sys(cut)) => {
                Some(cut)
            }
            MomentSelector::At(Moment::User { .. })
            | MomentSelector::Window(_, Moment::User { .. }) => selector.known(),
        };
        let cut = cut.unwrap_or_else(|| {
            self.user_time_cuts.get_or_insert(selector, || Cut::through(self.engine.frontier()))
        });
        let (cut, _) =
            self.engine.wait_until_closed(cut, WaitPolicy::Wait(self.options.patience)).await?;
        Ok(selector.known_as_of(cut))
    }
}
