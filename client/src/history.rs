//! What Kafka's protocol cannot express: requests about the past, and pins. API 17990 ("FF"),
//! version 0.
//!
//! Request and response are one JSON document each. A server that does not know the API closes the
//! connection. If it then still answers as a Kafka server does, it is not Freezeframe.
//!
//! What Kafka's protocol can express uses it: a topic as of a moment is a topic with another name
//! ([`moment_topic`]).

mod diff;
mod groups;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use hlc::{Cut, Hlc, Moment, MomentSelector, TOPIC_MARK};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Client, ClientError};

pub use diff::{BeforeAndAfter, DiffCategory, DiffChange, DiffQuery, DiffResponse, OffsetAtMoment};
pub use groups::{
    GroupAtMoment, GroupMembership, GroupSeekResult, GroupsResponse, MemberAtMoment,
    SeekOffsetChange, SkippedOffset,
};

/// The key of our own API: "FF".
pub const API_KEY: i16 = i16::from_be_bytes(*b"FF");

/// How long a server may wait until a moment is final, if the request does not set a limit. The
/// server's own patience is usually shorter.
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

/// A stamp, written as a moment: `sh` and 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub Hlc);

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sh{:016x}", self.0.bits())
    }
}

impl Serialize for Stamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Stamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Stamp, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.parse() {
            Ok(Moment::Sys(cut)) => Ok(Stamp(cut.bound())),
            _ => Err(serde::de::Error::custom(format!("not a stamp: {text}"))),
        }
    }
}

/// What the server does about a moment that is not final yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PendingMomentPolicy {
    /// Wait until it is final, within the patience of the request.
    Wait,
    /// Refuse, and return the frontier.
    Refuse,
    /// Answer for the frontier instead, and return it.
    Frontier,
}

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum HistoryRequest<'a> {
    Cut { at: String, topics: Option<&'a [String]>, when: PendingMomentPolicy, patience_ms: u64 },
    Topics { at: Option<String> },
    Offsets { at: Option<String>, group: Option<&'a str> },
    Pin { name: &'a str, at: String, for_ms: u64, topics: Option<&'a [String]> },
    Unpin { name: &'a str },
    Pins {},
}

/// The prefix of an error response.
const REFUSAL_PREFIX: &[u8] = b"{\"error\"";

#[derive(Deserialize)]
#[serde(untagged)]
enum HistoryResponse<T> {
    Refused { error: ServerRefusal },
    Given(T),
}

/// A cut: the end of each partition at one moment, and how precise the answer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutResponse {
    /// The moment of the answer, in its resolved form.
    pub at: String,
    /// The kind of answer for each partition: `prefix`, all records up to an offset.
    pub kind: String,
    /// Whether the cut is causally closed: with an event, it holds all events that happened before
    /// it. True by system time, false by user time.
    pub closed: bool,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// The largest difference of the server's clocks, from its settings.
    pub skew_ms: u64,
    /// The estimated error of the server's wall clock: the kernel's value, at most `skew_ms`.
    pub clock_error_ms: u64,
    /// Whether the server's kernel reports a synchronised wall clock.
    pub clock_synchronised: bool,
    /// How far stamps are ahead of the server's wall clock: usually 0.
    pub ahead_ms: u64,
    /// Whether everything in the cut is on stable storage.
    pub durable: bool,
    /// The cut hash: always the same for the same moment.
    pub hash: String,
    /// The partitions.
    pub partitions: Vec<CutPartitionOffsets>,
}

/// A partition within a cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CutPartitionOffsets {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The first offset in the cut.
    pub start: i64,
    /// The first offset after it.
    pub end: i64,
}

/// The topics that existed at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicsResponse {
    /// The moment of the answer.
    pub at: Option<String>,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// The topics.
    pub topics: Vec<TopicAtMoment>,
}

/// A topic as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopicAtMoment {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// How many partitions it had.
    pub partitions: u32,
    /// When it was created.
    pub created: Stamp,
    /// When it was deleted; `None` if it still exists.
    pub deleted: Option<Stamp>,
    /// The settings of the topic itself.
    #[serde(default)]
    pub configs: BTreeMap<String, String>,
}

/// The committed offsets of groups as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffsetsResponse {
    /// The moment of the answer.
    pub at: Option<String>,
    /// The frontier of the server.
    pub frontier: Stamp,
    /// The groups.
    pub groups: Vec<GroupOffsetsAtMoment>,
}

/// A group as of a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupOffsetsAtMoment {
    /// Its name.
    pub group: String,
    /// Its committed offsets.
    pub offsets: Vec<CommittedOffsetAtMoment>,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedOffsetAtMoment {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The next record to read.
    pub offset: i64,
    /// The leader epoch in the commit, or −1.
    #[serde(default = "no_epoch")]
    pub leader_epoch: i32,
    /// The metadata of the commit.
    #[serde(default)]
    pub metadata: String,
    /// When it was committed.
    pub committed: Stamp,
}

/// A pin: a named moment that retention keeps readable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinDescription {
    /// Its name.
    pub name: String,
    /// The moment.
    pub at: String,
    /// When it expires: milliseconds since 1970, by the server's clock.
    pub expires_ms: u64,
    /// The pinned topics; `None` for all.
    pub topics: Option<Vec<String>>,
    /// When it was set or last extended.
    pub set: Stamp,
}

#[derive(Deserialize)]
struct PinResponse {
    pin: PinDescription,
}

#[derive(Deserialize)]
struct UnpinResponse {
    #[serde(rename = "removed")]
    _removed: String,
}

#[derive(Deserialize)]
struct PinsResponse {
    pins: Vec<PinDescription>,
}

fn no_epoch() -> i32 {
    -1
}

/// Why the server refused a request about the past.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ServerRefusal {
    /// The kind of error.
    pub code: RefusalCode,
    /// The server's message.
    pub message: String,
    /// The frontier of the server.
    #[serde(default)]
    pub frontier: Option<Stamp>,
    /// After how many milliseconds to retry, if a retry can help.
    #[serde(default)]
    pub retry_ms: Option<u64>,
}

/// The kinds of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The moment is not final yet. Retry a little later.
    NotYet,
    /// The moment lies too far in the future to wait for it.
    FarFuture,
    /// The moment lies below the horizon.
    BeforeHistory,
    /// The search reached the limit of one request. The same request continues it.
    Unfinished,
    /// The topic did not exist at that moment.
    UnknownTopic,
    /// Not a moment, or not one of system time.
    BadMoment,
    /// The request is malformed.
    BadRequest,
    /// The request is too long.
    TooLarge,
    /// The server's clock is fenced: it cannot be trusted.
    Fenced,
    /// The name or the expiry is not valid for a pin.
    BadPin,
    /// A pin of that name exists, at another moment or for other topics.
    PinTaken,
    /// The limit on pins is reached.
    TooManyPins,
    /// The pin does not exist.
    UnknownPin,
    /// The group did not exist at that moment, or has committed nothing.
    UnknownGroup,
    /// The group has members, so its offsets cannot be set.
    GroupActive,
    /// Another request is changing the group.
    GroupBusy,
    /// The limit on groups is reached.
    TooManyGroups,
    /// The module or the name is not valid for a plug-in.
    BadPlugin,
    /// The plug-in does not exist.
    UnknownPlugin,
    /// Not a valid specification of user time.
    BadSpec,
    /// The record has no readable user time.
    Unreadable,
    /// The partition has no such offset.
    OutOfRange,
    /// The path does not exist in the tree.
    NotFound,
    /// A component of the path is not a directory.
    NotDirectory,
    /// The node is a directory, which has no bytes.
    IsDirectory,
    /// The path is invalid.
    BadPath,
    /// The file is not open any more, or its records were removed.
    Gone,
    /// The server is opening its data directory.
    Starting,
    /// The server is stopping.
    Stopping,
    /// The catalog is being rebuilt from the journal.
    Loading,
    /// GET does not serve this operation.
    UnknownOp,
    /// There is nothing at this path.
    UnknownPath,
    /// The path does not support this method.
    MethodNotAllowed,
    /// The content type of the body is not JSON.
    UnsupportedMediaType,
    /// The request comes from a web page of another origin.
    Forbidden,
    /// The request names a host that is not this server.
    ForeignHost,
    /// An internal error of the server.
    Internal,
    /// A kind that this library does not know.
    #[serde(other)]
    Other,
}

impl fmt::Display for ServerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // In milliseconds, as users write moments. Skipped if the server's message has it already.
        let frontier = self.frontier.map(|Stamp(stamp)| Moment::Sys(Cut::before(stamp.time())));
        match frontier.map(|moment| moment.to_string()) {
            Some(frontier) if !self.message.contains(&frontier) => {
                write!(f, " (the server can answer up to {frontier})")
            }
            _ => Ok(()),
        }
    }
}

impl Client {
    /// Where each partition of `topics`, or of all topics, ends at `at`. By user time, that is the
    /// first record at or after it, as of when the response says.
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
        let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.request_history(
            HistoryRequest::Cut { at: at.to_string(), topics, when, patience_ms },
            patience,
        )
        .await
    }

    /// The topics that existed at `at`, or exist now.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn topics_at(&mut self, at: Option<&Moment>) -> Result<TopicsResponse, ClientError> {
        self.request_history(
            HistoryRequest::Topics { at: at.map(Moment::to_string) },
            Duration::ZERO,
        )
        .await
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
        let question = HistoryRequest::Offsets { at: at.map(Moment::to_string), group };
        self.request_history(question, Duration::ZERO).await
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
        let for_ms = u64::try_from(kept_for.as_millis()).unwrap_or(u64::MAX);
        let question = HistoryRequest::Pin { name, at: at.to_string(), for_ms, topics };
        let PinResponse { pin } = self.request_history(question, SERVER_WAIT_MAX).await?;
        Ok(pin)
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn unpin(&mut self, name: &str) -> Result<(), ClientError> {
        self.request_history::<UnpinResponse>(HistoryRequest::Unpin { name }, Duration::ZERO)
            .await
            .map(drop)
    }

    /// All pins, by name.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn pins(&mut self) -> Result<Vec<PinDescription>, ClientError> {
        let PinsResponse { pins } =
            self.request_history(HistoryRequest::Pins {}, Duration::ZERO).await?;
        Ok(pins)
    }

    /// Sends a request, an object with a field `op`, and parses the response.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn request_history<T: for<'de> Deserialize<'de>>(
        &mut self,
        question: impl Serialize,
        server_wait: Duration,
    ) -> Result<T, ClientError> {
        let document = serde_json::to_vec(&question).expect("a question can be written as JSON");
        let answer = match self.call_extension(API_KEY, &document, server_wait).await {
            Err(ClientError::Closed { address, .. }) => {
                // Finds out whether the server is gone, or only does not know the API.
                self.any_server().await?;
                return Err(ClientError::NotFreezeframe { address });
            }
            answer => answer?,
        };
        // An untagged enum is parsed twice, and a cut of many partitions is long.
        if !answer.starts_with(REFUSAL_PREFIX)
            && let Ok(given) = serde_json::from_slice(&answer)
        {
            return Ok(given);
        }
        match serde_json::from_slice(&answer) {
            Ok(HistoryResponse::Given(given)) => Ok(given),
            Ok(HistoryResponse::Refused { error }) => Err(ClientError::History(error)),
            Err(error) => Err(ClientError::Malformed {
                address: self.any_server().await?,
                what: format!("an answer about the past does not read: {error}"),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use hlc::SysTime;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::Options;

    #[test]
    fn every_code_in_the_manual_is_known() {
        let manual = include_str!("../../docs/KAFKA.md");
        let (_, table) = manual.split_once("| code | HTTP | means |").unwrap();
        for row in table.lines().skip(2).take_while(|line| line.starts_with("| `")) {
            let name = row.split('`').nth(1).unwrap();
            let code: RefusalCode = serde_json::from_value(name.into()).unwrap();
            assert_ne!(code, RefusalCode::Other, "{name}");
        }
    }

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
    fn a_question_is_the_document_that_was_agreed_on() {
        let at = Moment::Sys(Cut::before(SysTime(5))).to_string();
        let topics = ["a".to_owned()];
        let cut = HistoryRequest::Cut {
            at: at.clone(),
            topics: Some(&topics),
            when: PendingMomentPolicy::Wait,
            patience_ms: 5000,
        };
        assert_eq!(
            serde_json::to_string(&cut).unwrap(),
            r#"{"op":"cut","at":"s5","topics":["a"],"when":"wait","patience_ms":5000}"#
        );
        assert_eq!(
            serde_json::to_string(&HistoryRequest::Topics { at: None }).unwrap(),
            r#"{"op":"topics","at":null}"#
        );
        assert_eq!(
            serde_json::to_string(&HistoryRequest::Offsets { at: Some(at), group: Some("g") })
                .unwrap(),
            r#"{"op":"offsets","at":"s5","group":"g"}"#
        );
        let pin = HistoryRequest::Pin { name: "p", at: "s5".to_owned(), for_ms: 7, topics: None };
        assert_eq!(
            serde_json::to_string(&pin).unwrap(),
            r#"{"op":"pin","name":"p","at":"s5","for_ms":7,"topics":null}"#
        );
        assert_eq!(
            serde_json::to_string(&HistoryRequest::Unpin { name: "p" }).unwrap(),
            r#"{"op":"unpin","name":"p"}"#
        );
        assert_eq!(serde_json::to_string(&HistoryRequest::Pins {}).unwrap(), r#"{"op":"pins"}"#);
    }

    #[test]
    fn an_answer_comes_out_as_it_went_in() {
        let text = r#"{"at":"s5","kind":"prefix","closed":true,"frontier":"sh0000000000050001","skew_ms":500,"clock_error_ms":3,"clock_synchronised":true,"ahead_ms":0,"durable":true,"hash":"00112233445566778899aabbccddeeff","partitions":[{"topic":"a","partition":0,"start":0,"end":17}]}"#;
        let HistoryResponse::Given(cut) =
            serde_json::from_str::<HistoryResponse<CutResponse>>(text).unwrap()
        else {
            panic!("it was given")
        };
        assert_eq!(serde_json::to_string(&cut).unwrap(), text);
    }

    #[test]
    fn a_refusal_says_how_far_the_server_can_answer_once() {
        let text =
            r#"{"error":{"code":"not_yet","message":"not yet","frontier":"sh0000000000050001"}}"#;
        let HistoryResponse::Refused { error } =
            serde_json::from_str::<HistoryResponse<CutResponse>>(text).unwrap()
        else {
            panic!("it was refused")
        };
        assert_eq!(error.code, RefusalCode::NotYet);
        assert_eq!(error.to_string(), "not yet (the server can answer up to s5)");
        let said = ServerRefusal { message: "frontier=s5".to_owned(), ..error };
        assert_eq!(said.to_string(), "frontier=s5");
    }

    #[test]
    fn a_refusal_of_a_kind_yet_unknown_is_still_a_refusal() {
        let text = r#"{"error":{"code":"tired","message":"no","frontier":null}}"#;
        let answer = serde_json::from_str::<HistoryResponse<TopicsResponse>>(text).unwrap();
        assert!(
            matches!(answer, HistoryResponse::Refused { error } if error.code == RefusalCode::Other)
        );
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
            Some(br#"{"at":null,"frontier":"sh0000000000050001","groups":[]}"#.to_vec())
        })
        .await;
        let answer = client.offsets_at(None, Some("g")).await.unwrap();
        assert_eq!(answer.frontier, Stamp(Hlc::new(SysTime(5), 1)));
    }

    #[tokio::test]
    async fn pins_come_out_as_the_server_lists_them() {
        const PIN: &str =
            r#"{"name":"p","at":"s5","expires_ms":9,"topics":["a"],"set":"sh0000000000050001"}"#;
        let mut client = serve(|document| match document {
            br#"{"op":"pins"}"# => Some(format!(r#"{{"pins":[{PIN}]}}"#).into()),
            br#"{"op":"pin","name":"p","at":"s5","for_ms":1500,"topics":["a"]}"# => {
                Some(format!(r#"{{"pin":{PIN}}}"#).into())
            }
            br#"{"op":"unpin","name":"p"}"# => Some(br#"{"removed":"p"}"#.to_vec()),
            other => panic!("{}", String::from_utf8_lossy(other)),
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
            let error = serde_json::from_slice::<HistoryResponse<CutResponse>>(document.as_bytes());
            assert!(error.is_err(), "{document}");
        }
        let mut client = serve(|_| Some(b"?".to_vec())).await;
        let error = client.topics_at(None).await.unwrap_err();
        assert!(matches!(error, ClientError::Malformed { .. }), "{error}");
    }
}
