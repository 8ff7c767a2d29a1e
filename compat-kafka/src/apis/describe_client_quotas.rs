//! DescribeClientQuotas (48): the quotas of the entities that a filter finds.

use std::sync::Arc;

use engine::security::{Operation, QuotaEntity, QuotaName};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_client_quotas_request::ComponentData;
use kafka_protocol::messages::describe_client_quotas_response::{EntityData, EntryData, ValueData};
use kafka_protocol::messages::{DescribeClientQuotasRequest, DescribeClientQuotasResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::cluster_security::{check_cluster, invalid_request, shown};
use super::support::{KafkaApiError, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// Kafka's names of the parts of an entity.
pub(super) const USER: &str = "user";
pub(super) const CLIENT_ID: &str = "client-id";
pub(super) const IP: &str = "ip";

impl ApiHandler for DescribeClientQuotasRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 1 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeClientQuotasResponse {
        let authorized = check_cluster(kafka, context, Operation::DescribeConfigs);
        let filter = authorized.and_then(|()| QuotaFilter::of(&self));
        let filter = match filter {
            Ok(filter) => filter,
            Err(error) => {
                let (code, message) = error_fields(&Err(error));
                return DescribeClientQuotasResponse::default()
                    .with_error_code(code)
                    .with_error_message(message)
                    .with_entries(None);
            }
        };
        let state = kafka.engine.security().state();
        let matching = state.quotas().iter().filter(|(entity, _)| filter.finds(entity));
        let entries = matching.map(|(entity, quotas)| {
            let value = |(key, value): (&String, &f64)| {
                ValueData::default().with_key(StrBytes::from_string(key.clone())).with_value(*value)
            };
            EntryData::default()
                .with_entity(parts(entity))
                .with_values(quotas.iter().map(value).collect())
        });
        DescribeClientQuotasResponse::default()
            .with_error_message(None)
            .with_entries(Some(entries.collect()))
    }
}

fn parts(entity: &QuotaEntity) -> Vec<EntityData> {
    let components = [(USER, &entity.user), (CLIENT_ID, &entity.client_id), (IP, &entity.ip)];
    let components = components.into_iter().filter_map(|(kind, name)| {
        let name = match name.as_ref()? {
            QuotaName::Default => None,
            QuotaName::Named(name) => Some(StrBytes::from_string(name.clone())),
        };
        let kind = StrBytes::from_static_str(kind);
        Some(EntityData::default().with_entity_type(kind).with_entity_name(name))
    });
    components.collect()
}

/// The condition on a part of an entity.
enum QuotaNameFilter {
    Exactly(QuotaName),
    /// Any name, or the default.
    Any,
}

/// Finds entities; those with more parts too, unless it is strict.
#[derive(Default)]
struct QuotaFilter {
    user: Option<QuotaNameFilter>,
    client_id: Option<QuotaNameFilter>,
    ip: Option<QuotaNameFilter>,
    is_strict: bool,
}

impl QuotaFilter {
    fn of(request: &DescribeClientQuotasRequest) -> Result<QuotaFilter, KafkaApiError> {
        let mut filter = QuotaFilter { is_strict: request.strict, ..QuotaFilter::default() };
        for component in &request.components {
            let slot = match &*component.entity_type {
                USER => &mut filter.user,
                CLIENT_ID => &mut filter.client_id,
                IP => &mut filter.ip,
                "" => return Err(invalid_request("Invalid empty entity type.")),
                unknown => {
                    let message = format!("Unsupported entity type {}", shown(unknown));
                    return Err(KafkaApiError::new(ResponseError::UnsupportedVersion, message));
                }
            };
            if slot.is_some() {
                return Err(invalid_request(format!(
                    "Entity type {} cannot appear more than once in the filter.",
                    &*component.entity_type
                )));
            }
            *slot = Some(name_filter(component)?);
        }
        if filter.ip.is_some() && (filter.user.is_some() || filter.client_id.is_some()) {
            return Err(invalid_request(
                "Invalid entity filter component combination. IP filter component should not be \
                 used with user or clientId filter component.",
            ));
        }
        Ok(filter)
    }

    fn finds(&self, entity: &QuotaEntity) -> bool {
        let is_found = |filter: &Option<QuotaNameFilter>, name: &Option<QuotaName>| match filter {
            None => !self.is_strict || name.is_none(),
            Some(QuotaNameFilter::Any) => name.is_some(),
            Some(QuotaNameFilter::Exactly(expected)) => name.as_ref() == Some(expected),
        };
        is_found(&self.user, &entity.user)
            && is_found(&self.client_id, &entity.client_id)
            && is_found(&self.ip, &entity.ip)
    }
}

fn name_filter(component: &ComponentData) -> Result<QuotaNameFilter, KafkaApiError> {
    const EXACT: i8 = 0;
    const DEFAULT: i8 = 1;
    const SPECIFIED: i8 = 2;
    let needless = |kind: &str| {
        let message =
            format!("Request specified MATCH_TYPE_{kind}, but also specified a match string.");
        Err(invalid_request(message))
    };
    match (component.match_type, component._match.as_deref()) {
        (EXACT, Some(name)) => {
            Ok(QuotaNameFilter::Exactly(quota_name(&component.entity_type, name)))
        }
        (EXACT, None) => Err(invalid_request(
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        )),
        (DEFAULT, None) => Ok(QuotaNameFilter::Exactly(QuotaName::Default)),
        (DEFAULT, Some(_)) => needless("DEFAULT"),
        (SPECIFIED, None) => Ok(QuotaNameFilter::Any),
        (SPECIFIED, Some(_)) => needless("SPECIFIED"),
        (match_type, _) => Err(invalid_request(format!("Unknown match type {match_type}"))),
    }
}

/// The name as it is kept: an address has one form.
pub(super) fn quota_name(kind: &str, name: &str) -> QuotaName {
    let address = (kind == IP).then(|| name.parse::<std::net::IpAddr>().ok()).flatten();
    QuotaName::Named(match address {
        Some(address) => address.to_canonical().to_string(),
        None => name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::AlterClientQuotasRequest;

    use super::super::alter_client_quotas::tests::set;
    use super::super::cluster_security::tests::{assert_refused, fixture, text};
    use super::*;

    const EXACT: i8 = 0;
    const DEFAULT: i8 = 1;
    const ANY: i8 = 2;

    fn request(
        components: &[(&str, i8, Option<&str>)],
        is_strict: bool,
    ) -> DescribeClientQuotasRequest {
        let component = |(kind, match_type, name): &(&str, i8, Option<&str>)| {
            ComponentData::default()
                .with_entity_type(text(kind))
                .with_match_type(*match_type)
                .with_match(name.map(text))
        };
        DescribeClientQuotasRequest::default()
            .with_components(components.iter().map(component).collect())
            .with_strict(is_strict)
    }

    fn listed(response: &DescribeClientQuotasResponse) -> Vec<String> {
        assert_eq!((response.error_code, &response.error_message), (0, &None));
        let entries = response.entries.as_ref().unwrap().iter().map(|entry| {
            let part = |part: &EntityData| {
                let name = part.entity_name.as_ref().map_or("<default>", |name| name);
                format!("{}={name} ", &*part.entity_type)
            };
            let value = |value: &ValueData| format!("{}:{}", &*value.key, value.value);
            let (entities, values) =
                (entry.entity.iter().map(part), entry.values.iter().map(value));
            entities.collect::<String>() + &values.collect::<Vec<_>>().join(",")
        });
        entries.collect()
    }

    #[tokio::test]
    async fn quotas_are_found_by_each_part_of_their_entity() {
        let fixture = fixture();
        let rate = &[("producer_byte_rate", Some(5.0))][..];
        let entries = vec![
            set(&[("user", Some("a"))], rate),
            set(&[("user", None)], rate),
            set(&[("user", Some("a")), ("client-id", Some("c"))], rate),
            set(&[("user", Some("a")), ("client-id", None)], rate),
            set(&[("client-id", Some("c"))], rate),
            set(&[("ip", Some("0:0::1"))], &[("connection_creation_rate", Some(3.0))]),
            set(&[("ip", None)], &[("connection_creation_rate", Some(2.0))]),
        ];
        let altered = AlterClientQuotasRequest::default().with_entries(entries);
        let results = fixture.ask(1, altered).await.entries;
        assert!(results.iter().all(|entry| entry.error_code == 0), "{results:?}");
        let (user, pair) =
            ("user=a producer_byte_rate:5", "user=a client-id=c producer_byte_rate:5");
        let default_pair = "user=a client-id=<default> producer_byte_rate:5";
        let default_user = "user=<default> producer_byte_rate:5";
        let client = "client-id=c producer_byte_rate:5";
        let ip = "ip=::1 connection_creation_rate:3";
        let default_ip = "ip=<default> connection_creation_rate:2";
        let a = ("user", EXACT, Some("a"));
        for version in 0..=1 {
            for (components, is_strict, mut expected) in [
                (
                    vec![],
                    false,
                    vec![user, pair, default_pair, default_user, client, ip, default_ip],
                ),
                (vec![], true, vec![]),
                (vec![a], false, vec![user, pair, default_pair]),
                (vec![a], true, vec![user]),
                (vec![("user", DEFAULT, None)], false, vec![default_user]),
                (vec![("user", ANY, None)], true, vec![user, default_user]),
                (vec![a, ("client-id", ANY, None)], true, vec![pair, default_pair]),
                (vec![a, ("client-id", DEFAULT, None)], false, vec![default_pair]),
                (vec![("client-id", EXACT, Some("c"))], false, vec![pair, client]),
                (vec![("ip", EXACT, Some("0::1"))], true, vec![ip]),
                (vec![("ip", ANY, None)], false, vec![ip, default_ip]),
                (vec![("ip", EXACT, Some("nothing"))], false, vec![]),
            ] {
                let answer = fixture.ask(version, request(&components, is_strict)).await;
                let mut quotas = listed(&answer);
                quotas.sort();
                expected.sort_unstable();
                assert_eq!(quotas, expected, "{components:?} {is_strict}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_no_filter_is_refused_in_words() {
        let fixture = fixture();
        let (invalid, unsupported) =
            (ResponseError::InvalidRequest, ResponseError::UnsupportedVersion);
        let any_name = |kind| (kind, ANY, None);
        for (components, error, words) in [
            (vec![any_name("")], invalid, "Invalid empty entity type."),
            (
                vec![any_name("user"), any_name("user")],
                invalid,
                "user cannot appear more than once",
            ),
            (vec![any_name("topic")], unsupported, "Unsupported entity type topic"),
            (vec![("user", EXACT, None)], invalid, "set match string to null"),
            (vec![("user", DEFAULT, Some("x"))], invalid, "MATCH_TYPE_DEFAULT, but also"),
            (vec![("user", ANY, Some("x"))], invalid, "MATCH_TYPE_SPECIFIED, but also"),
            (vec![("user", 3, None)], invalid, "Unknown match type 3"),
            (
                vec![any_name("ip"), any_name("user")],
                invalid,
                "IP filter component should not be used",
            ),
            (
                vec![any_name("client-id"), any_name("ip")],
                invalid,
                "IP filter component should not be used",
            ),
        ] {
            for version in 0..=1 {
                let refused = fixture.ask(version, request(&components, false)).await;
                assert_refused(refused.error_code, &refused.error_message, error, words);
                assert_eq!(refused.entries, None);
            }
        }
        let denied = fixture.ask_as("x", 1, request(&[], false)).await;
        let error = ResponseError::ClusterAuthorizationFailed;
        assert_refused(denied.error_code, &denied.error_message, error, "authorization failed");
    }
}
