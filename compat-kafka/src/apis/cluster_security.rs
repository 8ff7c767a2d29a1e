//! Shared code of the APIs of access control lists, users and quotas.

use engine::security::{Actor, Operation, Resource, SecurityError};
use kafka_errors::security_error;
use kafka_protocol::ResponseError;
use kafka_protocol::protocol::StrBytes;

use super::support::KafkaApiError;
use crate::kafka_server::KafkaServer;
use crate::request::RequestContext;

/// The most changes that Kafka makes for one request.
pub(super) const CHANGES_MAX: usize = 10_000;
/// The longest name that all versions of the protocol can carry.
const NAME_BYTES_MAX: usize = i16::MAX as usize;
/// The most bytes of a name that a message shows.
const SHOWN_BYTES_MAX: usize = 1000;

/// Checks that the client may do `operation` to the cluster.
pub(super) fn check_cluster(
    kafka: &KafkaServer,
    context: &RequestContext,
    operation: Operation,
) -> Result<(), KafkaApiError> {
    let authorized = kafka.authorize(context, operation, Resource::CLUSTER);
    authorized.map_err(|error| KafkaApiError::new(error, "Cluster authorization failed."))
}

/// Checks that access control lists are in force. Kafka keeps none otherwise.
pub(super) fn check_authorizer(
    kafka: &KafkaServer,
    message: &'static str,
) -> Result<(), KafkaApiError> {
    if kafka.engine.security().options().authorizer.is_enabled {
        Ok(())
    } else {
        Err(KafkaApiError::new(ResponseError::SecurityDisabled, message))
    }
}

/// The client, as the actor of a change.
pub(super) fn actor(context: &RequestContext) -> Actor {
    let requester = context.connection.requester();
    Actor { principal: requester.principal.to_string(), from: requester.host().to_owned() }
}

/// Refuses a request that makes too many changes at once.
pub(super) fn check_change_count(count: usize) -> Result<(), KafkaApiError> {
    if count <= CHANGES_MAX {
        Ok(())
    } else {
        Err(KafkaApiError::new(
            ResponseError::PolicyViolation,
            "Unable to perform excessively large batch operation.",
        ))
    }
}

pub(super) fn invalid_request(message: impl Into<String>) -> KafkaApiError {
    KafkaApiError::new(ResponseError::InvalidRequest, message)
}

/// Refuses a name that older versions could not name. A version with short strings cannot ask for
/// one.
pub(super) fn check_name_length(field: &str, name: &str) -> Result<(), KafkaApiError> {
    if name.len() <= NAME_BYTES_MAX {
        Ok(())
    } else {
        Err(invalid_request(format!("{field} is longer than {NAME_BYTES_MAX} bytes")))
    }
}

/// A name as a message has it, which has to fit into a short string too.
pub(super) fn shown(name: &str) -> &str {
    &name[..name.floor_char_boundary(SHOWN_BYTES_MAX)]
}

/// A name, shortened for a message that comes once for each partition of a request: a partition
/// takes four bytes there.
pub(super) fn shown_to_each(name: &str) -> &str {
    &name[..name.floor_char_boundary(64)]
}

/// An optional text as the engine takes it.
pub(super) fn owned(text: Option<&StrBytes>) -> Option<String> {
    text.map(StrBytes::to_string)
}

impl From<SecurityError> for KafkaApiError {
    fn from(error: SecurityError) -> KafkaApiError {
        KafkaApiError::new(security_error(&error), error.to_string())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use bytes::BytesMut;
    use engine::security::{
        AuthorizerOptions, ChangeLogEntry, Principal, SecurityChange, SecurityOptions,
    };
    use engine::{Engine, EngineOptions, Offset, WaitPolicy};
    use hlc::{Cut, ManualClock, SysTime};
    use kafka_protocol::protocol::{Decodable, Encodable};
    use storage::disk::MemoryDisk;

    use super::*;
    use crate::options::KafkaOptions;
    use crate::request::{ApiHandler, ConnectionState};
    use kafka_format::KafkaFormat;

    /// A server that authorizes requests, or does not, and its clock. `admin` may do everything.
    pub(in crate::apis) struct SecurityFixture {
        pub(in crate::apis) kafka: Arc<KafkaServer>,
        pub(in crate::apis) clock: Arc<ManualClock>,
    }

    pub(in crate::apis) fn fixture_with(options: SecurityOptions) -> SecurityFixture {
        let clock = Arc::new(ManualClock::at(SysTime(1_795_252_948_000)));
        let engine = Engine::open(
            Arc::new(MemoryDisk::new()),
            EngineOptions { security: options, ..EngineOptions::default() },
            Arc::clone(&clock) as Arc<dyn hlc::WallClock>,
            Arc::new(KafkaFormat { decompressed_bytes_max: 1 << 20 }),
        );
        let kafka = KafkaServer::new(Arc::new(engine.unwrap()), KafkaOptions::default()).unwrap();
        SecurityFixture { kafka, clock }
    }

    pub(in crate::apis) fn options(is_enabled: bool) -> SecurityOptions {
        let authorizer = AuthorizerOptions {
            is_enabled,
            super_users: BTreeSet::from(["User:admin".to_owned()]),
            allow_everyone_if_no_acl_found: false,
        };
        SecurityOptions { authorizer, ..SecurityOptions::default() }
    }

    pub(in crate::apis) fn fixture() -> SecurityFixture {
        fixture_with(options(true))
    }

    impl SecurityFixture {
        /// Sends a request as that user, and decodes the response as a client of that version does.
        pub(in crate::apis) async fn ask_as<R: ApiHandler>(
            &self,
            user: &str,
            version: i16,
            request: R,
        ) -> R::Response {
            let connection = ConnectionState::for_test_as(Principal::user(user));
            self.ask_over(connection, version, request).await
        }

        /// The same, over this connection.
        pub(in crate::apis) async fn ask_over<R: ApiHandler>(
            &self,
            connection: Arc<ConnectionState>,
            version: i16,
            request: R,
        ) -> R::Response {
            let context = RequestContext {
                api_key: R::KEY,
                version,
                correlation_id: 1,
                client_id: "test".to_owned(),
                peer: ([127, 0, 0, 1], 50_000).into(),
                local: ([127, 0, 0, 1], 9092).into(),
                connection,
                received_at: tokio::time::Instant::now(),
                quota: None,
            };
            let mut bytes = BytesMut::new();
            request.handle(&self.kafka, &context).await.encode(&mut bytes, version).unwrap();
            let mut bytes = bytes.freeze();
            let response = R::Response::decode(&mut bytes, version).unwrap();
            assert!(bytes.is_empty());
            response
        }

        pub(in crate::apis) async fn ask<R: ApiHandler>(
            &self,
            version: i16,
            request: R,
        ) -> R::Response {
            self.ask_as("admin", version, request).await
        }

        /// The entries of the log of security.
        pub(in crate::apis) async fn change_log(&self) -> Vec<ChangeLogEntry> {
            self.clock.advance(std::time::Duration::from_secs(1));
            let now = Cut::through(self.kafka.engine.frontier());
            let security = self.kafka.engine.security();
            let changes = security.change_log(Offset(0), now, WaitPolicy::Refuse, 1000).await;
            changes.unwrap().entries
        }

        /// The changes of the only entry, which `admin` made.
        pub(in crate::apis) async fn only_entry(&self) -> Vec<SecurityChange> {
            let mut entries = self.change_log().await;
            assert_eq!(entries.len(), 1, "{entries:?}");
            let actor = Actor { principal: "User:admin".to_owned(), from: "127.0.0.1".to_owned() };
            assert_eq!(entries[0].by, actor);
            entries.remove(0).changes
        }
    }

    pub(in crate::apis) fn text(text: &str) -> StrBytes {
        StrBytes::from_string(text.to_owned())
    }

    /// Asserts that a response has this error, with these words.
    pub(in crate::apis) fn assert_refused(
        code: i16,
        message: &Option<StrBytes>,
        error: ResponseError,
        words: &str,
    ) {
        let message = message.as_ref().map_or("", |message| message);
        assert_eq!(code, error.code(), "{words}: {message}");
        assert!(message.contains(words), "{message}, not {words}");
    }

    #[test]
    fn a_long_name_is_cut_between_two_letters() {
        let long_name = "ä".repeat(501);
        assert_eq!(shown(&long_name).len(), 1000);
        assert_eq!(shown(&format!("x{long_name}")).len(), 999);
        assert_eq!(shown("short"), "short");
    }
}
