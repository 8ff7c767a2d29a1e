//! Reads files of the server's tree, in pieces of bounded size.

use anyhow::bail;
use client::tree::TreeFileHandle;
use client::{Client, Isolation};
use hlc::MomentSelector;

use crate::moments::TypedPath;
use crate::tree_path::name_of;

/// The size of one read.
const PART_BYTES: usize = 512 << 10;

/// A file, as it was when it was opened.
pub(crate) struct TreeFileReader {
    path: String,
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
        Ok(TreeFileReader { path: path.to_owned(), opened, at: 0 })
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
        let wanted = PART_BYTES.min(usize::try_from(size - at).unwrap_or(usize::MAX));
        let part = client.tree_read(&self.opened, at, wanted).await?;
        if part.is_empty() {
            bail!("{} has {size} bytes, but the server gives none from {at} on", self.path);
        }
        self.at += part.len() as u64;
        Ok(Some(part))
    }
}

/// The files with the partitions of a topic as of a moment, in order: all, or the one that the path
/// names.
pub(crate) async fn partition_files(
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
        partitions.extend(page.iter().filter_map(|listed| {
            let name = name_of(&listed.name);
            name.strip_suffix(extension)?.strip_suffix('.')?.parse::<u32>().ok()
        }));
    }
    partitions.sort_unstable();
    let file = |partition| format!("{directory}/{partition}.{extension}");
    Ok(partitions.into_iter().map(file).collect())
}
