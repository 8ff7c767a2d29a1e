use super::*;

const STALL_MAX: Duration = Duration::from_secs(60);
const KIB: usize = 1 << 10;

/// A connection, and whether it was ended.
struct BudgetClient {
    quota: Arc<ConnectionQuota>,
    handle: AbortHandle,
}

impl BudgetClient {
    fn is_evicted(&self) -> bool {
        self.handle.is_aborted()
    }
}

fn budget(kib: usize) -> Arc<MemoryBudget> {
    MemoryBudget::new(MemoryBudgetSpec::FOR_TEST, kib * KIB, 0, STALL_MAX)
}

fn client(budget: &Arc<MemoryBudget>, address: &str) -> BudgetClient {
    let (handle, _) = AbortHandle::new_pair();
    BudgetClient { quota: budget.quota(address.parse().unwrap(), handle.clone()), handle }
}

/// Takes room, and keeps it waiting for the client until the connection is ended.
fn hold_stalled(client: &BudgetClient, units: u32) -> tokio::task::JoinHandle<()> {
    let permit = client.quota.try_take(units).expect("there is room");
    client.quota.mark_all_stalled();
    let handle = client.handle.clone();
    tokio::spawn(async move {
        while !handle.is_aborted() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(permit);
    })
}

#[tokio::test(start_paused = true)]
async fn one_address_holds_three_quarters_and_another_finds_room() {
    let budget = budget(1000);
    let (first, second) = (client(&budget, "10.0.0.1"), client(&budget, "10.0.0.1"));
    let large = first.quota.try_take(700).unwrap();
    assert!(second.quota.try_take(51).is_none());
    let small = second.quota.try_take(50).unwrap();
    assert!(client(&budget, "::ffff:10.0.0.1").quota.try_take(1).is_none(), "it is the same");
    let of_ipv6 = client(&budget, "2001:db8::1").quota.try_take(250).expect("a quarter is left");
    assert!(client(&budget, "2001:db8::2").quota.try_take(1).is_none());
    assert_eq!(budget.held_bytes(), 1000 * KIB as u64);
    drop((large, small, of_ipv6));
    assert_eq!(budget.held_bytes(), 0);
    assert!(first.quota.try_take(750).is_some());
}

#[tokio::test(start_paused = true)]
async fn room_out_of_turn_is_taken_once_there_is_enough_and_holds_up_nobody() {
    let budget = budget(1000);
    let (large, small) = (client(&budget, "10.0.0.1"), client(&budget, "10.0.0.2"));
    let (first, second) = (small.quota.try_take(600).unwrap(), large.quota.try_take(300).unwrap());
    let mut waiting = pin!(large.quota.take_out_of_turn(400));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending());
    let begun = Instant::now();
    drop(small.quota.take(100).await.expect("a smaller one is not behind it"));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "that is not enough");
    drop(second);
    let permit = waiting.await.expect("there is enough now");
    assert_eq!((permit.units(), begun.elapsed()), (400, ATTEMPT_INTERVAL_MIN));
    let refused = large.quota.take_out_of_turn(200).await;
    assert!(refused.is_err() && begun.elapsed() >= STALL_MAX, "it gives up");
    // A request in the queue takes what is free, and gives it up unseen.
    drop(permit);
    let third = client(&budget, "10.0.0.3");
    let mut queued = Box::pin(third.quota.take(700));
    assert!(futures_util::poll!(queued.as_mut()).is_pending());
    let mut waiting = pin!(large.quota.take_out_of_turn(300));
    assert!(futures_util::poll!(waiting.as_mut()).is_pending(), "the queue has it");
    drop(queued);
    assert_eq!(waiting.await.expect("it looks again").units(), 300);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn the_largest_frame_has_room_however_small_the_budget() {
    let budget = MemoryBudget::new(MemoryBudgetSpec::FOR_TEST, 100 * KIB, 100 * KIB, STALL_MAX);
    assert!(client(&budget, "10.0.0.1").quota.try_take(100).is_some());
    let small = MemoryBudget::new(MemoryBudgetSpec::FOR_TEST, 100 * KIB, 1 << 30, STALL_MAX);
    let permit = client(&small, "10.0.0.1").quota.try_take(5000).expect("as much as there is");
    assert_eq!(permit.units(), 100);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_room_ends_those_who_keep_most_of_it_for_longest_and_no_more() {
    let budget = budget(1000);
    let slow: Vec<_> = (1..=7).map(|nth| client(&budget, &format!("10.0.0.{nth}"))).collect();
    for (nth, slow) in slow.iter().enumerate() {
        hold_stalled(slow, if nth == 3 { 300 } else { 100 });
    }
    let fast = client(&budget, "10.0.1.1");
    let _held = fast.quota.try_take(100).expect("what is left");
    let started = Instant::now();
    let permit = fast.quota.take(150).await.expect("room is made");
    let waited = started.elapsed();
    assert!(waited >= STALL_MAX / 6 && waited < STALL_MAX / 4, "{waited:?}");
    assert_eq!(permit.units(), 150);
    let evicted: Vec<bool> = slow.iter().map(BudgetClient::is_evicted).collect();
    assert_eq!(evicted, [false, false, false, true, false, false, false]);
    assert_eq!(budget.evicted(), 1);
    assert!(!fast.is_evicted());
}

#[tokio::test(start_paused = true)]
async fn of_many_small_ones_those_of_the_address_that_holds_most_are_ended() {
    let budget = budget(1000);
    let clients: Vec<_> = (0..70).map(|_| client(&budget, "10.0.0.1")).collect();
    let alone = client(&budget, "10.0.0.2");
    hold_stalled(&alone, 100);
    clients.iter().for_each(|client| drop(hold_stalled(client, 10)));
    let newcomer = client(&budget, "10.0.0.3");
    let _held = newcomer.quota.try_take(200).unwrap();
    newcomer.quota.take(30).await.expect("room is made");
    assert_eq!(clients.iter().filter(|client| client.is_evicted()).count(), 3);
    assert!(!alone.is_evicted(), "it holds more than any of them, but its address does not");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_ended_while_it_is_the_disk_that_is_slow() {
    let budget = budget(1000);
    let slow = client(&budget, "10.0.0.1");
    hold_stalled(&slow, 400);
    let waits_for_disk = client(&budget, "10.0.0.2");
    let large = waits_for_disk.quota.try_take(600).unwrap();
    let waiting = client(&budget, "10.0.0.3");
    let started = Instant::now();
    assert_eq!(waiting.quota.take(10).await.err(), Some(MemoryBudgetError));
    assert_eq!(started.elapsed(), STALL_MAX);
    assert!(!slow.is_evicted() && !waits_for_disk.is_evicted());
    drop(large);
    assert!(waiting.quota.take(10).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_disk_is_not_held_against_the_frame_behind_it() {
    let budget = budget(1000);
    let producers = [client(&budget, "10.0.0.1"), client(&budget, "10.0.0.2")];
    let _complete = producers.each_ref().map(|producer| producer.quota.try_take(400).unwrap());
    let _partial = producers.each_ref().map(|producer| producer.quota.try_take(100).unwrap());
    producers.iter().for_each(|producer| producer.quota.mark_stalled(100));
    let newcomer = client(&budget, "10.0.0.3");
    assert_eq!(newcomer.quota.take(10).await.err(), Some(MemoryBudgetError));
    assert!(!producers.iter().any(BudgetClient::is_evicted));
}

#[tokio::test(start_paused = true)]
async fn frames_that_wait_for_each_other_do_not_wait_for_ever() {
    let budget = budget(1000);
    // Each has most of its frame, and needs more for the rest.
    let frames: Vec<_> = (1..=4).map(|nth| client(&budget, &format!("10.0.0.{nth}"))).collect();
    let mut tasks = Vec::new();
    for frame in &frames {
        let permit = frame.quota.try_take(250).unwrap();
        frame.quota.mark_all_stalled();
        let (quota, handle) = (Arc::clone(&frame.quota), frame.handle.clone());
        tasks.push(tokio::spawn(async move {
            let aborted = async {
                while !handle.is_aborted() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::select! {
                rest = quota.take(100) => rest.is_ok() && permit.units() == 250,
                () = aborted => false,
            }
        }));
    }
    let mut completed = 0;
    for task in tasks {
        completed += u32::from(task.await.unwrap());
    }
    assert!(completed >= 2, "{completed} frames came through");
}

#[tokio::test(start_paused = true)]
async fn answers_that_wait_for_room_are_no_more_than_the_budget_once_again() {
    let budget = budget(100);
    let holder = client(&budget, "10.0.0.1");
    let permit = holder.quota.try_take(75).unwrap();
    let waits = client(&budget, "10.0.0.1");
    let waiting = {
        let quota = Arc::clone(&waits.quota);
        tokio::spawn(async move { quota.take_for_response(60).await.map(drop) })
    };
    tokio::task::yield_now().await;
    assert_eq!(holder.quota.take_for_response(60).await.err(), Some(MemoryBudgetError), "at once");
    drop(permit);
    assert_eq!(waiting.await.unwrap(), Ok(()));
    assert_eq!(budget.overdraft.load(Ordering::Relaxed), 0);
    assert_eq!(budget.held_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_connections_that_are_gone_held_is_forgotten() {
    let budget = budget(100);
    for nth in 0..100 {
        let client = client(&budget, &format!("10.0.0.{nth}"));
        client.quota.try_take(75).expect("the one before is gone");
    }
    assert!(budget.quotas.lock().is_empty());
    assert!(budget.addresses.lock().is_empty());
}
