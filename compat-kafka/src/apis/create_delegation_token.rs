//! CreateDelegationToken (38): a token for the client itself, or for somebody else if it may.

use std::sync::Arc;

use bytes::Bytes;
use engine::security::{DelegationToken, Operation, Resource, ResourceType};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::{CreateDelegationTokenRequest, CreateDelegationTokenResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::cluster_security::actor;
use super::delegation_tokens::{
    NO_TIME, check_tokens, failure, parts, refusal, timestamp, until, user,
};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// The most renewers of a token.
const RENEWERS_MAX: usize = 20;

impl ApiHandler for CreateDelegationTokenRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 3 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> CreateDelegationTokenResponse {
        let requester = context.connection.requester().principal.to_string();
        let owner = match &self.owner_principal_name {
            Some(name) if !name.is_empty() => {
                let kind = self.owner_principal_type.as_deref().unwrap_or_default();
                format!("{kind}:{}", &**name)
            }
            _ => requester.clone(),
        };
        let ((owner_type, owner_name), (requester_type, requester_name)) =
            (parts(&owner), parts(&requester));
        let mut response = CreateDelegationTokenResponse::default()
            .with_principal_type(owner_type)
            .with_principal_name(owner_name)
            .with_issue_timestamp_ms(NO_TIME)
            .with_expiry_timestamp_ms(NO_TIME)
            .with_max_timestamp_ms(NO_TIME);
        if context.version >= 3 {
            response = response
                .with_token_requester_principal_type(requester_type)
                .with_token_requester_principal_name(requester_name);
        }
        match create(kafka, context, self, owner, requester).await {
            Ok((id, token)) => {
                let key = kafka.engine.security().token_key();
                let secret = key.map(|key| key.token_secret(&id)).unwrap_or_default();
                response
                    .with_issue_timestamp_ms(timestamp(token.issued_ms))
                    .with_expiry_timestamp_ms(timestamp(token.expires_ms))
                    .with_max_timestamp_ms(timestamp(token.max_ms))
                    .with_token_id(StrBytes::from_string(id))
                    .with_hmac(Bytes::from(secret))
            }
            Err(error) => response.with_error_code(error.code()),
        }
    }
}

async fn create(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: CreateDelegationTokenRequest,
    owner: String,
    requester: String,
) -> Result<(String, DelegationToken), ResponseError> {
    check_tokens(kafka, context)?;
    if owner != requester {
        let resource = Resource { kind: ResourceType::User, name: &owner };
        let allowed = kafka.is_authorized(context, Operation::CreateTokens, resource);
        allowed.then_some(()).ok_or(ResponseError::DelegationTokenAuthorizationFailed)?;
        let (kind, name) = owner.split_once(':').unwrap_or(("", ""));
        user(kind, name)?;
    }
    if request.renewers.len() > RENEWERS_MAX {
        return Err(ResponseError::PolicyViolation);
    }
    let renewers = request.renewers.iter();
    let renewers = renewers.map(|renewer| user(&renewer.principal_type, &renewer.principal_name));
    let renewers = renewers.collect::<Result<Vec<String>, _>>()?;
    let options = &kafka.options;
    let max_ms = until(kafka, request.max_lifetime_ms, options.token_lifetime_max);
    let expires_ms = until(kafka, 0, options.token_renewal_max).min(max_ms);
    let issued_ms = kafka.engine.wall_now().0;
    let token = DelegationToken { owner, requester, renewers, issued_ms, expires_ms, max_ms };
    let (security, login) = (kafka.engine.security(), context.connection.authentication.login());
    let created = security.create_token(actor(context), token.clone(), login).await;
    let id = created.map_err(|error| failure(&error))?.map_err(refusal)?;
    Ok((id, token))
}
