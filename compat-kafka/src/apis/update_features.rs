//! UpdateFeatures (57): features are what this server has, so each stays at its only version.

use std::sync::Arc;

use engine::security::{Operation, Resource};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::update_features_request::FeatureUpdateKey;
use kafka_protocol::messages::update_features_response::UpdatableFeatureResult;
use kafka_protocol::messages::{UpdateFeaturesRequest, UpdateFeaturesResponse};
use kafka_protocol::protocol::VersionRange;

use super::api_versions::FEATURES;
use super::support::{KafkaApiError, authorize, error_fields};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// Up to here the response has a result for each feature.
const RESULTS_UNTIL: i16 = 1;
/// The types of updates: to a newer version, and to an older one with and without losses.
const UPGRADE: i8 = 1;
const SAFE_DOWNGRADE: i8 = 2;
const UNSAFE_DOWNGRADE: i8 = 3;
/// Features of Kafka that are about its quorum and its replicas.
const OTHER_FEATURES: [&str; 2] = ["eligible.leader.replicas.version", "kraft.version"];

impl ApiHandler for UpdateFeaturesRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 0, max: 2 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> UpdateFeaturesResponse {
        let allowed = authorize(kafka, context, Operation::Alter, Resource::CLUSTER);
        let updated = allowed.and_then(|()| {
            let mut updates = self.feature_updates.iter();
            updates
                .try_for_each(|update| check(kafka.cluster.this_node().0, context.version, update))
        });
        let (code, message) = error_fields(&updated);
        let results = match updated {
            Ok(()) if context.version <= RESULTS_UNTIL => self.feature_updates,
            Ok(()) | Err(_) => Vec::new(),
        };
        let result = |update: FeatureUpdateKey| {
            UpdatableFeatureResult::default().with_feature(update.feature).with_error_message(None)
        };
        UpdateFeaturesResponse::default()
            .with_error_code(code)
            .with_error_message(message)
            .with_results(results.into_iter().map(result).collect())
    }
}

/// Accepts what a feature is at, and says of everything else what Kafka says.
fn check(node_id: i32, version: i16, update: &FeatureUpdateKey) -> Result<(), KafkaApiError> {
    let level = update.max_version_level;
    let feature: String = update.feature.chars().take(100).collect();
    let refuse = |reason: String| {
        let message = format!(
            "The update failed for all features since the following feature had an error: Invalid update \
             version {level} for feature {feature}. {reason}"
        );
        Err(KafkaApiError::new(ResponseError::InvalidUpdateVersion, message))
    };
    let kind = match (version, update.allow_downgrade) {
        (0, false) => UPGRADE,
        (0, true) => SAFE_DOWNGRADE,
        _ => update.upgrade_type,
    };
    if !(UPGRADE..=UNSAFE_DOWNGRADE).contains(&kind) {
        return refuse("The controller does not support the given upgrade type.".to_owned());
    }
    if level < 0 {
        return refuse("A feature version cannot be less than 0.".to_owned());
    }
    match FEATURES.iter().find(|(name, _)| *name == &*update.feature) {
        Some((_, supported)) if *supported == level => Ok(()),
        Some((_, supported)) => refuse(format!(
            "Local controller {node_id} only supports versions {supported}-{supported}"
        )),
        // A feature that this server does not have is at 0.
        None if level == 0 && OTHER_FEATURES.contains(&&*update.feature) => Ok(()),
        None if level == 0 => refuse(format!("Feature {feature} not found.")),
        None => refuse(format!("Local controller {node_id} does not support this feature.")),
    }
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::StrBytes;

    use super::*;
    use crate::apis::test_server::{ask, kafka};

    #[tokio::test]
    async fn a_feature_stays_at_its_version() {
        let kafka = kafka();
        let update = |feature: &'static str, level: i16| {
            FeatureUpdateKey::default()
                .with_feature(StrBytes::from_static_str(feature))
                .with_max_version_level(level)
        };
        let down = |feature, level| update(feature, level).with_upgrade_type(SAFE_DOWNGRADE);
        for (updates, words) in [
            (vec![update("transaction.version", 2), update("group.version", 1)], ""),
            (vec![down("transaction.version", 1)], "only supports versions 2-2"),
            (
                vec![update("group.version", 1), update("nope", 1)],
                "nope. Local controller 1 does not",
            ),
            (vec![down("kraft.version", 0)], ""),
            (vec![down("nope", 0)], "Feature nope not found."),
            (vec![update("group.version", -1)], "cannot be less than 0"),
            (vec![update("group.version", 1).with_upgrade_type(9)], "given upgrade type"),
        ] {
            for version in 1..=2 {
                let request =
                    UpdateFeaturesRequest::default().with_feature_updates(updates.clone());
                let answer = ask(&kafka, version, request).await;
                let message = answer.error_message.as_ref().map_or("", |message| message);
                assert!(message.contains(words), "{message}");
                let is_refused = !words.is_empty();
                let code = ResponseError::InvalidUpdateVersion.code();
                assert_eq!(answer.error_code, if is_refused { code } else { 0 }, "{updates:?}");
                let results = if is_refused || version == 2 { 0 } else { updates.len() };
                assert_eq!(answer.results.len(), results);
            }
        }
    }
}
