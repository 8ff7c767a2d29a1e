//! Reads files of the server's tree, in pieces of bounded size.

use anyhow::bail;
use client::history::HistoryErrorCode;
use client::tree::TreeFileHandle;
use client::{Client, ClientError, Isolation};
use hlc::MomentSelector;

use crate::moments::TypedPath;
use crate::topic_reader::fix_user_moment;
use crate::tree_path::name_of;

/// The size of one read.
const PART_BYTES: usize = 512 << 10;

/// A file, as it was when it was opened.
pub(crate) struct TreeFileReader {
    path: String,
    isolation: Isolation,
    opened: TreeFileHandle,
    at: u64,
}

impl TreeFileReader {
    pub(crate) async fn open(
        client: &mut Client,
        path: &str,
        isolation: Isolation,
    ) -> anyhow::Result<TreeFileReader> {
        let opened = client.tree_open(path, isolation).await?;
        Ok(TreeFileReader { path: path.to_owned(), isolation, opened, at: 0 })
    }

    /// The next piece; `None` at the end, after closing the file.
    pub(crate) async fn next_part(
        &mut self,
        client: &mut Client,
    ) -> anyhow::Result<Option<Vec<u8>>> {
        let (size, at) = (self.opened.size, self.at);
        if at >= size {
            client.tree_close(self.opened).await?;
            return Ok(None);
        }
        let length = PART_BYTES.min(usize::try_from(size - at).unwrap_or(usize::MAX));
        let bytes = match client.tree_read(&self.opened, at, length).await {
            Err(ClientError::History(refusal))
                if refusal.code == HistoryErrorCode::Gone && self.is_of_a_moment() =>
            {
                self.reopen(client).await?;
                client.tree_read(&self.opened, at, length).await?
            }
            result => result?,
        };
        if bytes.is_empty() {
            bail!("{} has {size} bytes, but the server gives none from {at} on", self.path);
        }
        self.at += bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// True if the file is the same whenever it is opened.
    fn is_of_a_moment(&self) -> bool {
        self.path.starts_with("/.at/")
    }

    /// Opens the file again, which the server closed to make room.
    async fn reopen(&mut self, client: &mut Client) -> anyhow::Result<()> {
        let size = self.opened.size;
        self.opened = client.tree_open(&self.path, self.isolation).await?;
        if self.opened.size != size {
            bail!("{} had {size} bytes, and now it has {}", self.path, self.opened.size);
        }
        Ok(())
    }
}

/// The files with the exact set of records of a moment of user time, in order; `None` if the path
/// has no such moment, or the server is not Freezeframe. The topic's settings say what user time
/// is, so only the server can tell.
pub(crate) async fn user_time_files(
    client: &mut Client,
    path: &TypedPath,
    extension: &str,
) -> anyhow::Result<Option<Vec<String>>> {
    let Some(at) = &path.at else { return Ok(None) };
    if !path.is_of_user_time() {
        return Ok(None);
    }
    match fix_user_moment(client, &path.topic, at).await? {
        Some(pinned) => Ok(Some(partition_files(client, path, &pinned, extension).await?)),
        None => Ok(None),
    }
}

/// The files with the partitions of a topic as of a moment, in order: all, or the one that the path
/// names.
async fn partition_files(
    client: &mut Client,
    path: &TypedPath,
    ask: &MomentSelector,
    extension: &str,
) -> anyhow::Result<Vec<String>> {
    let directory = format!("/.at/{ask}/topics/{}", path.topic);
    let mut partitions: Vec<u32> = path.partition.into_iter().collect();
    let mut after = 0;
    while path.partition.is_none() {
        let page = client.tree_list(&directory, after, false).await?;
        let Some(last) = page.last() else { break };
        after = last.cookie;
        partitions.extend(page.iter().filter_map(|entry| {
            let name = name_of(&entry.name);
            name.strip_suffix(extension)?.strip_suffix('.')?.parse::<u32>().ok()
        }));
    }
    partitions.sort_unstable();
    let file = |partition| format!("{directory}/{partition}.{extension}");
    Ok(partitions.into_iter().map(file).collect())
}
