//! Plug-ins that find the user times of records, and the user times they found.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::history::Stamp;
use crate::{Client, ClientError};

/// How long a server may take to check a plug-in, or to run it.
const SERVER_WORK_MAX: Duration = Duration::from_secs(10);

/// The longest module that a server accepts.
pub const MODULE_BYTES_MAX: u64 = 480 << 10;

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
enum PluginRequest<'a> {
    Plugins {},
    PluginAdd { name: &'a str, module: String },
    PluginRemove { name: &'a str },
    PluginTest(PluginTest<'a>),
    UserTimes { topic: &'a str, partition: i32, from: i64 },
}

#[derive(Serialize)]
struct PluginTest<'a> {
    spec: &'a str,
    key: Option<String>,
    value: Option<String>,
    timestamp: Option<i64>,
    headers: Vec<(&'a str, String)>,
}

/// A plug-in that a topic's setting can name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginDescription {
    /// Its name.
    pub name: String,
    /// The size of its module.
    pub bytes: u64,
    /// When it was last written.
    pub written: Stamp,
}

/// A record to test a specification with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestRecord {
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub value: Option<Vec<u8>>,
    /// Its timestamp.
    pub timestamp: Option<i64>,
    /// Its headers.
    pub headers: Vec<(String, Vec<u8>)>,
}

/// The user times of some records.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct UserTimesResponse {
    /// Whether the user times of all records are their own timestamps. Then `times` is empty.
    pub own: bool,
    /// The offset after the last record that was read.
    pub next: i64,
    /// The offset of each record, rising, and its user time if it has one.
    pub times: Vec<(i64, Option<i64>)>,
}

#[derive(Deserialize)]
struct PluginsResponse {
    plugins: Vec<PluginDescription>,
}

#[derive(Deserialize)]
struct AddPluginResponse {
    #[serde(rename = "added")]
    _added: String,
}

#[derive(Deserialize)]
struct RemovePluginResponse {
    #[serde(rename = "removed")]
    _removed: String,
}

#[derive(Deserialize)]
struct TestPluginResponse {
    user_time: i64,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Client {
    /// All plug-ins, by name.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn plugins(&mut self) -> Result<Vec<PluginDescription>, ClientError> {
        let answer: PluginsResponse =
            self.request_history(PluginRequest::Plugins {}, Duration::ZERO).await?;
        Ok(answer.plugins)
    }

    /// Adds a plug-in, or replaces it.
    ///
    /// # Errors
    /// As [`Client::cut`]; also if the module or the name is not valid.
    pub async fn add_plugin(&mut self, name: &str, module: &[u8]) -> Result<(), ClientError> {
        let question = PluginRequest::PluginAdd { name, module: hex(module) };
        self.request_history::<AddPluginResponse>(question, SERVER_WORK_MAX).await.map(drop)
    }

    /// Removes a plug-in. Topics that use it continue to use it.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn remove_plugin(&mut self, name: &str) -> Result<(), ClientError> {
        let question = PluginRequest::PluginRemove { name };
        self.request_history::<RemovePluginResponse>(question, SERVER_WORK_MAX).await.map(drop)
    }

    /// The user time, in milliseconds, that a topic with this setting finds in a record.
    ///
    /// # Errors
    /// As [`Client::cut`]; also if it finds none.
    pub async fn test_user_time(
        &mut self,
        spec: &str,
        record: &TestRecord,
    ) -> Result<i64, ClientError> {
        let question = PluginRequest::PluginTest(PluginTest {
            spec,
            key: record.key.as_deref().map(hex),
            value: record.value.as_deref().map(hex),
            timestamp: record.timestamp,
            headers: record.headers.iter().map(|(name, value)| (&**name, hex(value))).collect(),
        });
        let answer: TestPluginResponse = self.request_history(question, SERVER_WORK_MAX).await?;
        Ok(answer.user_time)
    }

    /// The user times of a topic's records from an offset on: as many as fit into one response. The
    /// topic may be a moment topic ([`crate::history::moment_topic`]).
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn user_times(
        &mut self,
        topic: &str,
        partition: i32,
        from: i64,
    ) -> Result<UserTimesResponse, ClientError> {
        self.request_history(PluginRequest::UserTimes { topic, partition, from }, SERVER_WORK_MAX)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_the_document_that_was_agreed_on() {
        let text = |question: PluginRequest<'_>| serde_json::to_string(&question).unwrap();
        assert_eq!(text(PluginRequest::Plugins {}), r#"{"op":"plugins"}"#);
        let add = PluginRequest::PluginAdd { name: "p", module: hex(&[0, 0xab]) };
        assert_eq!(text(add), r#"{"op":"plugin-add","name":"p","module":"00ab"}"#);
        let test = PluginTest {
            spec: "header:h",
            key: None,
            value: Some(hex(b"v")),
            timestamp: Some(5),
            headers: vec![("h", hex(b"1"))],
        };
        assert_eq!(
            text(PluginRequest::PluginTest(test)),
            r#"{"op":"plugin-test","spec":"header:h","key":null,"value":"76","timestamp":5,"headers":[["h","31"]]}"#
        );
        let times = PluginRequest::UserTimes { topic: "t", partition: 1, from: 2 };
        assert_eq!(text(times), r#"{"op":"user-times","topic":"t","partition":1,"from":2}"#);
    }
}
