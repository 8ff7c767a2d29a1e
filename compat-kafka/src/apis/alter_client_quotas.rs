//! AlterClientQuotas (49): sets and removes quotas, all that are valid at once.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use engine::security::{Operation, QuotaEntity, QuotaName, SecurityChange, SecurityState};
use kafka_protocol::messages::alter_client_quotas_request::{EntryData, OpData};
use kafka_protocol::messages::alter_client_quotas_response;
use kafka_protocol::messages::{AlterClientQuotasRequest, AlterClientQuotasResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::cluster_security::{
    actor, check_change_count, check_cluster, check_name_length, invalid_request, shown,
};
use super::describe_client_quotas::{CLIENT_ID, IP, USER, quota_name};
use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::quotas::{
    CONNECTION_CREATION_RATE, CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE, PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
};
use crate::request::{ApiHandler, RequestContext};

/// An entity as it is asked for: its parts, and their names. `None` is the default.
type EntityNames = BTreeMap<StrBytes, Option<StrBytes>>;
/// The new value of each quota, by its key; `None` removes one.
type QuotaOperations = BTreeMap<String, Option<f64>>;
type QuotaAlteration = Result<(QuotaEntity, QuotaOperations), KafkaApiError>;

impl ApiHandler for AlterClientQuotasRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> AlterClientQuotasResponse {
        let (entities, alterations) = alterations(self.entries);
        let count = entities.len();
        let altered = alter(kafka, context, alterations, self.validate_only).await;
        let results = altered.unwrap_or_else(|error| vec![Err(error); count]);
        let entries = entities.into_iter().zip(&results).map(|(entity, result)| {
            let component = |(kind, name): (StrBytes, Option<StrBytes>)| {
                let component = alter_client_quotas_response::EntityData::default();
                component.with_entity_type(kind).with_entity_name(name)
            };
            let (code, message) = error_fields(result);
            alter_client_quotas_response::EntryData::default()
                .with_error_code(code)
                .with_error_message(message)
                .with_entity(entity.into_iter().map(component).collect())
        });
        AlterClientQuotasResponse::default().with_entries(entries.collect())
    }
}

/// Each entity once, in the order of the request, and what becomes of its quotas.
fn alterations(entries: Vec<EntryData>) -> (Vec<EntityNames>, Vec<QuotaAlteration>) {
    let mut places: HashMap<EntityNames, usize> = HashMap::new();
    let mut alterations = Vec::new();
    for entry in entries {
        let components = entry
            .entity
            .into_iter()
            .map(|component| (component.entity_type, component.entity_name));
        let names: EntityNames = components.collect();
        match places.get(&names) {
            Some(index) => {
                let message = format!("Ignoring duplicate entity {}", entity_text(&names));
                alterations[*index] = Err(invalid_request(message));
            }
            None => {
                alterations.push(alteration(&names, &entry.ops));
                places.insert(names, alterations.len() - 1);
            }
        }
    }
    let mut entities: Vec<(EntityNames, usize)> = places.into_iter().collect();
    entities.sort_unstable_by_key(|(_, index)| *index);
    (entities.into_iter().map(|(names, _)| names).collect(), alterations)
}

fn entity_text(names: &EntityNames) -> String {
    let components = names.iter().map(|(kind, name)| {
        format!("{}={}", shown(kind), name.as_ref().map_or("null", |name| shown(name)))
    });
    format!("ClientQuotaEntity(entries={{{}}})", components.take(3).collect::<Vec<_>>().join(", "))
}

async fn alter(
    kafka: &KafkaServer,
    context: &RequestContext,
    alterations: Vec<QuotaAlteration>,
    validate_only: bool,
) -> Result<Vec<Result<(), KafkaApiError>>, KafkaApiError> {
    check_cluster(kafka, context, Operation::AlterConfigs)?;
    let mut valid = Vec::new();
    let mut results: Vec<Result<(), KafkaApiError>> =
        alterations.into_iter().map(|altered| altered.map(|altered| valid.push(altered))).collect();
    let altered =
        kafka.engine.security().change(actor(context), move |state| match decide(state, valid) {
            Ok(_) if validate_only => (Vec::new(), Ok(())),
            Ok(changes) => (changes, Ok(())),
            Err(error) => (Vec::new(), Err(error)),
        });
    let altered = altered.await.map_err(KafkaApiError::from).flatten();
    if kafka.engine.security().quota_version() == 0 {
        kafka.admission.client_quotas.clear();
    }
    if let Err(error) = altered {
        results.iter_mut().filter(|result| result.is_ok()).for_each(|result| {
            *result = Err(error.clone());
        });
    }
    Ok(results)
}

/// The changes of entities whose quotas are others than before.
fn decide(
    state: &SecurityState,
    alterations: Vec<(QuotaEntity, QuotaOperations)>,
) -> Result<Vec<SecurityChange>, KafkaApiError> {
    let mut altered: BTreeMap<QuotaEntity, BTreeMap<String, f64>> = BTreeMap::new();
    let mut count = 0;
    for (entity, operations) in alterations {
        let before = || state.quotas().get(&entity).cloned().unwrap_or_default();
        let mut quotas = altered.get(&entity).cloned().unwrap_or_else(before);
        for (key, value) in operations {
            let before = match value {
                Some(value) => quotas.insert(key, value),
                None => quotas.remove(&key),
            };
            count += usize::from(before != value);
        }
        altered.insert(entity, quotas);
    }
    check_change_count(count)?;
    let is_new = |entity: &QuotaEntity, quotas: &BTreeMap<String, f64>| {
        state.quotas().get(entity).map_or(!quotas.is_empty(), |before| before != quotas)
    };
    let changed = altered.into_iter().filter(|(entity, quotas)| is_new(entity, quotas));
    Ok(changed.map(|(entity, quotas)| SecurityChange::QuotasSet { entity, quotas }).collect())
}

fn alteration(names: &EntityNames, ops: &[OpData]) -> QuotaAlteration {
    let entity = entity(names)?;
    let mut operations = QuotaOperations::new();
    for op in ops {
        let value = (!op.remove).then_some(op.value);
        if operations.insert(op.key.to_string(), value).is_some() {
            return Err(invalid_request(format!(
                "Duplicate quota key {} not updating quota for this entity {}",
                shown(&op.key),
                entity_text(names)
            )));
        }
    }
    for (key, value) in &operations {
        if let Some(value) = value {
            check_value(entity.ip.is_some(), key, *value)?;
        }
    }
    Ok((entity, operations))
}

fn entity(names: &EntityNames) -> Result<QuotaEntity, KafkaApiError> {
    if names.is_empty() {
        return Err(invalid_request("Invalid empty client quota entity"));
    }
    let mut entity = QuotaEntity::default();
    for (kind, name) in names {
        let slot = match &**kind {
            USER => &mut entity.user,
            CLIENT_ID => &mut entity.client_id,
            IP => &mut entity.ip,
            kind => {
                let message = format!("Unhandled client quota entity type: {}", shown(kind));
                return Err(invalid_request(message));
            }
        };
        *slot = Some(match name {
            None => QuotaName::Default,
            Some(name) if name.is_empty() => {
                return Err(invalid_request(format!("Empty {} not supported", &**kind)));
            }
            Some(name) => {
                check_name_length("The name of an entity", name)?;
                quota_name(kind, name)
            }
        });
    }
    check_ip(&entity)?;
    Ok(entity)
}

fn check_ip(entity: &QuotaEntity) -> Result<(), KafkaApiError> {
    match &entity.ip {
        Some(_) if entity.user.is_some() || entity.client_id.is_some() => Err(invalid_request(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        )),
        // Kafka looks names of hosts up. Here that would hold all changes up.
        Some(QuotaName::Named(name)) if name.parse::<IpAddr>().is_err() => {
            Err(invalid_request(format!("{} is not a valid IP or resolvable host.", shown(name))))
        }
        Some(_) | None => Ok(()),
    }
}

/// The type of a quota's value: that of a setting in Kafka.
enum QuotaType {
    /// A whole number, up to this, which is of the type of this name.
    Whole(f64, &'static str),
    Fraction,
}

fn quota_type(is_ip: bool, key: &str) -> Option<QuotaType> {
    match (is_ip, key) {
        (false, PRODUCER_BYTE_RATE | CONSUMER_BYTE_RATE) => {
            Some(QuotaType::Whole(i64::MAX as f64, "a LONG"))
        }
        (false, REQUEST_PERCENTAGE | CONTROLLER_MUTATION_RATE) => Some(QuotaType::Fraction),
        (true, CONNECTION_CREATION_RATE) => Some(QuotaType::Whole(i32::MAX.into(), "an INT")),
        _ => None,
    }
}

fn check_value(is_ip: bool, key: &str, value: f64) -> Result<(), KafkaApiError> {
    let Some(kind) = quota_type(is_ip, key) else {
        return Err(invalid_request(format!("Invalid configuration key {}", shown(key))));
    };
    // Not a number is no rate either, though Kafka accepts it.
    if value.is_nan() || value <= 0.0 {
        return Err(invalid_request(format!("Quota {key} must be greater than 0")));
    }
    match kind {
        QuotaType::Whole(max, name) if value > max => {
            Err(invalid_request(format!("Proposed value for {key} is too large for {name}.")))
        }
        QuotaType::Whole(..) if (value % 1.0).abs() > 1e-6 => {
            Err(invalid_request(format!("{key} cannot be a fractional value.")))
        }
        QuotaType::Whole(..) | QuotaType::Fraction => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use engine::security::SecurityOptions;
    use kafka_protocol::ResponseError;
    use kafka_protocol::messages::alter_client_quotas_request::EntityData;

    use super::super::cluster_security::tests::{
        SecurityFixture, assert_refused, fixture, fixture_with, options, text,
    };
    use super::*;

    /// Sets quotas of an entity, and removes those without a value.
    pub(in crate::apis) fn set(
        entity: &[(&str, Option<&str>)],
        quotas: &[(&str, Option<f64>)],
    ) -> EntryData {
        let component = |(kind, name): &(&str, Option<&str>)| {
            EntityData::default().with_entity_type(text(kind)).with_entity_name(name.map(text))
        };
        let op = |(key, value): &(&str, Option<f64>)| {
            OpData::default()
                .with_key(text(key))
                .with_value(value.unwrap_or_default())
                .with_remove(value.is_none())
        };
        EntryData::default()
            .with_entity(entity.iter().map(component).collect())
            .with_ops(quotas.iter().map(op).collect())
    }

    fn user(name: &str, quotas: &[(&str, Option<f64>)]) -> EntryData {
        set(&[("user", Some(name))], quotas)
    }

    fn request(entries: Vec<EntryData>) -> AlterClientQuotasRequest {
        AlterClientQuotasRequest::default().with_entries(entries)
    }

    async fn codes(fixture: &SecurityFixture, version: i16, entries: Vec<EntryData>) -> Vec<i16> {
        let results = fixture.ask(version, request(entries)).await.entries;
        results.iter().map(|entry| entry.error_code).collect()
    }

    fn quotas(fixture: &SecurityFixture) -> Vec<(QuotaEntity, Vec<(String, f64)>)> {
        let state = fixture.kafka.engine.security().state();
        let quotas = state.quotas().iter().map(|(entity, quotas)| {
            (entity.clone(), quotas.iter().map(|(key, value)| (key.clone(), *value)).collect())
        });
        quotas.collect()
    }

    fn of_user(name: &str) -> QuotaEntity {
        let user = Some(QuotaName::Named(name.to_owned()));
        QuotaEntity { user, ..QuotaEntity::default() }
    }

    const IN: &str = "producer_byte_rate";
    const OUT: &str = "consumer_byte_rate";

    #[tokio::test]
    async fn quotas_are_set_changed_and_removed_and_the_others_stay() {
        let fixture = fixture();
        let entries = vec![user("a", &[(IN, Some(1.0)), (OUT, Some(2.0))]), user("b", &[])];
        assert_eq!(codes(&fixture, 0, entries).await, [0, 0]);
        let quota = |key: &str, value| (key.to_owned(), value);
        let first = vec![(of_user("a"), vec![quota(OUT, 2.0), quota(IN, 1.0)])];
        assert_eq!(quotas(&fixture), first);
        assert_eq!(fixture.only_entry().await.len(), 1);
        let entries = vec![
            user("a", &[(IN, Some(3.0)), (OUT, None), ("anything", None)]),
            user("c", &[("request_percentage", Some(0.5))]),
        ];
        assert_eq!(codes(&fixture, 1, entries.clone()).await, [0, 0]);
        let second = vec![
            (of_user("a"), vec![quota(IN, 3.0)]),
            (of_user("c"), vec![quota("request_percentage", 0.5)]),
        ];
        assert_eq!(quotas(&fixture), second);
        // A value that is in force already is no change.
        assert_eq!(codes(&fixture, 1, entries).await, [0, 0]);
        assert_eq!(fixture.change_log().await.len(), 2);
        let removals = vec![user("a", &[(IN, None)]), user("c", &[("request_percentage", None)])];
        let tried = request(removals.clone()).with_validate_only(true);
        assert_eq!(fixture.ask(1, tried).await.entries[0].error_code, 0);
        assert_eq!(quotas(&fixture), second);
        assert_eq!(codes(&fixture, 1, removals).await, [0, 0]);
        assert!(quotas(&fixture).is_empty());
    }

    #[tokio::test]
    async fn an_address_is_kept_in_one_form_and_answered_as_it_was_asked_for() {
        let fixture = fixture();
        let rate = |value| [("connection_creation_rate", Some(value))];
        let entries = vec![
            set(&[("ip", Some("::ffff:1.2.3.4"))], &rate(5.0)),
            set(&[("ip", Some("1.2.3.4"))], &rate(6.0)),
            set(&[("ip", None)], &rate(7.0)),
        ];
        let results = fixture.ask(1, request(entries)).await.entries;
        let names: Vec<Option<&str>> =
            results.iter().map(|entry| entry.entity[0].entity_name.as_deref()).collect();
        assert_eq!(names, [Some("::ffff:1.2.3.4"), Some("1.2.3.4"), None]);
        let ip = |name| QuotaEntity { ip: Some(name), ..QuotaEntity::default() };
        let value = |value| vec![("connection_creation_rate".to_owned(), value)];
        let named_ip = QuotaName::Named("1.2.3.4".to_owned());
        let ip_quotas = [(ip(QuotaName::Default), value(7.0)), (ip(named_ip), value(6.0))];
        assert_eq!(quotas(&fixture), ip_quotas);
    }

    #[tokio::test]
    async fn what_is_no_quota_is_refused_in_words_and_the_rest_is_set() {
        let fixture = fixture();
        let a = [("user", Some("a"))];
        let ip = [("ip", Some("1.2.3.4"))];
        let one_quota = [(IN, Some(1.0))];
        let with_value = |entity: &[(&str, Option<&str>)], key: &str, value: f64| {
            set(entity, &[(key, Some(value))])
        };
        let long_name = "x".repeat(32_700);
        for (alteration, words) in [
            (set(&[], &one_quota), "Invalid empty client quota entity"),
            (set(&[("topic", Some("t"))], &one_quota), "Unhandled client quota entity type: topic"),
            (set(&[("user", Some(""))], &one_quota), "Empty user not supported"),
            (set(&[("ip", Some("1.2.3.4")), ("user", None)], &one_quota), "IP entity shouldnot be"),
            (set(&[("ip", Some("a host"))], &one_quota), "a host is not a valid IP"),
            (set(&[("ip", Some(&long_name))], &one_quota), "is not a valid IP"),
            (with_value(&a, "leader.replication.throttled.rate", 1.0), "Invalid configuration key"),
            (with_value(&a, "connection_creation_rate", 1.0), "Invalid configuration key"),
            (with_value(&ip, IN, 1.0), "Invalid configuration key producer_byte_rate"),
            (with_value(&a, &long_name, 1.0), "Invalid configuration key"),
            (with_value(&a, IN, 0.0), "producer_byte_rate must be greater than 0"),
            (with_value(&a, "request_percentage", -1.0), "must be greater than 0"),
            (with_value(&a, "request_percentage", f64::NAN), "must be greater than 0"),
            (with_value(&a, OUT, 1.5), "consumer_byte_rate cannot be a fractional value."),
            (with_value(&a, OUT, 1e19), "is too large for a LONG."),
            (with_value(&a, OUT, f64::INFINITY), "is too large for a LONG."),
            (with_value(&ip, "connection_creation_rate", 3e9), "is too large for an INT."),
            (with_value(&ip, "connection_creation_rate", 0.5), "cannot be a fractional value."),
            (set(&a, &[(IN, Some(1.0)), (IN, None)]), "Duplicate quota key producer_byte_rate"),
        ] {
            for version in 0..=1 {
                let result = fixture.ask(version, request(vec![alteration.clone()])).await.entries;
                assert_refused(
                    result[0].error_code,
                    &result[0].error_message,
                    ResponseError::InvalidRequest,
                    words,
                );
                assert_eq!(result[0].entity.len(), alteration.entity.len());
            }
        }
        assert!(fixture.change_log().await.is_empty());
        let entries = vec![
            user("b", &one_quota),
            user("a", &one_quota),
            with_value(&a, OUT, 7.0),
            user("c", &[(IN, Some(-1.0))]),
        ];
        let results = fixture.ask(1, request(entries)).await.entries;
        let invalid = ResponseError::InvalidRequest;
        let codes: Vec<i16> = results.iter().map(|entry| entry.error_code).collect();
        assert_eq!(codes, [0, invalid.code(), invalid.code()]);
        let words = "Ignoring duplicate entity ClientQuotaEntity(entries={user=a})";
        assert_refused(results[1].error_code, &results[1].error_message, invalid, words);
        assert_eq!(quotas(&fixture), [(of_user("b"), vec![(IN.to_owned(), 1.0)])]);
    }

    #[tokio::test]
    async fn who_may_not_alter_configs_and_what_is_too_much_changes_nothing() {
        let users = |count: usize| -> Vec<EntryData> {
            (0..count).map(|nth| user(&format!("u{nth}"), &[(IN, Some(1.0))])).collect()
        };
        let small = SecurityOptions { bytes_max: 1000, ..options(true) };
        let policy = ResponseError::PolicyViolation;
        for (options, user, count, error, words) in [
            (options(true), "x", 2, ResponseError::ClusterAuthorizationFailed, "authorization"),
            (options(true), "admin", 10_001, policy, "excessively large batch"),
            (small, "admin", 10, policy, "limits.security-bytes-max"),
        ] {
            let fixture = fixture_with(options);
            let results = fixture.ask_as(user, 1, request(users(count))).await.entries;
            assert_eq!(results.len(), count);
            for result in &results {
                assert_refused(result.error_code, &result.error_message, error, words);
            }
            assert!(quotas(&fixture).is_empty());
        }
        let fixture = fixture_with(options(false));
        let results = fixture.ask_as("x", 1, request(users(10_000))).await.entries;
        assert!(results.iter().all(|entry| entry.error_code == 0));
        assert_eq!(fixture.change_log().await.len(), 1);
    }
}
