//! All rules, indexed so that a request looks only at the rules that apply to it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use kafka_acls::{
    ANY_HOST, ANY_NAME, ANY_PRINCIPAL, AclFilter, AclRule, Operation, PatternFilter, PatternType,
    Permission, Resource, ResourceType,
};

use crate::state::acl_bytes;

type Map<K, V> = HashMap<K, V, ahash::RandomState>;

/// The remaining budget of a search for rules, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclSearchBudget {
    /// The approximate number of rules that it may still look at.
    pub rules: usize,
    /// The approximate number of bytes that its results may still have.
    pub bytes: usize,
}

impl AclSearchBudget {
    fn look(&mut self, rules: usize) -> Option<()> {
        self.rules = self.rules.checked_sub(rules)?;
        Some(())
    }

    fn hold(&mut self, rule: &AclRule) -> Option<()> {
        self.bytes = self.bytes.checked_sub(acl_bytes(rule))?;
        Some(())
    }
}

/// A rule without its pattern and its principal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    operation: Operation,
    permission: Permission,
    /// As a [`crate::Requester`] has it.
    host: Box<str>,
    /// As it was given, if that is something else: an address of IPv6 can be spelled in several
    /// ways, and Kafka knows only one (`0:0:0:0:0:0:0:1`), which its rules have.
    given_host: Option<Box<str>>,
}

/// Something for each pattern of resources of one type.
#[derive(Clone, Debug)]
struct PatternMap<V> {
    literal: Map<Box<str>, V>,
    prefixed: Map<Box<str>, V>,
    /// The number of prefixes of each length in bytes.
    lengths: BTreeMap<usize, usize>,
}

impl<V> Default for PatternMap<V> {
    fn default() -> PatternMap<V> {
        PatternMap { literal: Map::default(), prefixed: Map::default(), lengths: BTreeMap::new() }
    }
}

impl<V: Default> PatternMap<V> {
    fn entry(&mut self, pattern: PatternType, name: &str) -> &mut V {
        let lengths = &mut self.lengths;
        match pattern {
            PatternType::Literal => self.literal.entry(name.into()).or_default(),
            PatternType::Prefixed => self.prefixed.entry(name.into()).or_insert_with(|| {
                *lengths.entry(name.len()).or_default() += 1;
                V::default()
            }),
        }
    }

    fn get_mut(&mut self, pattern: PatternType, name: &str) -> Option<&mut V> {
        match pattern {
            PatternType::Literal => self.literal.get_mut(name),
            PatternType::Prefixed => self.prefixed.get_mut(name),
        }
    }

    fn remove(&mut self, pattern: PatternType, name: &str) {
        match pattern {
            PatternType::Literal => drop(self.literal.remove(name)),
            PatternType::Prefixed => {
                if self.prefixed.remove(name).is_none() {
                    return;
                }
                let count = self.lengths.get_mut(&name.len()).expect("each prefix is counted");
                *count -= 1;
                if *count == 0 {
                    self.lengths.remove(&name.len());
                }
            }
        }
    }

    /// The values of the patterns that apply to a resource of this name.
    fn matching<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a V> {
        let literal = [name, ANY_NAME].into_iter().filter_map(|name| self.literal.get(name));
        let lengths = self.lengths.range(..=name.len());
        let prefixed = lengths.filter_map(|(length, _)| self.prefixed.get(name.get(..*length)?));
        literal.chain(prefixed)
    }

    /// The values of the patterns that a filter can find.
    fn candidates<'a>(
        &'a self,
        filter: &'a AclFilter,
    ) -> Box<dyn Iterator<Item = (PatternType, &'a str, &'a V)> + 'a> {
        let Some(name) = filter.name.as_deref() else { return Box::new(self.iter()) };
        let (any, shortest) = match filter.pattern {
            PatternFilter::Match => (Some(ANY_NAME).filter(|any| *any != name), 0),
            PatternFilter::Any | PatternFilter::Exactly(_) => (None, name.len()),
        };
        let literal = std::iter::once(name).chain(any);
        let literal = literal.filter_map(|name| self.literal.get_key_value(name));
        let lengths = self.lengths.range(shortest..=name.len());
        let prefixes = lengths.filter_map(|(length, _)| name.get(..*length));
        let prefixed = prefixes.filter_map(|prefix| self.prefixed.get_key_value(prefix));
        let literal = literal.map(|(name, value)| (PatternType::Literal, &**name, value));
        Box::new(
            literal.chain(prefixed.map(|(name, value)| (PatternType::Prefixed, &**name, value))),
        )
    }

    fn is_empty(&self) -> bool {
        self.literal.is_empty() && self.prefixed.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = (PatternType, &str, &V)> {
        let literal =
            self.literal.iter().map(|(name, value)| (PatternType::Literal, &**name, value));
        let prefixed =
            self.prefixed.iter().map(|(name, value)| (PatternType::Prefixed, &**name, value));
        literal.chain(prefixed)
    }
}

/// By [`ResourceType::code`].
type ByType<V> = BTreeMap<ResourceType, PatternMap<V>>;

/// All rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct AclTable {
    principals: Map<Box<str>, ByType<Vec<Rule>>>,
    /// The number of rules of each pattern.
    resources: ByType<usize>,
    count: usize,
}

impl AclTable {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Adds a rule; returns true if it was not there.
    pub(crate) fn insert(&mut self, binding: &AclRule) -> bool {
        let AclRule { resource_type, pattern, name, .. } = binding;
        let of_principal = match self.principals.get_mut(&*binding.principal) {
            Some(types) => types,
            None => self.principals.entry(binding.principal.as_str().into()).or_default(),
        };
        let rules = of_principal.entry(*resource_type).or_default().entry(*pattern, name);
        let rule = Rule::from(binding);
        if rules.contains(&rule) {
            return false;
        }
        rules.push(rule);
        *self.resources.entry(*resource_type).or_default().entry(*pattern, name) += 1;
        self.count += 1;
        true
    }

    /// Removes a rule; returns true if it was there.
    pub(crate) fn remove(&mut self, binding: &AclRule) -> bool {
        let AclRule { resource_type, pattern, name, principal, .. } = binding;
        let Some(of_principal) = self.principals.get_mut(&**principal) else { return false };
        let Some(patterns) = of_principal.get_mut(resource_type) else { return false };
        let Some(rules) = patterns.get_mut(*pattern, name) else { return false };
        let rule = Rule::from(binding);
        let Some(at) = rules.iter().position(|stored| *stored == rule) else { return false };
        rules.swap_remove(at);
        if rules.is_empty() {
            patterns.remove(*pattern, name);
            if patterns.is_empty() {
                of_principal.remove(resource_type);
            }
            if of_principal.is_empty() {
                self.principals.remove(&**principal);
            }
        }
        let patterns = self.resources.get_mut(resource_type).expect("each rule is counted");
        let count = patterns.get_mut(*pattern, name).expect("each rule is counted");
        *count -= 1;
        if *count == 0 {
            patterns.remove(*pattern, name);
        }
        self.count -= 1;
        true
    }

    pub(crate) fn contains(&self, binding: &AclRule) -> bool {
        let AclRule { resource_type, pattern, name, principal, .. } = binding;
        let patterns = self.principals.get(&**principal).and_then(|types| types.get(resource_type));
        let rules = patterns.and_then(|patterns| match pattern {
            PatternType::Literal => patterns.literal.get(&**name),
            PatternType::Prefixed => patterns.prefixed.get(&**name),
        });
        rules.is_some_and(|rules| rules.contains(&Rule::from(binding)))
    }

    /// The rules that `filter` finds, sorted.
    pub(crate) fn find(&self, filter: &AclFilter) -> Vec<AclRule> {
        let mut budget = AclSearchBudget { rules: usize::MAX, bytes: usize::MAX };
        self.find_within(filter, &mut budget).expect("there are fewer rules than that")
    }

    /// The rules that `filter` finds, sorted; `None` if that takes more than `budget` has left.
    pub(crate) fn find_within(
        &self,
        filter: &AclFilter,
        budget: &mut AclSearchBudget,
    ) -> Option<Vec<AclRule>> {
        let mut matches = Vec::new();
        let principal = filter.principal.as_deref();
        let single = principal.and_then(|name| self.principals.get_key_value(name));
        let all = principal.is_none().then(|| self.principals.iter()).into_iter().flatten();
        for (principal, types) in single.into_iter().chain(all) {
            for (kind, patterns) in types {
                budget.look(1)?;
                for (pattern, name, rules) in patterns.candidates(filter) {
                    budget.look(rules.len())?;
                    let rules =
                        rules.iter().map(|rule| rule.binding(*kind, pattern, name, principal));
                    for rule in rules.filter(|rule| filter.finds(rule)) {
                        budget.hold(&rule)?;
                        matches.push(rule);
                    }
                }
            }
        }
        matches.sort_unstable();
        Some(matches)
    }

    /// The decision of the rules on a request; `None` if no rule of any principal is for this
    /// resource.
    pub(crate) fn decide(
        &self,
        principal: &str,
        host: &str,
        operation: Operation,
        resource: Resource<'_>,
    ) -> Option<bool> {
        let (mut any, mut is_allowed) = (false, false);
        for rule in self.rules_of(principal, resource) {
            any = true;
            if !rule.is_for(host) {
                continue;
            }
            match rule.permission {
                Permission::Deny if rule.operation.denies(operation) => return Some(false),
                Permission::Allow if rule.operation.allows(operation) => is_allowed = true,
                _ => {}
            }
        }
        if any || self.has_rules(resource) { Some(is_allowed) } else { None }
    }

    fn rules_of<'a>(
        &'a self,
        principal: &'a str,
        resource: Resource<'a>,
    ) -> impl Iterator<Item = &'a Rule> {
        let principals = [principal, ANY_PRINCIPAL].into_iter();
        let types = principals.filter_map(|principal| self.principals.get(principal));
        let patterns = types.filter_map(move |types| types.get(&resource.kind));
        patterns.flat_map(move |patterns| patterns.matching(resource.name)).flatten()
    }

    fn has_rules(&self, resource: Resource<'_>) -> bool {
        let patterns = self.resources.get(&resource.kind);
        patterns.is_some_and(|patterns| patterns.matching(resource.name).next().is_some())
    }

    /// Returns true if a principal may do `operation` to any resource of a type at all: a rule
    /// allows it, and no rule denies it for all that that rule covers (KIP-679).
    pub(crate) fn allows_any(
        &self,
        principal: &str,
        host: &str,
        operation: Operation,
        kind: ResourceType,
    ) -> bool {
        let mut allowed: Vec<(PatternType, &str)> = Vec::new();
        let mut denied = DeniedPatterns::default();
        for principal in [principal, ANY_PRINCIPAL] {
            let types = self.principals.get(principal);
            let Some(patterns) = types.and_then(|types| types.get(&kind)) else { continue };
            for (pattern, name, rules) in patterns.iter() {
                for rule in rules.iter().filter(|rule| rule.is_for(host)) {
                    match rule.permission {
                        Permission::Deny if rule.operation.denies(operation) => {
                            denied.insert(pattern, name);
                        }
                        Permission::Allow if rule.operation.allows(operation) => {
                            allowed.push((pattern, name));
                        }
                        _ => {}
                    }
                }
            }
        }
        denied.keep_shortest_prefixes();
        allowed.into_iter().any(|(pattern, name)| !denied.covers(pattern, name))
    }
}

/// The patterns of rules that deny something.
#[derive(Default)]
struct DeniedPatterns<'a> {
    literals: HashSet<&'a str, ahash::RandomState>,
    prefixes: BTreeSet<&'a str>,
}

impl<'a> DeniedPatterns<'a> {
    fn insert(&mut self, pattern: PatternType, name: &'a str) {
        match pattern {
            PatternType::Literal => self.literals.insert(name),
            PatternType::Prefixed => self.prefixes.insert(name),
        };
    }

    /// Drops each prefix that begins with another one. Then at most one prefix fits a name: the
    /// last that is not behind it in the order.
    fn keep_shortest_prefixes(&mut self) {
        let mut shortest: Option<&str> = None;
        self.prefixes.retain(|prefix| match shortest {
            Some(shorter) if prefix.starts_with(shorter) => false,
            _ => {
                shortest = Some(prefix);
                true
            }
        });
    }

    /// Returns true if they deny all that a pattern covers.
    fn covers(&self, pattern: PatternType, name: &str) -> bool {
        if self.literals.contains(ANY_NAME) {
            return true;
        }
        match pattern {
            PatternType::Literal if name == ANY_NAME => false,
            PatternType::Literal if self.literals.contains(name) => true,
            PatternType::Literal | PatternType::Prefixed => {
                let prefix = self.prefixes.range::<&str, _>(..=name).next_back();
                prefix.is_some_and(|prefix| name.starts_with(prefix))
            }
        }
    }
}

impl Rule {
    fn is_for(&self, host: &str) -> bool {
        *self.host == *ANY_HOST || *self.host == *host
    }

    fn binding(
        &self,
        resource_type: ResourceType,
        pattern: PatternType,
        name: &str,
        principal: &str,
    ) -> AclRule {
        AclRule {
            resource_type,
            pattern,
            name: name.to_owned(),
            principal: principal.to_owned(),
            host: self.given_host.as_ref().unwrap_or(&self.host).to_string(),
            operation: self.operation,
            permission: self.permission,
        }
    }
}

impl From<&AclRule> for Rule {
    fn from(binding: &AclRule) -> Rule {
        let AclRule { operation, permission, host, .. } = binding;
        let address = host.parse::<IpAddr>().map(|address| address.to_canonical().to_string());
        let shown: Box<str> = host.as_str().into();
        let (host, given_host) = match address {
            Ok(address) if address != *host => (address.into(), Some(shown)),
            Ok(_) | Err(_) => (shown, None),
        };
        Rule { operation: *operation, permission: *permission, host, given_host }
    }
}

#[cfg(test)]
mod tests;
