//! Plug-ins that find the user times of records, and the user times they found.

use std::time::Duration;

use history_documents::{
    AddPluginRequest, AddPluginResponse, HexBytes, HistoryRequest, PluginsRequest, PluginsResponse,
    RemovePluginRequest, RemovePluginResponse, TestPluginRequest, TestPluginResponse,
    UserTimesRequest,
};

use crate::{Client, ClientError};

pub use history_documents::{PluginDescription, UserTimesResponse};

/// The longest time that a server may take to check a plug-in, or to run it.
const SERVER_WORK_MAX: Duration = Duration::from_secs(10);

/// The longest module that a server accepts.
pub const MODULE_BYTES_MAX: u64 = 480 << 10;

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

impl Client {
    /// All plug-ins, by name.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn plugins(&mut self) -> Result<Vec<PluginDescription>, ClientError> {
        let plugins = HistoryRequest::Plugins(PluginsRequest {});
        let PluginsResponse { plugins } = self.request_history(plugins, Duration::ZERO).await?;
        Ok(plugins)
    }

    /// Adds a plug-in, or replaces it.
    ///
    /// # Errors
    /// As [`Client::cut`]; also if the module or the name is not valid.
    pub async fn add_plugin(&mut self, name: &str, module: &[u8]) -> Result<(), ClientError> {
        let add = AddPluginRequest { name: name.to_owned(), module: HexBytes(module.to_vec()) };
        let add = HistoryRequest::AddPlugin(add);
        self.request_history::<AddPluginResponse>(add, SERVER_WORK_MAX).await.map(drop)
    }

    /// Removes a plug-in. Topics that use it continue to use it.
    ///
    /// # Errors
    /// As [`Client::cut`].
    pub async fn remove_plugin(&mut self, name: &str) -> Result<(), ClientError> {
        let remove = HistoryRequest::RemovePlugin(RemovePluginRequest { name: name.to_owned() });
        self.request_history::<RemovePluginResponse>(remove, SERVER_WORK_MAX).await.map(drop)
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
        let TestRecord { key, value, timestamp, headers } = record.clone();
        let headers = headers.into_iter().map(|(name, value)| (name, HexBytes(value)));
        let test = TestPluginRequest {
            spec: spec.to_owned(),
            key: key.map(HexBytes),
            value: value.map(HexBytes),
            timestamp,
            headers: headers.collect(),
        };
        let test = HistoryRequest::TestPlugin(test);
        let answer: TestPluginResponse = self.request_history(test, SERVER_WORK_MAX).await?;
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
        let times = UserTimesRequest { topic: topic.to_owned(), partition, from };
        self.request_history(HistoryRequest::UserTimes(times), SERVER_WORK_MAX).await
    }
}
