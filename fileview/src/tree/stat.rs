//! The attributes of a node.

use engine::blocking::block_in_place;
use engine::files::FileTime;
use hlc::{Cut, Hlc, MomentSelector};

use super::moments::system_cut;
use super::names::escaped;
use super::raw::raw_size;
use super::scan::VisibleRange;
use super::text::{key_of, text_of};
use super::{GuardedPlace, TopicNode, TreeError, ViewNode, ViewNodeKind, ViewStat, ViewTree};
use crate::ViewFormat;

/// The number of times that a read is repeated when its records are removed in the meantime.
pub(crate) const ATTEMPTS_MAX: usize = 5;

impl ViewTree {
    /// The attributes of a node.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn stat(&self, node: &ViewNode) -> Result<ViewStat, TreeError> {
        match node {
            ViewNode::Partition { topic, partition, format } => {
                let mut tries = 1;
                loop {
                    match self.stat_partition(node, topic, *partition, *format).await {
                        Err(TreeError::Gone(_)) if tries < ATTEMPTS_MAX => tries += 1,
                        found => return found,
                    }
                }
            }
            ViewNode::Key { topic, key } => {
                let newest = self.newest_record(topic, key).await?;
                let newest = newest
                    .ok_or_else(|| TreeError::NotFound(format!("the key {}", escaped(key))))?;
                let time = newest.stamp.into();
                Ok(self.build_stat(node, ViewNodeKind::File, newest.length.unwrap_or(0), time))
            }
            ViewNode::Committed { .. } => {
                let (text, stamp) = self.committed_text(node).await?;
                Ok(self.build_stat(node, ViewNodeKind::File, text.len() as u64, stamp.into()))
            }
            ViewNode::Pin(_) => {
                let target = self.read_link(node).await?;
                Ok(self.build_stat(
                    node,
                    ViewNodeKind::Symlink,
                    target.len() as u64,
                    self.started_at,
                ))
            }
            ViewNode::File { inode, cut } => {
                let at = cut.unwrap_or(Cut::ALL);
                let attributes = block_in_place(|| self.engine.files().stat_inode(*inode, at))?;
                Ok(ViewStat {
                    kind: attributes.kind.into(),
                    size: attributes.size,
                    mode: attributes.mode,
                    links: attributes.links,
                    owner: (attributes.uid, attributes.gid),
                    modified: attributes.modified,
                    changed: attributes.changed,
                    accessed: attributes.accessed,
                    created: attributes.born,
                    blocks: attributes.size.div_ceil(512),
                    inode: node.inode(),
                    grows: cut.is_none(),
                })
            }
            ViewNode::Znode(znode) | ViewNode::ZnodeData(znode) => {
                let (length, created, modified) = self.stat_znode(znode)?;
                let (kind, size) = match node {
                    ViewNode::ZnodeData(_) => (ViewNodeKind::File, length),
                    _ => (ViewNodeKind::Directory, 0),
                };
                Ok(ViewStat { created, ..self.build_stat(node, kind, size, modified) })
            }
            ViewNode::Topic(topic) | ViewNode::Keys(topic) => {
                let created = self.topic_at_moment(topic).await?.created;
                Ok(self.build_stat(node, ViewNodeKind::Directory, 0, created.into()))
            }
            ViewNode::Root(at) | ViewNode::Topics(at) | ViewNode::Groups(at) => {
                Ok(self.build_directory_stat(node, at))
            }
            ViewNode::Group { at, .. } | ViewNode::GroupTopic { at, .. } => {
                Ok(self.build_directory_stat(node, at))
            }
            ViewNode::Moments => {
                Ok(self.build_stat(node, ViewNodeKind::Directory, 0, self.started_at))
            }
        }
    }

    /// An extended attribute as of the node's moment. Only files have any.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn extended_attribute(
        &self,
        node: &ViewNode,
        name: &[u8],
    ) -> Result<Option<Vec<u8>>, TreeError> {
        let ViewNode::File { inode, cut } = node else { return Ok(None) };
        let at = cut.unwrap_or(Cut::ALL);
        Ok(block_in_place(|| self.engine.files().get_xattr(*inode, name, at))?)
    }

    /// The names of all extended attributes as of the node's moment.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn extended_attribute_names(&self, node: &ViewNode) -> Result<Vec<Vec<u8>>, TreeError> {
        let ViewNode::File { inode, cut } = node else { return Ok(Vec::new()) };
        let at = cut.unwrap_or(Cut::ALL);
        Ok(block_in_place(|| self.engine.files().list_xattrs(*inode, at))?)
    }

    async fn stat_partition(
        &self,
        node: &ViewNode,
        topic: &TopicNode,
        partition: u32,
        format: ViewFormat,
    ) -> Result<ViewStat, TreeError> {
        // Sizes at moments, or of values, are as good as a look at each record.
        if format != ViewFormat::Raw || topic.at.is_some() {
            self.check(GuardedPlace::Records(&topic.name))?;
        }
        let range = self.visible_range(topic, partition).await?;
        let size = self.size(&range, format).await?;
        let modified = block_in_place(|| match topic.at {
            Some(selector) => range.partition.log.tip_at(system_cut(&selector)),
            None => Ok(range.partition.log.tip()),
        })?;
        let created: FileTime = self.topic_at_moment(topic).await?.created.into();
        let modified = if modified.stamp == Hlc::ZERO { created } else { modified.stamp.into() };
        Ok(ViewStat { created, ..self.build_stat(node, ViewNodeKind::File, size, modified) })
    }

    /// The size in bytes.
    pub(crate) async fn size(
        &self,
        range: &VisibleRange,
        format: ViewFormat,
    ) -> Result<u64, TreeError> {
        if format == ViewFormat::Raw {
            let size = raw_size(range)?;
            range.check_kept()?;
            return Ok(size);
        }
        let text = text_of(&self.texts, range, format, &self.options)?;
        let size = text.position(range.end).await? - text.position(range.start).await?;
        self.texts.update_weight(&key_of(range, format));
        // Checked again: the text may be of a generation that began after the range was read.
        range.check_kept()?;
        Ok(size)
    }

    fn build_directory_stat(&self, node: &ViewNode, at: &Option<MomentSelector>) -> ViewStat {
        let time = at.map_or(self.started_at, |selector| system_cut(&selector).bound().into());
        self.build_stat(node, ViewNodeKind::Directory, 0, time)
    }

    fn build_stat(
        &self,
        node: &ViewNode,
        kind: ViewNodeKind,
        size: u64,
        time: FileTime,
    ) -> ViewStat {
        let (mode, links) = match kind {
            ViewNodeKind::Directory => (0o555, 2),
            ViewNodeKind::Symlink => (0o777, 1),
            ViewNodeKind::File | ViewNodeKind::Other(_) => (0o444, 1),
        };
        ViewStat {
            kind,
            size,
            mode,
            links,
            owner: self.options.owner,
            modified: time,
            changed: time,
            accessed: time,
            created: time,
            blocks: size.div_ceil(512),
            inode: node.inode(),
            grows: node.is_present(),
        }
    }
}
