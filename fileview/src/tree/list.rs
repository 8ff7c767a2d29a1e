//! The names in a directory.
//!
//! Names come in the order of a hash. A page begins after a name's cookie, so names that appear or
//! disappear between two pages do not move other names.

use std::sync::Arc;

use engine::WaitPolicy;
use engine::blocking::block_in_place;
use engine::files::Inode;
use hlc::{Cut, Moment, MomentSelector};

use super::keys::{COOKIE_MIN, cookie};
use super::lookup::{files_at, has_offsets};
use super::moments::system_cut;
use super::names::{FORMATS, encode, extension, parse_moment, user_times};
use super::{
    GuardedPlace, TopicNode, TreeError, ViewEntry, ViewNode, ViewNodeKind, ViewTree, ZnodeNode,
};
use crate::ViewFormat;

/// The requested page of a listing.
struct ListingPage {
    seed: u64,
    listed: Vec<ViewEntry>,
}

impl ListingPage {
    fn add(&mut self, name: impl Into<Vec<u8>>, node: ViewNode, kind: ViewNodeKind) {
        let name = name.into();
        self.listed.push(ViewEntry { cookie: cookie(&name, self.seed), name, node, kind });
    }

    /// The names after `after`, in order. Names with the same cookie stay on one page.
    fn cut(mut self, after: u64, max: usize) -> Vec<ViewEntry> {
        self.listed.retain(|entry| entry.cookie > after);
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

/// Fixed names, in the order in which a person would list them.
fn fixed(names: Vec<(&str, ViewNode)>, after: u64, max: usize) -> Vec<ViewEntry> {
    let cookies = COOKIE_MIN..;
    let all = cookies.zip(names).map(|(cookie, (name, node))| ViewEntry {
        cookie,
        name: name.into(),
        node,
        kind: ViewNodeKind::Directory,
    });
    all.filter(|entry| entry.cookie > after).take(max.max(1)).collect()
}

impl ViewTree {
    /// Lists about `max` names in a directory, after the cookie `after` (0 for all); empty at the
    /// end.
    ///
    /// The order has no meaning, but it is always the same. A name that stays is listed once,
    /// whatever appears or disappears in the meantime.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn list(
        &self,
        node: &ViewNode,
        after: u64,
        max: usize,
    ) -> Result<Vec<ViewEntry>, TreeError> {
        let mut page = ListingPage { seed: self.seed, listed: Vec::new() };
        match node {
            ViewNode::Root(at) => return Ok(fixed(root_children(at), after, max)),
            ViewNode::Keys(topic) => {
                self.check(GuardedPlace::Records(&topic.name))?;
                return self.list_keys(topic, after, max).await;
            }
            ViewNode::Moments => {
                let pins = self.engine.pins().all();
                let are_shown = pins.is_empty() || self.is_shown(GuardedPlace::Pins);
                let shown = if are_shown { pins } else { Vec::new() };
                for pin in shown {
                    // A pin whose name is a moment: a lookup of that name finds the moment.
                    if parse_moment(pin.name.as_bytes()).is_err() {
                        page.add(
                            pin.name.as_bytes(),
                            ViewNode::Pin(pin.name.clone()),
                            ViewNodeKind::Symlink,
                        );
                    }
                }
            }
            ViewNode::Topics(at) => {
                for topic in self.topics(at).await? {
                    if !self.is_shown(GuardedPlace::Topic(&topic.name)) {
                        continue;
                    }
                    let node = TopicNode { name: Arc::clone(&topic.name), id: topic.id, at: *at };
                    page.add(topic.name.as_bytes(), ViewNode::Topic(node), ViewNodeKind::Directory);
                }
            }
            ViewNode::Topic(topic) => {
                let count = self.topic_at_moment(topic).await?.partitions.len();
                page.add("by-key", ViewNode::Keys(topic.clone()), ViewNodeKind::Directory);
                let is_user = user_times(&topic.at).is_some();
                // Raw output has whole batches, but a user time selects single records.
                let formats =
                    FORMATS.iter().filter(|format| !is_user || **format != ViewFormat::Raw);
                for format in formats {
                    for partition in 0..count as u32 {
                        let name = format!("{partition}.{}", extension(*format));
                        let (topic, format) = (topic.clone(), *format);
                        page.add(
                            name,
                            ViewNode::Partition { topic, partition, format },
                            ViewNodeKind::File,
                        );
                    }
                }
            }
            ViewNode::Groups(_) | ViewNode::Group { .. } | ViewNode::GroupTopic { .. } => {
                for NamedChild { name, node, kind } in self.committed_children(node).await? {
                    page.add(name, node, kind);
                }
            }
            ViewNode::File { inode, cut } => {
                let at = cut.unwrap_or(Cut::ALL);
                for entry in block_in_place(|| self.engine.files().list_inode(*inode, at))? {
                    let node = ViewNode::File { inode: entry.inode, cut: *cut };
                    page.add(entry.name, node, entry.kind.into());
                }
            }
            ViewNode::Znode(znode) => {
                for (name, node, kind) in self.list_znode(znode)? {
                    page.add(name, node, kind);
                }
            }
            ViewNode::Pin(_)
            | ViewNode::ZnodeData(_)
            | ViewNode::Partition { .. }
            | ViewNode::Key { .. }
            | ViewNode::Committed { .. } => {
                return Err(TreeError::NotDirectory("read it, instead of listing it".to_owned()));
            }
        }
        Ok(page.cut(after, max))
    }

    /// The topics that exist now, or existed at the moment.
    async fn topics(
        &self,
        at: &Option<MomentSelector>,
    ) -> Result<Vec<Arc<engine::Topic>>, TreeError> {
        let Some(selector) = at else { return Ok(self.engine.topics().all()) };
        let (.., topics) =
            self.engine.topics().at(system_cut(selector), WaitPolicy::Refuse).await?;
        Ok(topics.into_iter().map(|(topic, _)| topic).collect())
    }

    /// The entries of a directory of committed offsets.
    pub(crate) async fn committed_children(
        &self,
        node: &ViewNode,
    ) -> Result<Vec<NamedChild>, TreeError> {
        let mut children: Vec<NamedChild> = Vec::new();
        for offset in self.committed(node).await? {
            let is_shown = match node {
                ViewNode::Groups(_) => self.is_shown(GuardedPlace::Group(&offset.group)),
                ViewNode::Group { .. } => self.is_shown(GuardedPlace::Topic(&offset.topic)),
                _ => true,
            };
            if !is_shown {
                continue;
            }
            let child = match node {
                ViewNode::Group { group, at } if **group == *offset.group => {
                    let (group, topic) = (Arc::clone(group), Arc::from(&*offset.topic));
                    let node = ViewNode::GroupTopic { group, topic, at: *at };
                    NamedChild {
                        name: offset.topic.into_bytes(),
                        node,
                        kind: ViewNodeKind::Directory,
                    }
                }
                ViewNode::GroupTopic { group, topic, at } if **topic == *offset.topic => {
                    let node = ViewNode::Committed {
                        group: Arc::clone(group),
                        topic: Arc::clone(topic),
                        partition: offset.partition,
                        at: *at,
                    };
                    NamedChild {
                        name: offset.partition.to_string().into(),
                        node,
                        kind: ViewNodeKind::File,
                    }
                }
                ViewNode::Groups(at) => {
                    let node = ViewNode::Group { group: Arc::from(&*offset.group), at: *at };
                    NamedChild {
                        name: encode(offset.group.as_bytes()),
                        node,
                        kind: ViewNodeKind::Directory,
                    }
                }
                _ => continue,
            };
            // They are sorted, so equal names are adjacent.
            if children.last().is_none_or(|last| last.name != child.name) {
                children.push(child);
            }
        }
        Ok(children)
    }

    /// The committed offsets that a node covers.
    pub(crate) async fn committed(
        &self,
        node: &ViewNode,
    ) -> Result<Vec<engine::groups::GroupOffset>, TreeError> {
        let (group, at) = match node {
            ViewNode::Groups(at) => (None, at),
            ViewNode::Group { group, at }
            | ViewNode::GroupTopic { group, at, .. }
            | ViewNode::Committed { group, at, .. } => (Some(&**group), at),
            _ => return Ok(Vec::new()),
        };
        let Some(selector) = at else {
            return Ok(block_in_place(|| self.engine.groups().committed_offsets(group))?);
        };
        let (.., mut offsets) = self
            .engine
            .groups()
            .offsets_at(group, system_cut(selector), WaitPolicy::Refuse)
            .await?;
        if let MomentSelector::Window(Moment::Sys(first), _) = selector {
            offsets.retain(|offset| !first.admits(offset.stamp));
        }
        Ok(offsets)
    }
}

/// A name, and the node that it refers to.
pub(crate) struct NamedChild {
    pub(crate) name: Vec<u8>,
    pub(crate) node: ViewNode,
    pub(crate) kind: ViewNodeKind,
}

fn root_children(at: &Option<MomentSelector>) -> Vec<(&'static str, ViewNode)> {
    let mut names = vec![("topics", ViewNode::Topics(*at))];
    if has_offsets(at) {
        names.push(("offsets", ViewNode::Groups(*at)));
    }
    if let Some(cut) = files_at(at) {
        names.push(("files", ViewNode::File { inode: Inode::ROOT, cut }));
        names.push(("znodes", ViewNode::Znode(ZnodeNode::root(cut))));
    }
    if at.is_none() {
        names.push((".at", ViewNode::Moments));
    }
    names
}
