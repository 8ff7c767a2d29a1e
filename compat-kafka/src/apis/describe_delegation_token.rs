//! DescribeDelegationToken (41): the tokens that the client has, or may see, and their secrets.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use engine::security::{DelegationToken, Operation, Resource, ResourceType};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::describe_delegation_token_response::{
    DescribedDelegationToken, DescribedDelegationTokenRenewer,
};
use kafka_protocol::messages::{DescribeDelegationTokenRequest, DescribeDelegationTokenResponse};
use kafka_protocol::protocol::{StrBytes, VersionRange};

use super::delegation_tokens::{check_tokens, parts, timestamp};
use crate::kafka_server::KafkaServer;
use crate::request::{ApiHandler, RequestContext};

/// From here on a response says who asked for a token.
const REQUESTER_SINCE: i16 = 3;

impl ApiHandler for DescribeDelegationTokenRequest {
    const SERVED_VERSIONS: VersionRange = VersionRange { min: 1, max: 3 };

    async fn handle(
        self,
        kafka: &Arc<KafkaServer>,
        context: &RequestContext,
    ) -> DescribeDelegationTokenResponse {
        match describe(kafka, context, self) {
            Ok(tokens) => DescribeDelegationTokenResponse::default().with_tokens(tokens),
            Err(error) => DescribeDelegationTokenResponse::default().with_error_code(error.code()),
        }
    }
}

fn describe(
    kafka: &KafkaServer,
    context: &RequestContext,
    request: DescribeDelegationTokenRequest,
) -> Result<Vec<DescribedDelegationToken>, ResponseError> {
    check_tokens(kafka, context)?;
    let owners: Option<BTreeSet<String>> = request.owners.map(|owners| {
        let name = |owner: &kafka_protocol::messages::describe_delegation_token_request::DescribeDelegationTokenOwner| {
            format!("{}:{}", &*owner.principal_type, &*owner.principal_name)
        };
        owners.iter().map(name).collect()
    });
    let client = context.connection.requester().principal.to_string();
    let now = kafka.engine.wall_now().0;
    let is_asked_for = |token: &DelegationToken| match &owners {
        None => true,
        Some(owners) => {
            let others = token.renewers.iter().chain([&token.requester]);
            owners.contains(&token.owner) || others.into_iter().any(|name| owners.contains(name))
        }
    };
    let tokens: Vec<(String, DelegationToken)> = {
        let state = kafka.engine.security().state();
        let tokens = state.tokens().iter();
        let matching = tokens.filter(|(_, token)| !token.is_expired(now) && is_asked_for(token));
        matching.map(|(id, token)| (id.clone(), token.clone())).collect()
    };
    let is_shown = |id: &str, token: &DelegationToken| {
        let token_itself = Resource { kind: ResourceType::DelegationToken, name: id };
        let owner = Resource { kind: ResourceType::User, name: &token.owner };
        token.is_of(&client)
            || kafka.is_authorized(context, Operation::Describe, token_itself)
            || kafka.is_authorized(context, Operation::DescribeTokens, owner)
    };
    let visible = tokens.iter().filter(|(id, token)| is_shown(id, token));
    Ok(visible.map(|(id, token)| described(kafka, context.version, id, token)).collect())
}

fn described(
    kafka: &KafkaServer,
    version: i16,
    id: &str,
    token: &DelegationToken,
) -> DescribedDelegationToken {
    let (owner_type, owner_name) = parts(&token.owner);
    let renewer = |renewer: &String| {
        let (kind, name) = parts(renewer);
        DescribedDelegationTokenRenewer::default()
            .with_principal_type(kind)
            .with_principal_name(name)
    };
    let key = kafka.engine.security().token_key();
    let secret = key.map(|key| key.token_secret(id)).unwrap_or_default();
    let described = DescribedDelegationToken::default()
        .with_principal_type(owner_type)
        .with_principal_name(owner_name)
        .with_issue_timestamp(timestamp(token.issued_ms))
        .with_expiry_timestamp(timestamp(token.expires_ms))
        .with_max_timestamp(timestamp(token.max_ms))
        .with_token_id(StrBytes::from_string(id.to_owned()))
        .with_hmac(Bytes::from(secret))
        .with_renewers(token.renewers.iter().map(renewer).collect());
    if version < REQUESTER_SINCE {
        return described;
    }
    let (kind, name) = parts(&token.requester);
    described.with_token_requester_principal_type(kind).with_token_requester_principal_name(name)
}
