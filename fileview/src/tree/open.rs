//! Reading of bytes.

use bytes::Bytes;
use engine::blocking::block_in_place;
use engine::files::{FileView, OpenFile};
use hlc::{Cut, Hlc, Moment};

use super::names::escaped;
use super::raw::OpenRaw;
use super::stat::ATTEMPTS_MAX;
use super::text::OpenText;
use super::value::OpenValue;
use super::{GuardedPlace, TopicNode, TreeError, ViewNode, ViewTree};
use crate::ViewFormat;

/// An open node: its bytes do not change, except that it may grow.
///
/// A read of records that were removed since, and not read before, is an error.
pub struct OpenNode(OpenSource);

enum OpenSource {
    Text(OpenText),
    Raw(OpenRaw),
    Value(OpenValue),
    Bytes(Bytes),
    /// A file of the present.
    File(OpenFile),
    /// A file as of a moment.
    View(FileView),
}

impl std::fmt::Debug for OpenNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Open").finish_non_exhaustive()
    }
}

impl OpenNode {
    /// Reads up to `length` bytes from `at` on.
    ///
    /// It returns fewer at the end, and if `length` exceeds 16 MiB.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn read(&self, at: u64, length: usize) -> Result<Bytes, TreeError> {
        match &self.0 {
            OpenSource::Text(text) => text.read(at, length).await,
            OpenSource::Raw(raw) => raw.read(at, length),
            OpenSource::Value(value) => value.read(at, length),
            OpenSource::Bytes(bytes) => {
                let from = usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                Ok(bytes.slice(from..from.saturating_add(length).min(bytes.len())))
            }
            OpenSource::File(file) => Ok(block_in_place(|| file.read_at(Cut::ALL, at, length))?),
            OpenSource::View(view) => Ok(block_in_place(|| view.read(at, length))?),
        }
    }

    /// The current size in bytes.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn size(&self) -> Result<u64, TreeError> {
        match &self.0 {
            OpenSource::Text(text) => text.size().await,
            OpenSource::Raw(raw) => raw.size(),
            OpenSource::Value(value) => Ok(value.size()),
            OpenSource::Bytes(bytes) => Ok(bytes.len() as u64),
            OpenSource::File(file) => Ok(block_in_place(|| file.view_at(Cut::ALL))?.length()),
            OpenSource::View(view) => Ok(view.length()),
        }
    }
}

impl ViewTree {
    /// Asks the guard whether the bytes of a node are shown.
    ///
    /// # Errors
    /// [`TreeError::NotPermitted`].
    pub fn check_contents(&self, node: &ViewNode) -> Result<(), TreeError> {
        match node {
            ViewNode::Partition { topic, .. }
            | ViewNode::Key { topic, .. }
            | ViewNode::Keys(topic) => self.check(GuardedPlace::Records(&topic.name)),
            ViewNode::Committed { group, topic, .. } => {
                self.check(GuardedPlace::Group(group))?;
                self.check(GuardedPlace::Topic(topic))
            }
            ViewNode::File { .. } | ViewNode::ZnodeData(_) => self.check(GuardedPlace::Contents),
            // They have no bytes.
            ViewNode::Root(_)
            | ViewNode::Moments
            | ViewNode::Pin(_)
            | ViewNode::Topics(_)
            | ViewNode::Topic(_)
            | ViewNode::Groups(_)
            | ViewNode::Group { .. }
            | ViewNode::GroupTopic { .. }
            | ViewNode::Znode(_) => Ok(()),
        }
    }
    /// Opens a node that has bytes, and pins them. A partition of the present continues to grow.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn open(&self, node: &ViewNode) -> Result<OpenNode, TreeError> {
        self.check_contents(node)?;
        let source = match node {
            ViewNode::Partition { topic, partition, format } => {
                let mut tries = 1;
                loop {
                    let range = self.visible_range(topic, *partition).await?;
                    let grows = topic.at.is_none();
                    let source = match format {
                        ViewFormat::Raw => OpenRaw::new(&range, grows).map(OpenSource::Raw),
                        format => OpenText::new(&self.texts, &range, *format, grows, &self.options)
                            .await
                            .map(OpenSource::Text),
                    };
                    match source {
                        Err(TreeError::Gone(_)) if tries < ATTEMPTS_MAX => tries += 1,
                        source => break source?,
                    }
                }
            }
            ViewNode::Key { topic, key } => {
                let mut tries = 1;
                loop {
                    match self.open_value(topic, key).await {
                        // Another record became the newest in the meantime.
                        Err(TreeError::Gone(_)) if tries < ATTEMPTS_MAX => tries += 1,
                        value => break OpenSource::Value(value?),
                    }
                }
            }
            ViewNode::Committed { .. } => {
                OpenSource::Bytes(self.committed_text(node).await?.0.into_bytes().into())
            }
            ViewNode::ZnodeData(znode) => OpenSource::Bytes(self.znode_data(znode)?),
            ViewNode::File { inode, cut } => block_in_place(|| {
                let files = self.engine.files();
                let kind = files.stat_inode(*inode, cut.unwrap_or(Cut::ALL))?.kind;
                match kind {
                    engine::files::FileKind::File => {}
                    engine::files::FileKind::Directory => {
                        return Err(is_directory());
                    }
                    _ => return Err(TreeError::Invalid("it has no bytes".to_owned())),
                }
                let file = files.open_inode(*inode)?;
                Ok(match cut {
                    None => OpenSource::File(file),
                    Some(cut) => OpenSource::View(file.view_at(*cut)?),
                })
            })?,
            ViewNode::Pin(_) => return Err(TreeError::Invalid("a link has no bytes".to_owned())),
            _ => return Err(is_directory()),
        };
        Ok(OpenNode(source))
    }

    async fn open_value(&self, topic: &TopicNode, key: &[u8]) -> Result<OpenValue, TreeError> {
        let newest = self.newest_record(topic, key).await?;
        let newest =
            newest.ok_or_else(|| TreeError::NotFound(format!("the key {}", escaped(key))))?;
        let range = self.visible_range(topic, newest.partition).await?;
        OpenValue::new(&range.partition, newest.offset, &self.last_value)
    }

    /// A committed offset as text, and when it was committed.
    pub(crate) async fn committed_text(&self, node: &ViewNode) -> Result<(String, Hlc), TreeError> {
        let offsets = self.committed(node).await?;
        let ViewNode::Committed { topic, partition, .. } = node else {
            return Err(is_directory());
        };
        let is_it = |offset: &&engine::groups::GroupOffset| {
            *offset.topic == **topic && offset.partition == *partition
        };
        let offset = offsets.iter().find(is_it).ok_or_else(|| {
            TreeError::NotFound(format!("nothing is committed for {topic}/{partition}"))
        })?;
        Ok((format!("{}\n", offset.committed.offset), offset.stamp))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn read_link(&self, node: &ViewNode) -> Result<Vec<u8>, TreeError> {
        match node {
            ViewNode::Pin(name) => {
                let pin = self.engine.pins().all().into_iter().find(|pin| pin.name == *name);
                let pin = pin.ok_or_else(|| TreeError::NotFound(format!("the pin {name}")))?;
                Ok(Moment::Sys(pin.at).to_string().into_bytes())
            }
            ViewNode::File { inode, cut } => {
                let (files, at) = (self.engine.files(), cut.unwrap_or(Cut::ALL));
                Ok(block_in_place(|| files.read_link_inode(*inode, at))?)
            }
            _ => Err(TreeError::Invalid("it is no symbolic link".to_owned())),
        }
    }
}

fn is_directory() -> TreeError {
    TreeError::IsDirectory("list it, or read a file below it".to_owned())
}
