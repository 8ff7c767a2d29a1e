//! A budget whose holders wait for room, in turns.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::budget::Budget;
use crate::holder::Holder;

/// The most turns that are looked at when room becomes free, so that freeing it costs the same
/// however many wait. The others are next when more becomes free.
const TURNS_AT_ONCE: usize = 32;

/// Waits for room in a budget.
///
/// Holders take turns, and each holder's requests are admitted in their order. A request of a
/// holder that has nothing is not overtaken once its turn comes, so that others cannot keep it
/// waiting with many small ones.
#[derive(Debug)]
pub struct BudgetQueue {
    budget: Arc<Budget>,
    /// The next turn is in front.
    turns: Mutex<VecDeque<HolderTurn>>,
}

/// The requests of a holder that wait: there is at least one.
#[derive(Debug)]
struct HolderTurn {
    holder: Holder,
    waiting: VecDeque<WaitingRequest>,
}

#[derive(Debug)]
struct WaitingRequest {
    amount: u64,
    admitted: oneshot::Sender<QueueGrant>,
}

/// A part of the budget of a [`BudgetQueue`], until it is dropped.
#[derive(Debug)]
pub struct QueueGrant {
    queue: Arc<BudgetQueue>,
    holder: Holder,
    amount: u64,
}

impl BudgetQueue {
    pub fn new(budget: Arc<Budget>) -> Arc<BudgetQueue> {
        Arc::new(BudgetQueue { budget, turns: Mutex::default() })
    }

    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Waits until there is room for `amount`. More than half of the limit counts as half.
    pub async fn take(self: &Arc<BudgetQueue>, holder: &Holder, amount: u64) -> QueueGrant {
        let amount = amount.min(self.budget.limit() / 2).max(1);
        let receiver = {
            let mut turns = self.turns.lock();
            if turns.is_empty() && self.budget.charge_if_room(holder, amount) {
                return self.grant(holder, amount);
            }
            let (admitted, receiver) = oneshot::channel();
            enqueue(&mut turns, holder, WaitingRequest { amount, admitted });
            let abandoned = self.admit(&mut turns);
            drop(turns);
            drop(abandoned);
            receiver
        };
        receiver.await.expect("a request that waits is admitted")
    }

    fn grant(self: &Arc<BudgetQueue>, holder: &Holder, amount: u64) -> QueueGrant {
        QueueGrant { queue: Arc::clone(self), holder: holder.clone(), amount }
    }

    /// Admits the requests for which there is room, and drops those that were given up. Returns
    /// grants whose requests were given up meanwhile: to be dropped once the turns are not locked
    /// any more.
    fn admit(self: &Arc<BudgetQueue>, turns: &mut VecDeque<HolderTurn>) -> Vec<QueueGrant> {
        let (mut abandoned, mut passed) = (Vec::new(), 0);
        while passed < turns.len().min(TURNS_AT_ONCE) {
            let mut turn = turns.pop_front().expect("there is a turn");
            while turn.waiting.front().is_some_and(|request| request.admitted.is_closed()) {
                turn.waiting.pop_front();
            }
            let Some(amount) = turn.waiting.front().map(|request| request.amount) else { continue };
            if self.budget.charge_if_room(&turn.holder, amount) {
                passed = 0;
                let request = turn.waiting.pop_front().expect("a request waits");
                let grant = self.grant(&turn.holder, amount);
                abandoned.extend(request.admitted.send(grant).err());
                if !turn.waiting.is_empty() {
                    turns.push_back(turn);
                }
            } else if self.budget.held(&turn.holder) == 0 {
                turns.push_front(turn);
                break;
            } else {
                passed += 1;
                turns.push_back(turn);
            }
        }
        abandoned
    }
}

fn enqueue(turns: &mut VecDeque<HolderTurn>, holder: &Holder, request: WaitingRequest) {
    match turns.iter_mut().find(|turn| turn.holder == *holder) {
        Some(turn) => turn.waiting.push_back(request),
        None => turns
            .push_back(HolderTurn { holder: holder.clone(), waiting: VecDeque::from([request]) }),
    }
}

impl Drop for QueueGrant {
    fn drop(&mut self) {
        let mut turns = self.queue.turns.lock();
        self.queue.budget.release(&self.holder, self.amount);
        let abandoned = self.queue.admit(&mut turns);
        drop(turns);
        drop(abandoned);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::budget::{BudgetKind, BudgetSpec};

    fn queue(limit: u64) -> Arc<BudgetQueue> {
        let (name, unit) = ("flight", "bytes");
        let spec = BudgetSpec { name, unit, setting: None, kind: BudgetKind::Kept };
        BudgetQueue::new(Budget::new(spec, limit))
    }

    fn user(name: &str) -> Holder {
        Holder::principal(name, false)
    }

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_flood_waits_for_itself_and_others_go_on() {
        let (queue, flood, small) = (queue(100), user("b"), user("a"));
        let mut grants = Vec::new();
        let mut waiting = loop {
            let mut next = Box::pin(queue.take(&flood, 5));
            match poll(next.as_mut()) {
                Some(grant) => grants.push(grant),
                None => break next,
            }
        };
        assert_eq!(queue.budget().held(&flood), 70);
        let grant = poll(pin!(queue.take(&small, 5))).expect("there is room for another one");
        assert!(poll(waiting.as_mut()).is_none());
        drop(grant);
        grants.pop();
        assert!(poll(waiting.as_mut()).is_some(), "room for the flood again");
        drop((grants, waiting));
        assert_eq!(queue.budget().used(), 0);
    }

    #[test]
    fn a_large_request_is_not_overtaken_by_small_ones() {
        let (queue, writer) = (queue(100), user("a"));
        let mut grants: Vec<_> =
            (0..30).filter_map(|nth| poll(pin!(queue.take(&user(&nth.to_string()), 3)))).collect();
        let mut large = Box::pin(queue.take(&writer, 50));
        assert!(poll(large.as_mut()).is_none());
        while let Some(grant) = grants.pop() {
            let small = grant.holder.clone();
            drop(grant);
            let mut waiting = Box::pin(queue.take(&small, 3));
            if let Some(grant) = poll(large.as_mut()) {
                assert_eq!(grant.amount, 50);
                return;
            }
            assert!(poll(waiting.as_mut()).is_none(), "the large one is first");
        }
        panic!("the large one waits for nothing");
    }

    #[test]
    fn a_user_with_many_requests_delays_another_by_one() {
        let queue = queue(1);
        let wait = |name| {
            Box::pin({
                let (queue, holder) = (Arc::clone(&queue), user(name));
                async move { queue.take(&holder, 1).await }
            })
        };
        let first = poll(wait("User:b").as_mut()).expect("nobody waits");
        let mut of_b: Vec<_> = (0..4).map(|_| wait("User:b")).collect();
        let mut of_a = wait("User:a");
        assert!(of_b.iter_mut().all(|waiting| poll(waiting.as_mut()).is_none()));
        assert!(poll(of_a.as_mut()).is_none());
        drop(first);
        assert!(of_b.iter_mut().all(|waiting| poll(waiting.as_mut()).is_none()));
        drop(poll(of_a.as_mut()).expect("the user that holds nothing is next"));
        drop(poll(of_b[0].as_mut()).expect("its turn"));
        // A client that goes away leaves its turn to the next.
        drop(of_b.remove(1));
        drop(poll(of_b[1].as_mut()).expect("its turn"));
        drop(poll(of_b[2].as_mut()).expect("its turn"));
        assert_eq!(queue.budget().used(), 0);
    }

    /// A client may give up any number of requests at once.
    #[test]
    fn many_requests_that_are_given_up_take_no_stack() {
        let (queue, writer) = (queue(1), user("b"));
        let first = poll(pin!(queue.take(&writer, 1))).expect("there is room");
        let mut waiting: Vec<_> = (0..200_000).map(|_| Box::pin(queue.take(&writer, 1))).collect();
        assert!(waiting.iter_mut().all(|request| poll(request.as_mut()).is_none()));
        drop(waiting);
        drop(first);
        assert_eq!(queue.budget().used(), 0);
        assert!(queue.turns.lock().is_empty());
    }

    #[test]
    fn a_turn_behind_many_that_find_no_room_comes() {
        let queue = queue(100);
        let holders: Vec<_> = (0..=TURNS_AT_ONCE + 8).map(|nth| user(&nth.to_string())).collect();
        let take = |holder: &Holder, amount| {
            let (queue, holder) = (Arc::clone(&queue), holder.clone());
            Box::pin(async move { queue.take(&holder, amount).await })
        };
        let mut grants: Vec<_> =
            holders.iter().map(|holder| poll(take(holder, 1).as_mut()).expect("room")).collect();
        // Nobody has room for half of the limit, but for the last one.
        let last = holders.last().expect("a holder");
        let mut waiting: Vec<_> = holders
            .iter()
            .map(|holder| take(holder, if holder == last { 1 } else { 50 }))
            .collect();
        waiting.iter_mut().for_each(|request| drop(poll(request.as_mut())));
        while let Some(grant) = grants.pop() {
            drop(grant);
            waiting.retain_mut(|request| {
                poll(request.as_mut()).map(|grant| grants.push(grant)).is_none()
            });
        }
        assert!(waiting.is_empty(), "{} wait for nothing", waiting.len());
        assert_eq!(queue.budget().used(), 0);
    }

    #[test]
    fn a_request_that_is_given_up_takes_no_room() {
        let (queue, writer) = (queue(100), user("b"));
        let first = poll(pin!(queue.take(&writer, 50))).expect("there is room");
        let mut second = Box::pin(queue.take(&writer, 50));
        assert!(poll(second.as_mut()).is_none());
        drop(second);
        drop(first);
        assert_eq!(queue.budget().used(), 0);
        assert!(queue.turns.lock().is_empty());
    }
}
