//! Reading bytes.

use bytes::Bytes;
use engine::blocking::on_disk;
use engine::files::{File, FileView};
use hlc::{Cut, Hlc, Moment};

use super::names::shown;
use super::raw::OpenRaw;
use super::stat::TRIES;
use super::text::OpenText;
use super::value::OpenValue;
use super::{Node, TopicNode, Tree, TreeError};
use crate::Format;

/// Something open: what it reads does not change, but for growing. What was given up since, and not
/// read before, is an error.
pub struct Open(Source);

enum Source {
    Text(OpenText),
    Raw(OpenRaw),
    Value(OpenValue),
    Bytes(Bytes),
    /// A file as it is.
    File(File),
    /// A file as it was.
    View(FileView),
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").finish_non_exhaustive()
    }
}

impl Open {
    /// Up to `length` bytes from `at` on; fewer at the end, and where `length` is more than 16 MiB.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn read(&self, at: u64, length: usize) -> Result<Bytes, TreeError> {
        match &self.0 {
            Source::Text(text) => text.read(at, length).await,
            Source::Raw(raw) => raw.read(at, length),
            Source::Value(value) => value.read(at, length),
            Source::Bytes(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                Ok(bytes.slice(from..from.saturating_add(length).min(bytes.len())))
            }
            Source::File(file) => Ok(on_disk(|| file.read_at(Cut::ALL, at, length))?),
            Source::View(view) => Ok(on_disk(|| view.read(at, length))?),
        }
    }

    /// How many bytes there are by now.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn size(&self) -> Result<u64, TreeError> {
        match &self.0 {
            Source::Text(text) => text.size().await,
            Source::Raw(raw) => raw.size(),
            Source::Value(value) => Ok(value.size()),
            Source::Bytes(bytes) => Ok(bytes.len() as u64),
            Source::File(file) => Ok(on_disk(|| file.at(Cut::ALL))?.length()),
            Source::View(view) => Ok(view.length()),
        }
    }
}

impl Tree {
    /// Opens what has bytes, and pins them. A present partition goes on growing.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn open(&self, node: &Node) -> Result<Open, TreeError> {
        let source = match node {
            Node::Partition { topic, partition, format } => {
                let mut tries = 1;
                loop {
                    let seen = self.seen_one(topic, *partition).await?;
                    let grows = topic.at.is_none();
                    let source = match format {
                        Format::Raw => OpenRaw::new(&seen, grows).map(Source::Raw),
                        format => OpenText::new(&self.texts, &seen, *format, grows, &self.options)
                            .await
                            .map(Source::Text),
                    };
                    match source {
                        Err(TreeError::Gone(_)) if tries < TRIES => tries += 1,
                        source => break source?,
                    }
                }
            }
            Node::Key { topic, key } => {
                let mut tries = 1;
                loop {
                    match self.open_value(topic, key).await {
                        // Another one took its place meanwhile.
                        Err(TreeError::Gone(_)) if tries < TRIES => tries += 1,
                        value => break Source::Value(value?),
                    }
                }
            }
            Node::Committed { .. } => {
                Source::Bytes(self.committed_text(node).await?.0.into_bytes().into())
            }
            Node::File { inode, cut } => on_disk(|| {
                let files = self.engine.files();
                let kind = files.stat_inode(*inode, cut.unwrap_or(Cut::ALL))?.kind;
                match kind {
                    engine::files::FileKind::File => {}
                    engine::files::FileKind::Directory => {
                        return Err(TreeError::IsDirectory(String::new()));
                    }
                    _ => return Err(TreeError::Invalid("it has no bytes".to_owned())),
                }
                let file = files.open_inode(*inode)?;
                Ok(match cut {
                    None => Source::File(file),
                    Some(cut) => Source::View(file.at(*cut)?),
                })
            })?,
            Node::Pin(_) => return Err(TreeError::Invalid("a link has no bytes".to_owned())),
            _ => return Err(TreeError::IsDirectory(String::new())),
        };
        Ok(Open(source))
    }

    async fn open_value(&self, topic: &TopicNode, key: &[u8]) -> Result<OpenValue, TreeError> {
        let newest = self.newest(topic, key).await?;
        let newest = newest.ok_or_else(|| TreeError::NotFound(format!("key={}", shown(key))))?;
        let seen = self.seen_one(topic, newest.partition).await?;
        OpenValue::new(&seen.partition, newest.offset, &self.last_value)
    }

    /// A committed offset as text, and when it was committed.
    pub(crate) async fn committed_text(&self, node: &Node) -> Result<(String, Hlc), TreeError> {
        let held = self.committed(node).await?;
        let Node::Committed { topic, partition, .. } = node else {
            return Err(TreeError::IsDirectory(String::new()));
        };
        let is_it =
            |held: &&engine::GroupOffset| *held.topic == **topic && held.partition == *partition;
        let held = held.iter().find(is_it).ok_or_else(|| {
            TreeError::NotFound(format!(
                "nothing is committed. topic={topic}, partition={partition}"
            ))
        })?;
        Ok((format!("{}\n", held.committed.offset), held.stamp))
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn read_link(&self, node: &Node) -> Result<Vec<u8>, TreeError> {
        match node {
            Node::Pin(name) => {
                let pin = self.engine.pins().into_iter().find(|pin| pin.name == *name);
                let pin = pin.ok_or_else(|| TreeError::NotFound(format!("pin={name}")))?;
                Ok(Moment::Sys(pin.at).to_string().into_bytes())
            }
            Node::File { inode, cut } => {
                let (files, at) = (self.engine.files(), cut.unwrap_or(Cut::ALL));
                Ok(on_disk(|| files.read_link_inode(*inode, at))?)
            }
            _ => Err(TreeError::Invalid("it is no symbolic link".to_owned())),
        }
    }
}
