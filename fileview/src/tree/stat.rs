//! What is known of a node without its bytes.

use engine::blocking::on_disk;
use engine::files::FileTime;
use hlc::{Ask, Cut, Hlc};

use super::moments::bound;
use super::names::shown;
use super::raw::raw_size;
use super::scan::Seen;
use super::text::{key_of, text_of};
use super::{Kind, Node, Stat, TopicNode, Tree, TreeError};
use crate::Format;

/// How often something is looked at again that was given up while it was.
pub(crate) const TRIES: usize = 5;

impl Tree {
    /// What is known of a node.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn stat(&self, node: &Node) -> Result<Stat, TreeError> {
        match node {
            Node::Partition { topic, partition, format } => {
                let mut tries = 1;
                loop {
                    match self.stat_partition(node, topic, *partition, *format).await {
                        Err(TreeError::Gone(_)) if tries < TRIES => tries += 1,
                        found => return found,
                    }
                }
            }
            Node::Key { topic, key } => {
                let newest = self.newest(topic, key).await?;
                let newest =
                    newest.ok_or_else(|| TreeError::NotFound(format!("key={}", shown(key))))?;
                let time = newest.stamp.into();
                Ok(self.of(node, Kind::File, newest.length.unwrap_or(0), time))
            }
            Node::Committed { .. } => {
                let (text, stamp) = self.committed_text(node).await?;
                Ok(self.of(node, Kind::File, text.len() as u64, stamp.into()))
            }
            Node::Pin(_) => {
                let target = self.read_link(node).await?;
                Ok(self.of(node, Kind::Symlink, target.len() as u64, self.since))
            }
            Node::File { inode, cut } => {
                let at = cut.unwrap_or(Cut::ALL);
                let found = on_disk(|| self.engine.files().stat_inode(*inode, at))?;
                Ok(Stat {
                    kind: found.kind.into(),
                    size: found.size,
                    mode: found.mode,
                    links: found.links,
                    owner: (found.uid, found.gid),
                    modified: found.modified,
                    changed: found.changed,
                    accessed: found.accessed,
                    created: found.born,
                    blocks: found.size.div_ceil(512),
                    inode: node.inode(),
                    grows: cut.is_none(),
                })
            }
            Node::Topic(topic) | Node::Keys(topic) => {
                let created = self.topic_then(topic).await?.created;
                Ok(self.of(node, Kind::Directory, 0, created.into()))
            }
            Node::Root(at) | Node::Topics(at) | Node::Groups(at) => Ok(self.of_directory(node, at)),
            Node::Group { at, .. } | Node::GroupTopic { at, .. } => Ok(self.of_directory(node, at)),
            Node::Moments => Ok(self.of(node, Kind::Directory, 0, self.since)),
        }
    }

    /// An extended attribute, as it was; only files have any.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn extended(&self, node: &Node, name: &[u8]) -> Result<Option<Vec<u8>>, TreeError> {
        let Node::File { inode, cut } = node else { return Ok(None) };
        let at = cut.unwrap_or(Cut::ALL);
        Ok(on_disk(|| self.engine.files().extended(*inode, name, at))?)
    }

    /// The names of all extended attributes, as they were.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn extended_names(&self, node: &Node) -> Result<Vec<Vec<u8>>, TreeError> {
        let Node::File { inode, cut } = node else { return Ok(Vec::new()) };
        let at = cut.unwrap_or(Cut::ALL);
        Ok(on_disk(|| self.engine.files().list_extended(*inode, at))?)
    }

    async fn stat_partition(
        &self,
        node: &Node,
        topic: &TopicNode,
        partition: u32,
        format: Format,
    ) -> Result<Stat, TreeError> {
        let seen = self.seen_one(topic, partition).await?;
        let size = self.size(&seen, format).await?;
        let modified = on_disk(|| match topic.at {
            Some(ask) => seen.partition.log.tip_at(bound(&ask)),
            None => Ok(seen.partition.log.tip()),
        })?;
        let created: FileTime = self.topic_then(topic).await?.created.into();
        let modified = if modified.stamp == Hlc::ZERO { created } else { modified.stamp.into() };
        Ok(Stat { created, ..self.of(node, Kind::File, size, modified) })
    }

    /// How many bytes a reader finds.
    pub(crate) async fn size(&self, seen: &Seen, format: Format) -> Result<u64, TreeError> {
        if format == Format::Raw {
            let size = raw_size(seen)?;
            seen.check_kept()?;
            return Ok(size);
        }
        let text = text_of(&self.texts, seen, format, &self.options)?;
        let size = text.position(seen.end).await? - text.position(seen.start).await?;
        self.texts.grew(&key_of(seen, format));
        // Asked again: the text is that of a generation which may have come after it was seen.
        seen.check_kept()?;
        Ok(size)
    }

    fn of_directory(&self, node: &Node, at: &Option<Ask>) -> Stat {
        let time = at.map_or(self.since, |ask| bound(&ask).bound().into());
        self.of(node, Kind::Directory, 0, time)
    }

    fn of(&self, node: &Node, kind: Kind, size: u64, time: FileTime) -> Stat {
        let (mode, links) = match kind {
            Kind::Directory => (0o555, 2),
            Kind::Symlink => (0o777, 1),
            Kind::File | Kind::Other(_) => (0o444, 1),
        };
        Stat {
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
