//! Errors between the client and a server.

use std::io;
use std::time::Duration;

use history_documents::ServerRefusal;
use kafka_protocol::ResponseError;

/// The reason why a call failed. Each variant needs a different reaction of the caller.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address is not HOST:PORT.
    #[error("{0:?} is not an address: give HOST:PORT, or several with commas between")]
    BadAddress(String),
    /// The connection failed: start the server, or correct the address.
    #[error(
        "cannot reach {address}: {}; is the server running? start one with `freezeframe serve`",
        io_error_message(.cause)
    )]
    Unreachable {
        /// The address of the server.
        address: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The handshake of TLS failed: the two sides do not trust each other.
    #[error(
        "no secure connection to {address}: {cause}; give the certificates that sign for it with --tls-trust, and where it asks who you are, yours with --tls-key"
    )]
    Insecure {
        /// The server's `HOST:PORT`.
        address: String,
        /// The error of TLS.
        cause: io::Error,
    },
    /// Authentication failed: of this client, or of the server.
    #[error("log in at {address} as {user}: {why}")]
    Login {
        /// The server's `HOST:PORT`.
        address: String,
        /// The name that we gave.
        user: String,
        /// The problem, in words.
        why: String,
    },
    /// The connection broke before the response. The server may have executed the request.
    #[error("{address} closed the connection during {during}{}", closed_hint(.during))]
    Closed {
        /// The server's `HOST:PORT`.
        address: String,
        /// The request in progress.
        during: &'static str,
    },
    /// The response did not arrive in time. The server may have executed the request.
    #[error("{address} gave no answer to {during} within {} s", .after.as_secs_f32())]
    TimedOut {
        /// The server's `HOST:PORT`.
        address: String,
        /// The request in progress.
        during: &'static str,
        /// The time that the client waited.
        after: Duration,
    },
    /// Another I/O error of the connection.
    #[error("{address} failed during {during}: {}", io_error_message(.cause))]
    Io {
        /// The server's `HOST:PORT`.
        address: String,
        /// The request in progress.
        during: &'static str,
        /// The system's error.
        cause: io::Error,
    },
    /// The response violates the protocol: the port belongs to another service.
    #[error("{address} does not answer as a Kafka server does: {what}")]
    Malformed {
        /// The server's `HOST:PORT`.
        address: String,
        /// The problem with the response, in words.
        what: String,
    },
    /// No version of this API is supported by both sides.
    #[error(
        "{address} does not serve {api} in a version we speak: ours are {ours}, theirs {}",
        .theirs.as_deref().unwrap_or("none")
    )]
    Unsupported {
        /// The server's `HOST:PORT`.
        address: String,
        /// The API.
        api: &'static str,
        /// The versions that this library supports.
        ours: String,
        /// The versions that the server supports.
        theirs: Option<String>,
    },
    /// The topic does not exist.
    #[error("there is no topic {0}")]
    UnknownTopic(String),
    /// The topic exists, but the partition does not.
    #[error("topic {topic} has no partition {partition}; it has {count}, counted from 0")]
    UnknownPartition {
        /// The topic.
        topic: String,
        /// The requested partition.
        partition: i32,
        /// The number of partitions of the topic.
        count: usize,
    },
    /// The group does not exist.
    #[error("there is no group {0}")]
    UnknownGroup(String),
    /// No user of that name has a password.
    #[error("there is no user {0}; list them with `freezeframe users`")]
    UnknownUser(String),
    /// The server refused the request with one of Kafka's error codes.
    #[error("{doing}: {error} ({}){}", .error.code(), .message.as_deref().map(|m| format!(": {m}")).unwrap_or_default())]
    Kafka {
        /// The attempted operation.
        doing: String,
        /// Kafka's error.
        error: ResponseError,
        /// The server's message.
        message: Option<String>,
    },
    /// The server does not support our extension API: use another server, or do not read the past.
    #[error(
        "{address} is not a Freezeframe server: it speaks Kafka, but does not know how to answer questions about the past"
    )]
    NotFreezeframe {
        /// The server's `HOST:PORT`.
        address: String,
    },
    /// Records cannot move by RDMA, and the options allow nothing else.
    #[error("records cannot move by RDMA between here and {address}: {why}")]
    NoLink {
        /// The server's `HOST:PORT`.
        address: String,
        /// The part that is missing, or that failed.
        why: String,
    },
    /// The server did not begin with the request: a clock is wrong, for example.
    #[error("{address} refused {during}: {why}")]
    Refused {
        /// The server's `HOST:PORT`.
        address: String,
        /// The request.
        during: &'static str,
        /// The server's words.
        why: String,
    },
    /// The server understood a request of the extension API, and refused it.
    #[error("{0}")]
    History(ServerRefusal),
}

impl ClientError {
    pub(crate) fn kafka(
        doing: impl Into<String>,
        error: ResponseError,
        message: Option<&str>,
    ) -> ClientError {
        let message = message.filter(|text| !text.is_empty()).map(str::to_owned);
        ClientError::Kafka { doing: doing.into(), error, message }
    }

    /// Kafka's error code, if the server responded with one.
    pub fn response_error(&self) -> Option<ResponseError> {
        match self {
            ClientError::Kafka { error, .. } => Some(*error),
            ClientError::UnknownTopic(_) => Some(ResponseError::UnknownTopicOrPartition),
            _ => None,
        }
    }

    /// True if the server refused the request, but may accept the same request a little later.
    pub fn is_retriable(&self) -> bool {
        use ResponseError as E;
        matches!(
            self,
            ClientError::Kafka {
                error: E::LeaderNotAvailable
                    | E::NotLeaderOrFollower
                    | E::CoordinatorLoadInProgress
                    | E::CoordinatorNotAvailable
                    | E::NotCoordinator
                    | E::NotController
                    | E::FencedLeaderEpoch
                    | E::UnknownLeaderEpoch
                    | E::OffsetNotAvailable
                    | E::KafkaStorageError
                    | E::ReplicaNotAvailable,
                ..
            }
        )
    }

    /// True if the server is unreachable or has closed the connection. It may come back.
    pub fn is_connection_error(&self) -> bool {
        matches!(
            self,
            ClientError::Unreachable { .. } | ClientError::Closed { .. } | ClientError::Io { .. }
        )
    }
}

/// The advice where a server closes the connection without a word.
fn closed_hint(during: &str) -> &'static str {
    match during {
        // The first request of a client that has not authenticated.
        "Metadata" => "; if it asks who you are, give --sasl-user and --sasl-password-file",
        _ => "",
    }
}

/// The system's message without "(os error 111)".
fn io_error_message(error: &io::Error) -> String {
    let text = match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    };
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_server_is_reported_with_what_to_do() {
        let error = ClientError::Unreachable {
            address: "127.0.0.1:9092".to_owned(),
            cause: io::Error::from_raw_os_error(111),
        };
        assert_eq!(
            error.to_string(),
            "cannot reach 127.0.0.1:9092: connection refused; is the server running? start one with `freezeframe serve`"
        );
    }

    #[test]
    fn a_kafka_error_carries_its_name_its_code_and_the_servers_words() {
        let error = ClientError::kafka(
            "create topic a",
            ResponseError::TopicAlreadyExists,
            Some("Topic 'a' already exists."),
        );
        assert_eq!(
            error.to_string(),
            "create topic a: TopicAlreadyExists (36): Topic 'a' already exists."
        );
    }
}
