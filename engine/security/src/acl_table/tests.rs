use proptest::prelude::*;

use super::*;

/// The rules as Kafka's manual has them, one after the other.
#[derive(Debug, Default)]
struct NaiveTable(Vec<AclRule>);

fn applies(rule: &AclRule, resource: Resource<'_>) -> bool {
    rule.resource_type == resource.kind
        && match rule.pattern {
            PatternType::Literal => rule.name == resource.name || rule.name == "*",
            PatternType::Prefixed => resource.name.starts_with(&rule.name),
        }
}

fn is_for(rule: &AclRule, principal: &str, host: &str) -> bool {
    (rule.principal == principal || rule.principal == "User:*")
        && (rule.host == host || rule.host == "*")
}

/// KIP-11: a principal that may read, write, delete or alter may describe; one that may alter
/// configs may describe them.
fn allows(rule: &AclRule, operation: Operation) -> bool {
    use Operation::{All, Alter, AlterConfigs, Delete, Describe, DescribeConfigs, Read, Write};
    let allowing = match operation {
        Describe => vec![All, Describe, Read, Write, Delete, Alter],
        DescribeConfigs => vec![All, DescribeConfigs, AlterConfigs],
        operation => vec![All, operation],
    };
    rule.permission == Permission::Allow && allowing.contains(&rule.operation)
}

fn denies(rule: &AclRule, operation: Operation) -> bool {
    rule.permission == Permission::Deny && [Operation::All, operation].contains(&rule.operation)
}

impl NaiveTable {
    fn insert(&mut self, rule: &AclRule) -> bool {
        let is_new = !self.0.contains(rule);
        if is_new {
            self.0.push(rule.clone());
        }
        is_new
    }

    fn remove(&mut self, rule: &AclRule) -> bool {
        let before = self.0.len();
        self.0.retain(|stored| stored != rule);
        self.0.len() < before
    }

    fn find(&self, filter: &AclFilter) -> Vec<AclRule> {
        let mut rules: Vec<AclRule> =
            self.0.iter().filter(|rule| filter.finds(rule)).cloned().collect();
        rules.sort();
        rules
    }

    fn decide(
        &self,
        principal: &str,
        host: &str,
        operation: Operation,
        resource: Resource<'_>,
    ) -> Option<bool> {
        let applying: Vec<&AclRule> =
            self.0.iter().filter(|rule| applies(rule, resource)).collect();
        if applying.is_empty() {
            return None;
        }
        let mut rules = applying.iter().filter(|rule| is_for(rule, principal, host));
        let is_denied = rules.clone().any(|rule| denies(rule, operation));
        Some(!is_denied && rules.any(|rule| allows(rule, operation)))
    }

    /// As KIP-679 has it.
    fn allows_any(
        &self,
        principal: &str,
        host: &str,
        operation: Operation,
        kind: ResourceType,
    ) -> bool {
        let of_principal = || {
            let rules = self.0.iter().filter(move |rule| rule.resource_type == kind);
            rules.filter(|rule| is_for(rule, principal, host))
        };
        let is_of = |rule: &AclRule, pattern: PatternType, name: &str| {
            rule.pattern == pattern && rule.name == name
        };
        let denied = |pattern: PatternType, name: &str| {
            of_principal().any(|rule| denies(rule, operation) && is_of(rule, pattern, name))
        };
        if denied(PatternType::Literal, "*") {
            return false;
        }
        let mut allowing = of_principal().filter(|rule| allows(rule, operation));
        allowing.any(|rule| {
            if is_of(rule, PatternType::Literal, "*") {
                return true;
            }
            let is_prefix_denied =
                (1..=rule.name.len()).any(|end| denied(PatternType::Prefixed, &rule.name[..end]));
            let is_literal = rule.pattern == PatternType::Literal;
            !(is_prefix_denied || is_literal && denied(PatternType::Literal, &rule.name))
        })
    }
}

fn one_of<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    proptest::sample::select(all)
}

/// Few, so that they meet.
const KINDS: &[ResourceType] = &[ResourceType::Topic, ResourceType::Group];
const NAMES: &[&str] = &["*", "a", "ab", "abc", "b", "*a", "ba"];
const PRINCIPALS: &[&str] = &["User:x", "User:y", "User:*"];
const HOSTS: &[&str] = &["*", "1.1.1.1", "::1"];
const OPERATIONS: &[Operation] = &[
    Operation::All,
    Operation::Read,
    Operation::Write,
    Operation::Alter,
    Operation::Describe,
    Operation::AlterConfigs,
    Operation::DescribeConfigs,
];

fn rule() -> impl Strategy<Value = AclRule> {
    let pattern = (one_of(KINDS), one_of(PatternType::ALL), one_of(NAMES));
    let entry = (one_of(PRINCIPALS), one_of(HOSTS), one_of(OPERATIONS), one_of(Permission::ALL));
    (pattern, entry).prop_map(
        |((resource_type, pattern, name), (principal, host, operation, permission))| AclRule {
            resource_type,
            pattern,
            name: name.to_owned(),
            principal: principal.to_owned(),
            host: host.to_owned(),
            operation,
            permission,
        },
    )
}

fn filter() -> impl Strategy<Value = AclFilter> {
    let pattern = prop_oneof![
        Just(PatternFilter::Any),
        Just(PatternFilter::Match),
        one_of(PatternType::ALL).prop_map(PatternFilter::Exactly),
    ];
    let text = |all| proptest::option::of(one_of(all).prop_map(str::to_owned));
    let rest = (
        proptest::option::of(one_of(OPERATIONS)),
        proptest::option::of(one_of(Permission::ALL)),
        proptest::option::of(one_of(KINDS)),
    );
    (pattern, text(NAMES), text(PRINCIPALS), text(HOSTS), rest).prop_map(
        |(pattern, name, principal, host, (operation, permission, resource_type))| AclFilter {
            resource_type,
            pattern,
            name,
            principal,
            host,
            operation,
            permission,
        },
    )
}

#[derive(Clone, Debug)]
enum TableStep {
    Insert(AclRule),
    Remove(AclRule),
    /// Removes what is there, by its place.
    RemoveNth(prop::sample::Index),
}

fn step() -> impl Strategy<Value = TableStep> {
    prop_oneof![
        4 => rule().prop_map(TableStep::Insert),
        1 => rule().prop_map(TableStep::Remove),
        2 => any::<prop::sample::Index>().prop_map(TableStep::RemoveNth),
    ]
}

fn check_decisions(table: &AclTable, naive: &NaiveTable) -> Result<(), TestCaseError> {
    for (principal, host) in [("User:x", "1.1.1.1"), ("User:y", "::1"), ("User:z", "9.9.9.9")] {
        for kind in KINDS.iter().copied() {
            for operation in OPERATIONS[1..].iter().copied() {
                for name in NAMES.iter().copied().chain(["abcd", "c", "äb"]) {
                    let resource = Resource { kind, name };
                    let decided = table.decide(principal, host, operation, resource);
                    let expected = naive.decide(principal, host, operation, resource);
                    prop_assert_eq!(
                        decided,
                        expected,
                        "{} {}: {} {}",
                        principal,
                        host,
                        operation,
                        name
                    );
                }
                let any = table.allows_any(principal, host, operation, kind);
                let expected = naive.allows_any(principal, host, operation, kind);
                prop_assert_eq!(any, expected, "{} {}: {}", principal, host, operation);
            }
        }
    }
    Ok(())
}

fn check_is_empty(table: &AclTable) -> Result<(), TestCaseError> {
    prop_assert_eq!(table.len(), 0);
    prop_assert!(table.principals.is_empty(), "{:?}", table.principals);
    for patterns in table.resources.values() {
        prop_assert!(patterns.is_empty() && patterns.lengths.is_empty(), "{:?}", patterns);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_table_decides_and_finds_what_a_list_does(
        steps in proptest::collection::vec(step(), 0..40),
        filters in proptest::collection::vec(filter(), 1..10),
    ) {
        let (mut table, mut naive) = (AclTable::default(), NaiveTable::default());
        for step in &steps {
            match step {
                TableStep::Insert(rule) => {
                    prop_assert_eq!(table.insert(rule), naive.insert(rule));
                }
                TableStep::Remove(rule) => {
                    prop_assert_eq!(table.remove(rule), naive.remove(rule));
                }
                TableStep::RemoveNth(nth) if !naive.0.is_empty() => {
                    let rule = nth.get(&naive.0).clone();
                    prop_assert!(table.contains(&rule));
                    prop_assert!(table.remove(&rule) && naive.remove(&rule));
                    prop_assert!(!table.contains(&rule));
                }
                TableStep::RemoveNth(_) => {}
            }
            prop_assert_eq!(table.len(), naive.0.len());
        }
        for filter in &filters {
            prop_assert_eq!(table.find(filter), naive.find(filter), "{:?}", filter);
        }
        check_decisions(&table, &naive)?;
        for rule in naive.find(&AclFilter::default()) {
            prop_assert!(table.remove(&rule));
        }
        check_is_empty(&table)?;
    }
}

fn literal(name: &str, principal: &str) -> AclRule {
    AclRule {
        resource_type: ResourceType::Topic,
        pattern: PatternType::Literal,
        name: name.to_owned(),
        principal: principal.to_owned(),
        host: "*".to_owned(),
        operation: Operation::Read,
        permission: Permission::Allow,
    }
}

#[test]
fn a_prefix_of_one_star_is_no_rule_for_all() {
    let prefixed = |name: &str, permission| {
        let pattern = PatternType::Prefixed;
        AclRule { pattern, permission, ..literal(name, "User:a") }
    };
    let mut table = AclTable::default();
    let allows_any =
        |table: &AclTable| table.allows_any("User:a", "::1", Operation::Read, ResourceType::Topic);
    table.insert(&prefixed("*", Permission::Allow));
    assert!(allows_any(&table));
    table.insert(&prefixed("*", Permission::Deny));
    assert!(!allows_any(&table), "each name that begins with a star is denied");
    table.insert(&literal("*", "User:a"));
    assert!(allows_any(&table), "others are allowed");
}

#[test]
fn an_address_of_ipv6_is_the_same_in_each_spelling_and_shown_as_given() {
    let with_host = |host: &str, permission| AclRule {
        host: host.to_owned(),
        permission,
        ..literal("t", "User:a")
    };
    let resource = Resource { kind: ResourceType::Topic, name: "t" };
    for host in ["0:0:0:0:0:0:0:1", "::1", "0000::0001"] {
        let mut table = AclTable::default();
        table.insert(&with_host("*", Permission::Allow));
        let denied = with_host(host, Permission::Deny);
        table.insert(&denied);
        assert_eq!(table.decide("User:a", "::1", Operation::Read, resource), Some(false), "{host}");
        assert_eq!(table.decide("User:a", "::2", Operation::Read, resource), Some(true), "{host}");
        let rules = table.find(&AclFilter::default());
        assert!(rules.contains(&denied), "{rules:?}");
        table.remove(&denied);
        assert_eq!(table.decide("User:a", "::1", Operation::Read, resource), Some(true), "{host}");
    }
}

#[test]
fn a_search_ends_where_its_budget_does() {
    let mut table = AclTable::default();
    for nth in 0..100 {
        assert!(table.insert(&literal(&format!("t{nth}"), "User:a")));
    }
    let all = AclFilter::default();
    let plenty = AclSearchBudget { rules: 1000, bytes: 1 << 20 };
    let mut budget = plenty;
    assert_eq!(table.find_within(&all, &mut budget).map(|rules| rules.len()), Some(100));
    assert_eq!(plenty.rules - budget.rules, 101, "the rules, and their principal");
    let bytes: usize = table.find(&all).iter().map(acl_bytes).sum();
    assert_eq!(plenty.bytes - budget.bytes, bytes);
    for (short, is_enough) in [
        (AclSearchBudget { rules: 101, bytes }, true),
        (AclSearchBudget { rules: 100, bytes }, false),
        (AclSearchBudget { rules: 101, bytes: bytes - 1 }, false),
    ] {
        assert_eq!(table.find_within(&all, &mut { short }).is_some(), is_enough, "{short:?}");
    }
    // By name, the others are not looked at.
    let filter = AclFilter { name: Some("t7".to_owned()), ..AclFilter::default() };
    let mut few = AclSearchBudget { rules: 2, bytes };
    assert_eq!(table.find_within(&filter, &mut few), Some(vec![literal("t7", "User:a")]));
    assert_eq!(few.rules, 0);
}

/// A look at each denial for each permission would be ten thousand million comparisons.
#[test]
fn whether_anything_is_allowed_takes_one_look_at_each_rule() {
    const COUNT: usize = 100_000;
    let mut table = AclTable::default();
    let prefixed = |name: &str, permission| {
        let pattern = PatternType::Prefixed;
        AclRule { pattern, permission, ..literal(name, "User:a") }
    };
    for nth in 0..COUNT {
        table.insert(&literal(&format!("denied-{nth}-topic"), "User:a"));
        table.insert(&prefixed(&format!("denied-{nth}-"), Permission::Deny));
    }
    let allows_any =
        |table: &AclTable| table.allows_any("User:a", "::1", Operation::Read, ResourceType::Topic);
    assert!(!allows_any(&table));
    table.insert(&literal("denied", "User:a"));
    assert!(allows_any(&table), "shorter than each prefix that is denied");
    table.insert(&prefixed("den", Permission::Deny));
    assert!(!allows_any(&table));
}
