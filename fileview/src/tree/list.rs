//! The names in a directory.
//!
//! Names come in the order of a hash: a page begins behind a name's place, so what comes and goes
//! meanwhile moves nobody else.

use std::sync::Arc;

use engine::When;
use engine::blocking::on_disk;
use engine::files::Inode;
use hlc::{Ask, Cut, Moment};

use super::keys::{COOKIE_MIN, cookie};
use super::lookup::{files_at, has_offsets};
use super::moments::bound;
use super::names::{FORMATS, encode, extension, moment, user_times};
use super::{Kind, Listed, Node, TopicNode, Tree, TreeError};
use crate::Format;

/// What of a listing was asked for.
struct Page {
    seed: u64,
    listed: Vec<Listed>,
}

impl Page {
    fn add(&mut self, name: impl Into<Vec<u8>>, node: Node, kind: Kind) {
        let name = name.into();
        self.listed.push(Listed { cookie: cookie(&name, self.seed), name, node, kind });
    }

    /// In order, from behind `after` on; those of one cookie come together.
    fn cut(mut self, after: u64, max: usize) -> Vec<Listed> {
        self.listed.retain(|listed| listed.cookie > after);
        self.listed.sort_unstable_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
        let mut end = max.max(1).min(self.listed.len());
        while end > 0
            && end < self.listed.len()
            && self.listed[end].cookie == self.listed[end - 1].cookie
        {
            end += 1;
        }
        self.listed.truncate(end);
        self.listed
    }
}

/// Names that are always the same, in the order in which a person would put them.
fn fixed(names: Vec<(&str, Node)>, after: u64, max: usize) -> Vec<Listed> {
    let cookies = COOKIE_MIN..;
    let all = cookies.zip(names).map(|(cookie, (name, node))| Listed {
        cookie,
        name: name.into(),
        node,
        kind: Kind::Directory,
    });
    all.filter(|listed| listed.cookie > after).take(max.max(1)).collect()
}

impl Tree {
    /// Names in a directory, those behind the cookie `after` (0 for all), about `max` of them; empty at
    /// the end. In no order that means anything, but in the same one always: a name that stays is
    /// listed once, whatever comes and goes meanwhile.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn list(
        &self,
        node: &Node,
        after: u64,
        max: usize,
    ) -> Result<Vec<Listed>, TreeError> {
        let mut page = Page { seed: self.seed, listed: Vec::new() };
        match node {
            Node::Root(at) => return Ok(fixed(below_root(at), after, max)),
            Node::Keys(topic) => return self.list_keys(topic, after, max).await,
            Node::Moments => {
                for pin in self.engine.pins() {
                    // One that is called like a moment is that moment, when it is looked up.
                    if moment(pin.name.as_bytes()).is_err() {
                        page.add(pin.name.as_bytes(), Node::Pin(pin.name.clone()), Kind::Symlink);
                    }
                }
            }
            Node::Topics(at) => {
                for topic in self.topics(at).await? {
                    let node = TopicNode { name: Arc::clone(&topic.name), id: topic.id, at: *at };
                    page.add(topic.name.as_bytes(), Node::Topic(node), Kind::Directory);
                }
            }
            Node::Topic(topic) => {
                let count = self.topic_then(topic).await?.partitions.len();
                page.add("by-key", Node::Keys(topic.clone()), Kind::Directory);
                let is_user = user_times(&topic.at).is_some();
                // Batches come whole, and a user time picks records.
                let formats = FORMATS.iter().filter(|format| !is_user || **format != Format::Raw);
                for format in formats {
                    for partition in 0..count as u32 {
                        let name = format!("{partition}.{}", extension(*format));
                        let (topic, format) = (topic.clone(), *format);
                        page.add(name, Node::Partition { topic, partition, format }, Kind::File);
                    }
                }
            }
            Node::Groups(_) | Node::Group { .. } | Node::GroupTopic { .. } => {
                for Named { name, node, kind } in self.committed_below(node).await? {
                    page.add(name, node, kind);
                }
            }
            Node::File { inode, cut } => {
                let at = cut.unwrap_or(Cut::ALL);
                for entry in on_disk(|| self.engine.files().list_inode(*inode, at))? {
                    let node = Node::File { inode: entry.inode, cut: *cut };
                    page.add(entry.name, node, entry.kind.into());
                }
            }
            Node::Pin(_) | Node::Partition { .. } | Node::Key { .. } | Node::Committed { .. } => {
                return Err(TreeError::NotDirectory(String::new()));
            }
        }
        Ok(page.cut(after, max))
    }

    /// The topics that there are, or were.
    async fn topics(&self, at: &Option<Ask>) -> Result<Vec<Arc<engine::Topic>>, TreeError> {
        let Some(ask) = at else { return Ok(self.engine.topics()) };
        let (.., topics) = self.engine.topics_at(bound(ask), When::Refuse).await?;
        Ok(topics.into_iter().map(|(topic, _)| topic).collect())
    }

    /// What stands in a directory of committed offsets.
    pub(crate) async fn committed_below(&self, node: &Node) -> Result<Vec<Named>, TreeError> {
        let mut found: Vec<Named> = Vec::new();
        for held in self.committed(node).await? {
            let named = match node {
                Node::Group { group, at } if **group == *held.group => {
                    let (group, topic) = (Arc::clone(group), Arc::from(&*held.topic));
                    let node = Node::GroupTopic { group, topic, at: *at };
                    Named { name: held.topic.into_bytes(), node, kind: Kind::Directory }
                }
                Node::GroupTopic { group, topic, at } if **topic == *held.topic => {
                    let node = Node::Committed {
                        group: Arc::clone(group),
                        topic: Arc::clone(topic),
                        partition: held.partition,
                        at: *at,
                    };
                    Named { name: held.partition.to_string().into(), node, kind: Kind::File }
                }
                Node::Groups(at) => {
                    let node = Node::Group { group: Arc::from(&*held.group), at: *at };
                    Named { name: encode(held.group.as_bytes()), node, kind: Kind::Directory }
                }
                _ => continue,
            };
            // They come in order: the same ones together.
            if found.last().is_none_or(|last| last.name != named.name) {
                found.push(named);
            }
        }
        Ok(found)
    }

    /// The committed offsets that a node is about.
    pub(crate) async fn committed(
        &self,
        node: &Node,
    ) -> Result<Vec<engine::GroupOffset>, TreeError> {
        let (group, at) = match node {
            Node::Groups(at) => (None, at),
            Node::Group { group, at }
            | Node::GroupTopic { group, at, .. }
            | Node::Committed { group, at, .. } => (Some(&**group), at),
            _ => return Ok(Vec::new()),
        };
        let Some(ask) = at else {
            return Ok(on_disk(|| self.engine.committed_offsets(group))?);
        };
        let (.., mut offsets) = self.engine.offsets_at(group, bound(ask), When::Refuse).await?;
        if let Ask::Window(Moment::Sys(first), _) = ask {
            offsets.retain(|held| !first.admits(held.stamp));
        }
        Ok(offsets)
    }
}

/// A name, and what it means.
pub(crate) struct Named {
    pub(crate) name: Vec<u8>,
    pub(crate) node: Node,
    pub(crate) kind: Kind,
}

fn below_root(at: &Option<Ask>) -> Vec<(&'static str, Node)> {
    let mut names = vec![("topics", Node::Topics(*at))];
    if has_offsets(at) {
        names.push(("offsets", Node::Groups(*at)));
    }
    if let Some(cut) = files_at(at) {
        names.push(("files", Node::File { inode: Inode::ROOT, cut }));
    }
    if at.is_none() {
        names.push((".at", Node::Moments));
    }
    names
}
