//! Turns at long work on the past, so that it leaves cores to those who produce and fetch.
//!
//! As many answers are made at a time as half of the cores. The others wait, and principals take turns: one with
//! many requests delays another by one answer at most. A request takes its turn after it has waited for its moment.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::available_parallelism;

use admission::{Budget, BudgetGrant, BudgetKind, BudgetRegistry, BudgetSpec, Holder};
use parking_lot::Mutex;
use tokio::sync::oneshot;

const TURNS: BudgetSpec = BudgetSpec {
    name: "history-turns",
    unit: "answers about the past at a time",
    setting: None,
    kind: BudgetKind::Yielding,
};

pub(crate) struct HistoryTurns {
    budget: Arc<Budget>,
    queue: Mutex<TurnQueue>,
}

struct TurnQueue {
    /// While there is one, nobody waits.
    free: u64,
    /// In the order of their turns.
    waiting: VecDeque<WaitingHolder>,
}

struct WaitingHolder {
    holder: Holder,
    requests: VecDeque<oneshot::Sender<HistoryTurn>>,
}

/// A turn, until it is dropped.
pub(crate) struct HistoryTurn {
    turns: Arc<HistoryTurns>,
    /// `None` if nobody took it.
    grant: Option<BudgetGrant>,
}

impl HistoryTurns {
    /// Lists its budget in `budgets`.
    pub(crate) fn new(budgets: &BudgetRegistry) -> Arc<HistoryTurns> {
        let cores = available_parallelism().map_or(1, usize::from);
        let turns = HistoryTurns::with((cores / 2).max(1) as u64);
        budgets.register(Arc::<Budget>::clone(&turns.budget));
        turns
    }

    fn with(turns_max: u64) -> Arc<HistoryTurns> {
        let queue = TurnQueue { free: turns_max, waiting: VecDeque::new() };
        Arc::new(HistoryTurns { budget: Budget::new(TURNS, turns_max), queue: Mutex::new(queue) })
    }

    /// Waits for a turn.
    pub(crate) async fn take(self: &Arc<HistoryTurns>, holder: Holder) -> HistoryTurn {
        let waiting = {
            let mut queue = self.queue.lock();
            if queue.free > 0 {
                queue.free -= 1;
                return self.begin(&holder);
            }
            queue.push(holder)
        };
        waiting.await.expect("a request that waits gets its turn")
    }

    fn begin(self: &Arc<HistoryTurns>, holder: &Holder) -> HistoryTurn {
        let grant = Some(self.budget.take_always(holder, 1));
        HistoryTurn { turns: Arc::clone(self), grant }
    }

    /// Gives a turn that has ended to the next that waits.
    fn pass_on(self: &Arc<HistoryTurns>) {
        loop {
            let next = {
                let mut queue = self.queue.lock();
                let next = queue.pop();
                if next.is_none() {
                    queue.free += 1;
                }
                next
            };
            let Some((holder, request)) = next else { return };
            let Err(mut turn) = request.send(self.begin(&holder)) else { return };
            // The client has gone.
            turn.grant = None;
        }
    }
}

impl TurnQueue {
    fn push(&mut self, holder: Holder) -> oneshot::Receiver<HistoryTurn> {
        let (request, waiting) = oneshot::channel();
        match self.waiting.iter_mut().find(|waiting| waiting.holder == holder) {
            Some(waiting) => waiting.requests.push_back(request),
            None => {
                self.waiting.push_back(WaitingHolder { holder, requests: [request].into() });
            }
        }
        waiting
    }

    /// The next request. Its holder's others come after a request of each other holder.
    fn pop(&mut self) -> Option<(Holder, oneshot::Sender<HistoryTurn>)> {
        let mut first = self.waiting.pop_front()?;
        let request = first.requests.pop_front()?;
        let holder = first.holder.clone();
        if !first.requests.is_empty() {
            self.waiting.push_back(first);
        }
        Some((holder, request))
    }
}

impl Drop for HistoryTurn {
    fn drop(&mut self) {
        if self.grant.take().is_some() {
            self.turns.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn user(name: &str) -> Holder {
        Holder::principal(name, false)
    }

    /// Whether a turn has come.
    fn poll<F: Future<Output = HistoryTurn>>(waiting: &mut Pin<Box<F>>) -> Option<HistoryTurn> {
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_user_with_many_requests_delays_another_by_one() {
        let turns = HistoryTurns::with(1);
        let wait = |name| Box::pin(turns.take(user(name)));
        let first = poll(&mut wait("User:b")).expect("nobody waits");
        let mut of_b: Vec<_> = (0..4).map(|_| wait("User:b")).collect();
        let mut of_a = wait("User:a");
        assert!(of_b.iter_mut().all(|waiting| poll(waiting).is_none()));
        assert!(poll(&mut of_a).is_none());
        drop(first);
        assert!(poll(&mut of_a).is_none());
        drop(poll(&mut of_b[0]).expect("it was first"));
        drop(poll(&mut of_a).expect("the other user is next"));
        // A client that goes away leaves its turn to the next.
        drop(of_b.remove(1));
        drop(poll(&mut of_b[1]).expect("its turn"));
        drop(poll(&mut of_b[2]).expect("its turn"));
        assert_eq!(turns.budget.used(), 0);
        assert!(poll(&mut wait("User:a")).is_some());
    }
}
