use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn budget(kind: BudgetKind, limit: u64) -> Arc<Budget> {
    let spec =
        BudgetSpec { name: "groups", unit: "groups", setting: Some("limits.groups-max"), kind };
    Budget::new(spec, limit)
}

fn user(name: &str) -> Holder {
    Holder::principal(&format!("User:{name}"), false)
}

/// Takes one at a time until that is refused; returns how many the holder has then.
fn flood(budget: &Budget, holder: &Holder) -> u64 {
    while budget.charge(holder, 1).is_ok() {}
    budget.held(holder)
}

#[test]
fn a_flood_of_kept_grants_leaves_room_for_others() {
    let budget = budget(BudgetKind::Kept, 10_000);
    let first = flood(&budget, &user("b"));
    assert!((7000..=7500).contains(&first), "{first}");
    for name in ["c", "d", "e"] {
        assert!(flood(&budget, &user(name)) > 0, "{name}");
    }
    assert!(budget.charge(&user("a"), 1).is_ok());
}

#[test]
fn a_flood_of_yielding_grants_leaves_the_reserve() {
    let budget = budget(BudgetKind::Yielding, 3200);
    assert_eq!(flood(&budget, &user("b")), 3100);
    assert!(budget.charge(&user("a"), 1).is_ok());
    assert!(budget.charge(&Holder::principal("User:admin", true), 99).is_ok());
    let error = budget.charge(&user("a"), 1).unwrap_err();
    assert_eq!(error.yields, Some(user("b")));
}

#[test]
fn a_holder_with_the_most_gives_way_to_itself() {
    let budget = budget(BudgetKind::Yielding, 100);
    flood(&budget, &user("b"));
    assert_eq!(budget.charge(&user("b"), 1).unwrap_err().yields, Some(user("b")));
}

#[test]
fn a_small_limit_is_for_whoever_comes_first() {
    for kind in [BudgetKind::Kept, BudgetKind::Yielding] {
        assert_eq!(flood(&budget(kind, 3), &user("a")), 3);
    }
}

#[test]
fn a_refusal_names_the_limit_and_its_setting() {
    let budget = budget(BudgetKind::Kept, 3);
    flood(&budget, &user("a"));
    let error = budget.charge(&user("b"), 1).unwrap_err().to_string();
    let expected =
        "User:b holds 0 of 3 groups, and all are taken; free some, or raise limits.groups-max";
    assert_eq!(error, expected);
    let usage = budget.usage();
    assert_eq!((usage.used, usage.holders, usage.refused), (3, 1, 2));
    assert_eq!(usage.largest, Some(LargestHolder { name: "User:a".to_owned(), used: 3 }));
}

#[test]
fn a_dropped_grant_is_free_again() {
    let budget = budget(BudgetKind::Kept, 100);
    let mut grant = budget.take(&user("a"), 10).unwrap();
    grant.resize(20).unwrap();
    assert!(grant.resize(1000).is_err());
    assert_eq!(budget.used(), 20);
    grant.resize(5).unwrap();
    assert_eq!(budget.used(), 5);
    drop(grant);
    let usage = budget.usage();
    assert_eq!((usage.used, usage.holders, usage.largest), (0, 0, None));
}

/// One request may want more than everybody has.
#[test]
fn a_holder_that_wants_more_than_others_have_evicts_nobody() {
    let budget = budget(BudgetKind::Yielding, 100);
    let charges =
        [("a", 40), ("b", 30)].map(|(name, amount)| budget.take(&user(name), amount).unwrap());
    let take = |amount| {
        let mut evicted = Vec::new();
        let charge = budget.take_evicting(&user("c"), amount, |refusal| {
            evicted.extend(refusal.yields.as_ref().map(|yields| yields.name().to_owned()));
            false
        });
        (charge.is_ok(), evicted)
    };
    for amount in [41, 101, u64::MAX] {
        assert_eq!(take(amount), (false, vec!["User:c".to_owned()]), "{amount}");
    }
    assert_eq!(take(40), (false, vec!["User:a".to_owned()]));
    assert_eq!(take(30), (true, Vec::new()));
    assert_eq!(budget.usage().refused, 4);
    drop(charges);
}

#[test]
fn evictions_make_room_for_what_is_wanted_and_not_for_the_reserve() {
    let budget = budget(BudgetKind::Yielding, 64);
    let mut of_b: Vec<_> = (0..62).map(|_| budget.take(&user("b"), 1).unwrap()).collect();
    let reserved: Vec<_> = ["a", "c"].map(|name| budget.take(&user(name), 1).unwrap()).into();
    let mut evicted = 0;
    let grant = budget.take_evicting(&user("a"), 1, |refusal| {
        assert_eq!(refusal.yields, Some(user("b")));
        evicted += 1;
        of_b.pop().is_some()
    });
    assert!(grant.is_ok());
    assert_eq!((evicted, budget.used(), budget.usage().refused), (1, 64, 1));
    drop(reserved);
}

/// An operator who sets a small limit wants that many.
#[test]
fn nobody_gives_way_where_the_limit_is_small() {
    let budget = budget(BudgetKind::Yielding, 2);
    let _kept = budget.take(&user("b"), 2).unwrap();
    let refused = budget.take_evicting(&user("a"), 1, |refusal| refusal.yields.is_some());
    assert_eq!(refused.unwrap_err().yields, None);
}

#[test]
fn nothing_always_has_room() {
    let budget = budget(BudgetKind::Kept, 100);
    budget.charge_always(&user("a"), 100);
    assert_eq!(budget.charge(&user("a"), 0), Ok(()));
    assert!(budget.charge(&user("a"), 1).is_err());
}

proptest! {
    /// Beside a plain map: sums are right, no limit is exceeded, only the holder with the most is
    /// told to give way, and with kept grants there is always room for one more holder. A request
    /// that fits is granted.
    #[test]
    fn accounts_add_up_and_shares_hold(
        is_kept in any::<bool>(),
        limit in 64..2000_u64,
        steps in prop::collection::vec((0..6_usize, 1..40_u64, any::<bool>()), 1..300),
    ) {
        let kind = if is_kept { BudgetKind::Kept } else { BudgetKind::Yielding };
        let budget = budget(kind, limit);
        let mut model: HashMap<usize, u64> = HashMap::new();
        for (name, amount, takes) in steps {
            let holder = user(&name.to_string());
            let held = model.get(&name).copied().unwrap_or(0);
            if !takes {
                let amount = amount.min(held);
                budget.release(&holder, amount);
                model.insert(name, held - amount);
                continue;
            }
            let room = budget.room(&holder);
            let charged = budget.charge(&holder, amount);
            prop_assert_eq!(charged.is_ok(), amount <= room);
            match charged {
                Ok(()) => {
                    model.insert(name, held + amount);
                }
                Err(BudgetError { yields: Some(yields), .. }) => {
                    prop_assert!(!is_kept);
                    let most = model.values().copied().max().unwrap_or(0);
                    if yields == holder {
                        prop_assert!(held + amount >= most);
                    } else {
                        prop_assert!(budget.held(&yields) == most && held + amount <= most);
                    }
                }
                Err(_) => prop_assert!(is_kept || model.values().all(|held| *held == 0)),
            }
            let sum: u64 = model.values().sum();
            prop_assert!(sum <= limit);
            prop_assert_eq!(budget.used(), sum);
            for (name, held) in &model {
                prop_assert_eq!(budget.held(&user(&name.to_string())), *held);
            }
        }
        prop_assert!(!is_kept || budget.used() < limit);
    }
}

#[test]
fn a_grant_that_is_handed_over_counts_for_its_new_holder() {
    let budget = budget(BudgetKind::Kept, 100);
    let mut grant = budget.take_always(&Holder::restored(), 90);
    assert!(grant.is_restored());
    grant.hand_over(&user("a"));
    assert!(!grant.is_restored());
    assert_eq!((budget.used(), budget.held(&user("a"))), (90, 90));
    grant.absorb(budget.take(&user("b"), 5).unwrap());
    assert_eq!((grant.amount(), budget.held(&user("a")), budget.held(&user("b"))), (95, 95, 0));
    grant.resize_always(120);
    assert_eq!(budget.used(), 120);
    drop(grant);
    assert_eq!((budget.used(), budget.usage().holders), (0, 0));
}

#[test]
fn grants_of_a_holder_share_its_name() {
    let budget = budget(BudgetKind::Kept, 100);
    let [first, second] = [1, 2].map(|amount| budget.take(&user("a"), amount).unwrap());
    assert!(Arc::ptr_eq(first.holder().shared_name(), second.holder().shared_name()));
}
