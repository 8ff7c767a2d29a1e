//! Users, and rules of access.

use std::time::Duration;

use kafka_acls::{
    AclFilter, AclRule, Operation, PatternFilter, PatternType, Permission, ResourceType,
};
use kafka_protocol::ResponseError;
use kafka_protocol::messages::alter_user_scram_credentials_request::{
    ScramCredentialDeletion, ScramCredentialUpsertion,
};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::{
    AlterUserScramCredentialsRequest, CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
};
use kafka_protocol::protocol::StrBytes;
use scram::{ScramMechanism, random_bytes};

use crate::ClientError;
use crate::cluster::Client;

/// Kafka's number for anything, in filters.
const ANY: i8 = 1;
const PATTERN_MATCH: i8 = 2;
const SERVER_WAIT: Duration = Duration::from_secs(30);
/// The tagged field in an answer to AlterUserScramCredentials with the number of delegation tokens
/// that ended, as four bytes. Only our server sends it.
const ENDED_TOKENS_TAG: i32 = 10_000;

/// A user with a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserDescription {
    /// The name.
    pub name: String,
    /// The mechanisms by which the user can log in, each with the number of iterations of its
    /// password hash.
    pub mechanisms: Vec<(ScramMechanism, i32)>,
}

/// The sum of two counts, of which either may be unknown.
fn sum(left: Option<u32>, right: Option<u32>) -> Option<u32> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.saturating_add(right)),
        (left, right) => left.or(right),
    }
}

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

fn check(doing: &str, code: i16, message: Option<&StrBytes>) -> Result<(), ClientError> {
    match ResponseError::try_from_code(code) {
        None => Ok(()),
        Some(error) => Err(ClientError::kafka(doing, error, message.map(|message| &**message))),
    }
}

impl Client {
    /// The users with a password, by name.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses.
    pub async fn users(&mut self) -> Result<Vec<UserDescription>, ClientError> {
        let request = DescribeUserScramCredentialsRequest::default().with_users(None);
        let answer = self.call_any(&request).await?;
        check("list users", answer.error_code, answer.error_message.as_ref())?;
        let mut users = Vec::new();
        for user in answer.results {
            check("list users", user.error_code, user.error_message.as_ref())?;
            let infos = user.credential_infos.iter();
            let mechanisms = infos.filter_map(|info| {
                Some((ScramMechanism::of_code(info.mechanism)?, info.iterations))
            });
            let mechanisms = mechanisms.collect();
            users.push(UserDescription { name: user.user.to_string(), mechanisms });
        }
        users.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(users)
    }

    /// Sets the password of a user, who need not exist. It is salted and hashed here. Servers take
    /// one mechanism of a user at a time, so a failure may leave the others with the password
    /// before. Returns the number of delegation tokens that ended with an earlier password; `None`
    /// if there was none, or the server does not say.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses.
    pub async fn set_password(
        &mut self,
        user: &str,
        password: &str,
        mechanisms: &[ScramMechanism],
        iterations: u32,
    ) -> Result<Option<u32>, ClientError> {
        let mut ended_tokens = None;
        for mechanism in mechanisms {
            let salt = random_bytes::<24>();
            let salted = mechanism.salted_password(password, &salt, iterations);
            let upsertion = ScramCredentialUpsertion::default()
                .with_name(text(user))
                .with_mechanism(mechanism.code())
                .with_iterations(iterations as i32)
                .with_salt(salt.to_vec().into())
                .with_salted_password(salted.to_vec().into());
            let request =
                AlterUserScramCredentialsRequest::default().with_upsertions(vec![upsertion]);
            let doing = format!("set the password of {user} for {mechanism}");
            ended_tokens = sum(ended_tokens, self.alter_user(&doing, &request).await?);
        }
        Ok(ended_tokens)
    }

    /// Removes a user's password in all mechanisms, so that nobody can log in as that user. Returns
    /// the number of delegation tokens that ended; `None` if the server does not say.
    ///
    /// # Errors
    /// There is no such user; or the server cannot be asked, or refuses.
    pub async fn remove_user(&mut self, user: &str) -> Result<Option<u32>, ClientError> {
        let found_user = self.users().await?.into_iter().find(|candidate| candidate.name == user);
        let found_user = found_user.ok_or_else(|| ClientError::UnknownUser(user.to_owned()))?;
        let mut ended_tokens = None;
        for (mechanism, _) in found_user.mechanisms {
            let deletion = ScramCredentialDeletion::default()
                .with_name(text(user))
                .with_mechanism(mechanism.code());
            let request =
                AlterUserScramCredentialsRequest::default().with_deletions(vec![deletion]);
            ended_tokens =
                sum(ended_tokens, self.alter_user(&format!("remove {user}"), &request).await?);
        }
        Ok(ended_tokens)
    }

    /// Returns how many delegation tokens ended, if the server says it.
    async fn alter_user(
        &mut self,
        doing: &str,
        request: &AlterUserScramCredentialsRequest,
    ) -> Result<Option<u32>, ClientError> {
        let controller = self.controller().await?;
        let answer = self.call(&controller, request, SERVER_WAIT).await?;
        let mut ended_tokens = None;
        for user in &answer.results {
            check(doing, user.error_code, user.error_message.as_ref())?;
            let count = user.unknown_tagged_fields.get(&ENDED_TOKENS_TAG);
            let count = count.and_then(|count| count.first_chunk().copied());
            ended_tokens = sum(ended_tokens, count.map(u32::from_be_bytes));
        }
        Ok(ended_tokens)
    }

    /// The rules that `filter` finds.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses.
    pub async fn acls(&mut self, filter: &AclFilter) -> Result<Vec<AclRule>, ClientError> {
        let request = DescribeAclsRequest::default()
            .with_resource_type_filter(filter.resource_type.map_or(ANY, ResourceType::code))
            .with_resource_name_filter(filter.name.as_deref().map(text))
            .with_pattern_type_filter(pattern_code(filter.pattern))
            .with_principal_filter(filter.principal.as_deref().map(text))
            .with_host_filter(filter.host.as_deref().map(text))
            .with_operation(filter.operation.map_or(ANY, Operation::code))
            .with_permission_type(filter.permission.map_or(ANY, Permission::code));
        let answer = self.call_any(&request).await?;
        check("list rules", answer.error_code, answer.error_message.as_ref())?;
        let mut rules = Vec::new();
        for resource in &answer.resources {
            for acl in &resource.acls {
                rules.push(binding(AclBindingFields {
                    resource_type: resource.resource_type,
                    pattern: resource.pattern_type,
                    name: &resource.resource_name,
                    principal: &acl.principal,
                    host: &acl.host,
                    operation: acl.operation,
                    permission: acl.permission_type,
                })?);
            }
        }
        rules.sort();
        Ok(rules)
    }

    /// Adds rules. One that is there already stays.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses one of them.
    pub async fn add_acls(&mut self, rules: &[AclRule]) -> Result<(), ClientError> {
        let creations = rules.iter().map(|rule| {
            AclCreation::default()
                .with_resource_type(rule.resource_type.code())
                .with_resource_name(text(&rule.name))
                .with_resource_pattern_type(rule.pattern.code())
                .with_principal(text(&rule.principal))
                .with_host(text(&rule.host))
                .with_operation(rule.operation.code())
                .with_permission_type(rule.permission.code())
        });
        let request = CreateAclsRequest::default().with_creations(creations.collect());
        let controller = self.controller().await?;
        let answer = self.call(&controller, &request, SERVER_WAIT).await?;
        for (rule, result) in rules.iter().zip(&answer.results) {
            let doing = format!("add the rule: {rule}");
            check(&doing, result.error_code, result.error_message.as_ref())?;
        }
        Ok(())
    }

    /// Removes these rules, and no others; returns those that were there.
    ///
    /// # Errors
    /// The server cannot be asked, or refuses.
    pub async fn remove_acls(&mut self, rules: &[AclRule]) -> Result<Vec<AclRule>, ClientError> {
        let filters = rules.iter().map(|rule| {
            DeleteAclsFilter::default()
                .with_resource_type_filter(rule.resource_type.code())
                .with_resource_name_filter(Some(text(&rule.name)))
                .with_pattern_type_filter(rule.pattern.code())
                .with_principal_filter(Some(text(&rule.principal)))
                .with_host_filter(Some(text(&rule.host)))
                .with_operation(rule.operation.code())
                .with_permission_type(rule.permission.code())
        });
        let request = DeleteAclsRequest::default().with_filters(filters.collect());
        let controller = self.controller().await?;
        let answer = self.call(&controller, &request, SERVER_WAIT).await?;
        let mut removed = Vec::new();
        for result in &answer.filter_results {
            check("remove rules", result.error_code, result.error_message.as_ref())?;
            for acl in &result.matching_acls {
                check("remove rules", acl.error_code, acl.error_message.as_ref())?;
                removed.push(binding(AclBindingFields {
                    resource_type: acl.resource_type,
                    pattern: acl.pattern_type,
                    name: &acl.resource_name,
                    principal: &acl.principal,
                    host: &acl.host,
                    operation: acl.operation,
                    permission: acl.permission_type,
                })?);
            }
        }
        Ok(removed)
    }
}

fn pattern_code(pattern: PatternFilter) -> i8 {
    match pattern {
        PatternFilter::Any => ANY,
        PatternFilter::Match => PATTERN_MATCH,
        PatternFilter::Exactly(pattern) => pattern.code(),
    }
}

/// A rule as a response has it: with Kafka's numbers.
struct AclBindingFields<'a> {
    resource_type: i8,
    pattern: i8,
    name: &'a str,
    principal: &'a str,
    host: &'a str,
    operation: i8,
    permission: i8,
}

fn binding(wire: AclBindingFields<'_>) -> Result<AclRule, ClientError> {
    let AclBindingFields { resource_type, pattern, name, principal, host, operation, permission } =
        wire;
    let unknown = |field: &str, code: i8| {
        let message =
            format!("it has a {field} of the number {code}, which this version does not know");
        ClientError::kafka("list rules", ResponseError::UnsupportedVersion, Some(&message))
    };
    Ok(AclRule {
        resource_type: ResourceType::of_code(resource_type)
            .ok_or_else(|| unknown("type of resources", resource_type))?,
        pattern: PatternType::of_code(pattern)
            .ok_or_else(|| unknown("type of patterns", pattern))?,
        name: name.to_owned(),
        principal: principal.to_owned(),
        host: host.to_owned(),
        operation: Operation::of_code(operation).ok_or_else(|| unknown("operation", operation))?,
        permission: Permission::of_code(permission)
            .ok_or_else(|| unknown("permission", permission))?,
    })
}
