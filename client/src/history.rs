//! Requests that Kafka's protocol cannot express: about the past, and about pins. API 17990 ("FF"),
//! version 0.
//!
//! Request and response are one JSON document each. A server that does not know the API closes the
//! connection. If it then still answers as a Kafka server does, it is not Freezeframe.
//!
//! All other requests use Kafka's protocol: a topic as of a moment is a topic with another name
//! ([`moment_topic`]).

mod diff;
mod groups;
mod security;

use std::time::Duration;

use bytes::Bytes;
use history_documents::{
    BudgetsRequest, BudgetsResponse, GroupMomentRequest, HealthRequest, HistoryRequest,
    MomentRequest, PinRequest, PinResponse, PinsRequest, PinsResponse, RefusalDocument,
    TopicsRequest, UnpinRequest, UnpinResponse,
};
use hlc::{Cut, Moment, MomentSelector, TOPIC_MARK};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Client, ClientError};

pub use diff::DiffQuery;
pub use history_documents::{
    AclDescription, BeforeAndAfter, BudgetDescription, BudgetHolder, CommittedOffsetAtMoment,
    CutPartitionOffsets, CutRequest, CutResponse, DiffCategory, DiffChange, DiffResponse,
    GroupAtMoment, GroupMembership, GroupOffsetsAtMoment, GroupSeekResult, GroupsResponse,
    HealthFinding, HealthLevel, HealthResponse, HistoryErrorCode, Isolation, MechanismAtMoment,
    MemberAtMoment, MomentResponse, OffsetAtMoment, OffsetsResponse, PendingMomentPolicy,
    PinDescription, QuotaEntityNames, QuotasAtMoment, ReceivedErrorCode, SecurityChangeDescription,
    SecurityLogEntry, SecurityLogRequest, SecurityLogResponse, SeekGroupRequest, SeekOffsetChange,
    ServerRefusal, SkippedOffset, Stamp, TopicAtMoment, TopicsResponse, UserAtMoment,
};

/// The key of our own API: "FF".
pub const API_KEY: i16 = i16::from_be_bytes(*b"FF");

/// The longest time that a server may wait until a moment is final, if the request does not set a
/// limit. The server's own patience is usually shorter.
const SERVER_WAIT_MAX: Duration = Duration::from_secs(60);

/// The topic name that reads a topic as of a moment with any Kafka client. All clients accept its
/// characters.
///
/// ```
/// let ask = "u5@s6".parse().unwrap();
/// assert_eq!(client::history::moment_topic("orders", &ask), "orders.__at.u5.as.s6");
/// ```
pub fn moment_topic(topic: &str, ask: &MomentSelector) -> String {
    format!("{topic}{TOPIC_MARK}{}", ask.to_string().replace('@', ".as."))
}

/// The prefix of an error response.
const REFUSAL_PREFIX: &[u8] = b"{\"error\"";

/// Parses a response: the requested document, or the refusal of the server.
fn parse_response<T: DeserializeOwned>(
    document: &[u8],
) -> Result<Result<T, ServerRefusal>, serde_json::Error> {
    let refusal = || serde_json::from_slice::<RefusalDocument<ReceivedErrorCode>>(document);
    if document.starts_with(REFUSAL_PREFIX) {
        return refusal().map(|document| Err(document.error));
    }
    serde_json::from_slice(document)
        .map(Ok)
        .or_else(|error| refusal().map(|document| Err(document.error)).map_err(|_| error))
}

/// Milliseconds in a document.
pub(crate) fn document_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Client {
    /// The end of each partition of `topics`, or of all topics, at `at`. By user time, that is the
    /// first record at or after it, as of the moment that the response names.
    ///
    /// # Errors
    /// [`ClientError::NotFreezeframe`], [`ClientError::History`] and others.
    pub async fn cut(
        &mut self,
        at: &Moment,
        topics: Option<&[String]>,
        when: PendingMomentPolicy,
        patience: Duration,
    ) -> Result<CutResponse, ClientError> {
        let cut = CutRequest {
            at: at.to_string(),
            topics: topics.map(<[String]>::to_vec),
            when,
            patience_ms: Some(document_ms(patience)),
            isolation: Isolation::default(),
        };
        self.cut_of(cut).await
    }

    /// [`Client::cut`], as a document asks for it.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn cut_of(&mut self, request: CutRequest) -> Result<CutResponse, ClientError> {
        let patience = request.patience_ms.map_or(SERVER_WAIT_MAX, Duration::from_millis);
        self.request_history(HistoryRequest::Cut(request), patience).await
    }

    /// The topics that existed at `at`, or exist now.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn topics_at(&mut self, at: Option<&Moment>) -> Result<TopicsResponse, ClientError> {
        let topics = TopicsRequest { at: at.map(Moment::to_string), ..TopicsRequest::default() };
        self.request_history(HistoryRequest::Topics(topics), Duration::ZERO).await
    }

    /// The committed offsets of `group`, or of every group, as of `at` or now.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn offsets_at(
        &mut self,
        at: Option<&Moment>,
        group: Option<&str>,
    ) -> Result<OffsetsResponse, ClientError> {
        let offsets = HistoryRequest::Offsets(group_moment_request(at, group));
        self.request_history(offsets, Duration::ZERO).await
    }

    /// Sets a pin: for this long from now, the server keeps everything of `topics`, or of all
    /// topics, that `at` admits.
    ///
    /// Setting the same pin again extends it, and never shortens it.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn pin(
        &mut self,
        name: &str,
        at: &Moment,
        kept_for: Duration,
        topics: Option<&[String]>,
    ) -> Result<PinDescription, ClientError> {
        let pin = PinRequest {
            name: name.to_owned(),
            at: at.to_string(),
            for_ms: document_ms(kept_for),
            topics: topics.map(<[String]>::to_vec),
        };
        let PinResponse { pin } =
            self.request_history(HistoryRequest::Pin(pin), SERVER_WAIT_MAX).await?;
        Ok(pin)
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn unpin(&mut self, name: &str) -> Result<(), ClientError> {
        let unpin = HistoryRequest::Unpin(UnpinRequest { name: name.to_owned() });
        self.request_history::<UnpinResponse>(unpin, Duration::ZERO).await.map(drop)
    }

    /// All pins, by name.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn pins(&mut self) -> Result<Vec<PinDescription>, ClientError> {
        let pins = HistoryRequest::Pins(PinsRequest {});
        let PinsResponse { pins } = self.request_history(pins, Duration::ZERO).await?;
        Ok(pins)
    }

    /// Now, as the server knows it: with all that was acknowledged before.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn now(&mut self) -> Result<Cut, ClientError> {
        let answer = self.moment(None).await?;
        match answer.at.parse() {
            Ok(Moment::Sys(now)) => Ok(now),
            _ => Err(ClientError::Malformed {
                address: self.any_server().await?,
                what: format!("{:?} is no moment of system time", answer.at),
            }),
        }
    }

    /// The moment that a text means: a spelled one, words, or a name; of no text, now.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn moment(&mut self, at: Option<&str>) -> Result<MomentResponse, ClientError> {
        let request = HistoryRequest::Moment(MomentRequest { at: at.map(str::to_owned) });
        self.request_history(request, Duration::ZERO).await
    }

    /// The budgets that clients of the server share, by name.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn budgets(&mut self) -> Result<Vec<BudgetDescription>, ClientError> {
        let request = HistoryRequest::Budgets(BudgetsRequest {});
        let BudgetsResponse { budgets } = self.request_history(request, Duration::ZERO).await?;
        Ok(budgets)
    }

    /// The health of the server, with its findings.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn health(&mut self) -> Result<HealthResponse, ClientError> {
        self.request_history(HistoryRequest::Health(HealthRequest {}), Duration::ZERO).await
    }

    /// Sends a request, an object with a field `op`, and parses the response.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn request_history<T: DeserializeOwned>(
        &mut self,
        request: impl Serialize,
        server_wait: Duration,
    ) -> Result<T, ClientError> {
        let document = serde_json::to_vec(&request).expect("a question can be written as JSON");
        let (address, response) = self.request_document(document, server_wait).await?;
        match parse_response(&response) {
            Ok(response) => response.map_err(ClientError::History),
            Err(error) => Err(ClientError::Malformed {
                address,
                what: format!("an answer about the past does not read: {error}"),
            }),
        }
    }

    /// Sends a request, and returns the response and the server's address. Not generic, unlike its
    /// caller: a program that asks twenty questions has it once.
    async fn request_document(
        &mut self,
        document: Vec<u8>,
        server_wait: Duration,
    ) -> Result<(String, Bytes), ClientError> {
        match self.call_extension(API_KEY, &document, server_wait).await {
            Err(ClientError::Closed { address, .. }) => {
                // Finds out whether the server is gone, or only does not know the API.
                self.any_server().await?;
                Err(ClientError::NotFreezeframe { address })
            }
            response => Ok((self.any_server().await?, response?)),
        }
    }
}

/// A request for groups or offsets of `at`, or of now.
fn group_moment_request(at: Option<&Moment>, group: Option<&str>) -> GroupMomentRequest {
    GroupMomentRequest {
        at: at.map(Moment::to_string),
        group: group.map(str::to_owned),
        ..GroupMomentRequest::default()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use hlc::{Cut, Hlc, SysTime};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::Options;

    #[test]
    fn the_key_is_ff() {
        assert_eq!(API_KEY, 17990);
    }

    #[test]
    fn a_moment_topic_is_read_back_as_the_topic_and_the_ask_that_it_was_made_of() {
        for text in ["s5", "s5..s6", "u5", "u5@s6", "sh0000000000050001", "u1@s9..u2@s9"] {
            let ask: MomentSelector = text.parse().unwrap();
            let name = moment_topic("a.b", &ask);
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)));
            assert_eq!(hlc::split_moment_topic(&name), Some(("a.b", Ok(ask))), "{name}");
        }
    }

    #[test]
    fn a_refusal_of_a_kind_yet_unknown_is_still_a_refusal() {
        let text = r#"{"error":{"code":"tired","message":"no","frontier":null}}"#;
        for text in [text, &format!("\n{text}")] {
            let refusal = parse_response::<TopicsResponse>(text.as_bytes()).unwrap().unwrap_err();
            assert_eq!(refusal.code, ReceivedErrorCode::Other("tired".to_owned()));
        }
    }

    /// Reads one request frame: the first three fields of its header, and everything after the
    /// client's name.
    async fn read_request(stream: &mut TcpStream) -> Option<(i16, i16, i32, Vec<u8>)> {
        let length = stream.read_u32().await.ok()?;
        let mut frame = vec![0; length as usize];
        stream.read_exact(&mut frame).await.ok()?;
        let mut fields = &frame[..];
        let (key, version, id) = (fields.get_i16(), fields.get_i16(), fields.get_i32());
        let name_bytes = usize::try_from(fields.get_i16()).unwrap();
        Some((key, version, id, fields[name_bytes..].to_vec()))
    }

    async fn answer(stream: &mut TcpStream, id: i32, body: &[u8]) {
        let frame = [&(body.len() as u32 + 4).to_be_bytes()[..], &id.to_be_bytes(), body].concat();
        stream.write_all(&frame).await.unwrap();
    }

    /// A server that supports ApiVersions 0, and answers documents of our own API with `answer_to`.
    async fn serve(answer_to: fn(&[u8]) -> Option<Vec<u8>>) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                while let Some((key, version, id, body)) = read_request(&mut stream).await {
                    // An error code, and no ranges.
                    let refused = [0, 35, 0, 0, 0, 0];
                    match (key, version) {
                        (18, 0) => answer(&mut stream, id, &[0; 6]).await,
                        (18, _) => answer(&mut stream, id, &refused).await,
                        (API_KEY, 0) => match answer_to(&body) {
                            Some(document) => answer(&mut stream, id, &document).await,
                            None => break,
                        },
                        _ => break,
                    }
                }
            }
        });
        Client::connect(&address, Options::default()).await.unwrap()
    }

    #[tokio::test]
    async fn a_question_is_all_that_follows_the_header_and_so_is_its_answer() {
        let mut client = serve(|document| {
            assert_eq!(document, br#"{"op":"offsets","at":null,"group":"g"}"#);
            Some(
                br#"{"at":null,"frontier":"sh0000000000050001","frontier_ms":5,"groups":[]}"#
                    .to_vec(),
            )
        })
        .await;
        let answer = client.offsets_at(None, Some("g")).await.unwrap();
        assert_eq!(answer.frontier, Stamp(Hlc::new(SysTime(5), 1)));
    }

    #[tokio::test]
    async fn pins_come_out_as_the_server_lists_them() {
        const PIN: &str = r#"{"name":"p","at":"s5","expires_ms":9,"topics":["a"],"set":"sh0000000000050001","set_ms":5}"#;
        let mut client = serve(|document| match document {
            br#"{"op":"pins"}"# => Some(format!(r#"{{"pins":[{PIN}]}}"#).into()),
            br#"{"op":"pin","name":"p","at":"s5","for_ms":1500,"topics":["a"]}"# => {
                Some(format!(r#"{{"pin":{PIN}}}"#).into())
            }
            br#"{"op":"unpin","name":"p"}"# => Some(br#"{"removed":"p"}"#.to_vec()),
            bytes => panic!("{}", String::from_utf8_lossy(bytes)),
        })
        .await;
        let at = Moment::Sys(Cut::before(SysTime(5)));
        let topics = ["a".to_owned()];
        let kept_for = Duration::from_millis(1500);
        let pin = client.pin("p", &at, kept_for, Some(&topics)).await.unwrap();
        assert_eq!(serde_json::to_string(&pin).unwrap(), PIN);
        assert_eq!(client.pins().await.unwrap(), [pin]);
        client.unpin("p").await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_hangs_up_on_our_key_and_still_answers_is_not_freezeframe() {
        let mut client = serve(|_| None).await;
        let error = client.topics_at(None).await.unwrap_err();
        assert!(matches!(error, ClientError::NotFreezeframe { .. }), "{error}");
    }

    #[tokio::test]
    async fn an_answer_that_does_not_read_is_an_error_and_no_panic() {
        for document in ["", "{}", "[]", r#"{"error":5}"#, r#"{"at":5}"#] {
            let error = parse_response::<CutResponse>(document.as_bytes());
            assert!(error.is_err(), "{document}");
        }
        let mut client = serve(|_| Some(b"?".to_vec())).await;
        let error = client.topics_at(None).await.unwrap_err();
        assert!(matches!(error, ClientError::Malformed { .. }), "{error}");
    }
}
