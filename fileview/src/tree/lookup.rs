//! Lookup of nodes by name.

use std::sync::Arc;

use engine::blocking::block_in_place;
use engine::files::FileError;
use engine::{Offset, PartitionView, TopicView, WaitPolicy};
use hlc::{Cut, Moment, MomentSelector};

use super::moments::system_cut;
use super::names::{
    DecodedKey, check_name, decode, escaped, parse_moment, partition_file, path_components,
    split_moments, user_times,
};
use super::scan::{TransactionFilter, UserTimeFilter, VisibleRange};
use super::{GuardedPlace, TopicNode, TreeError, ViewNode, ViewTree, ZnodeNode};
use crate::{RenderError, ViewFormat, check_topic};

fn not_found(name: &[u8]) -> TreeError {
    TreeError::NotFound(escaped(name).to_string())
}

/// A topic of the present, as a node.
fn present_topic(topic: &engine::Topic) -> TopicNode {
    TopicNode { name: Arc::clone(&topic.name), id: topic.id, at: None }
}

/// True if committed offsets exist below a root at this moment.
pub(crate) fn has_offsets(at: &Option<MomentSelector>) -> bool {
    // Commits and files have no user time.
    user_times(at).is_none()
}

/// The cut at which files and znodes are shown; `None` where there are none: a window shows no
/// files.
pub(crate) fn files_at(at: &Option<MomentSelector>) -> Option<Option<Cut>> {
    match at {
        None => Some(None),
        Some(MomentSelector::At(Moment::Sys(cut))) => Some(Some(*cut)),
        Some(_) => None,
    }
}

impl ViewTree {
    /// The node that a name in a directory refers to. The caller handles `..` and `.`.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn lookup(&self, parent: &ViewNode, name: &[u8]) -> Result<ViewNode, TreeError> {
        check_name(name)?;
        let child = self.child(parent, name).await;
        let is_open = parent.is_present() && !matches!(parent, ViewNode::Moments);
        if !is_open || !matches!(child, Err(TreeError::NotFound(_))) || !name.contains(&b'@') {
            return child;
        }
        let mut refused = None;
        for (base, text) in split_moments(name) {
            match self.child_at_moment(parent, base, self.moment_in_name(text)).await {
                Ok(node) => return Ok(node),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(refused) if matches!(parent, ViewNode::File { .. }) => {
                Err(no_such_file(name, &refused))
            }
            Some(refused) => Err(refused),
            None => child,
        }
    }

    /// The node that a name referred to at a moment, in the directory of the present.
    async fn child_at_moment(
        &self,
        parent: &ViewNode,
        name: &[u8],
        selector: Result<MomentSelector, TreeError>,
    ) -> Result<ViewNode, TreeError> {
        let at = Some(self.wait_until_closed(selector?).await?);
        let parent_then = match parent {
            ViewNode::Root(_) => ViewNode::Root(at),
            ViewNode::Topics(_) => ViewNode::Topics(at),
            ViewNode::Topic(topic) => ViewNode::Topic(self.topic(&topic.name, at).await?),
            ViewNode::Keys(topic) => ViewNode::Keys(self.topic(&topic.name, at).await?),
            ViewNode::Groups(_) => ViewNode::Groups(at),
            ViewNode::Group { group, .. } => ViewNode::Group { group: Arc::clone(group), at },
            ViewNode::GroupTopic { group, topic, .. } => {
                ViewNode::GroupTopic { group: Arc::clone(group), topic: Arc::clone(topic), at }
            }
            ViewNode::File { inode, .. } => match files_at(&at) {
                Some(cut) => ViewNode::File { inode: *inode, cut },
                None => return Err(no_files()),
            },
            ViewNode::Znode(znode) => match files_at(&at) {
                Some(cut) => ViewNode::Znode(ZnodeNode { path: Arc::clone(&znode.path), cut }),
                None => return Err(no_znodes()),
            },
            _ => return Err(not_found(name)),
        };
        if !has_offsets(&at)
            && matches!(
                parent_then,
                ViewNode::Groups(_) | ViewNode::Group { .. } | ViewNode::GroupTopic { .. }
            )
        {
            return Err(no_offsets());
        }
        self.child(&parent_then, name).await
    }

    /// The node that a name without a moment refers to.
    async fn child(&self, parent: &ViewNode, name: &[u8]) -> Result<ViewNode, TreeError> {
        if name.is_empty() {
            return Err(not_found(name));
        }
        self.check_child(parent, name)?;
        match parent {
            ViewNode::Root(at) => root_child(at, name),
            ViewNode::Moments => self.moment_child(name).await,
            ViewNode::Topics(at) => match std::str::from_utf8(name) {
                Ok(text) if check_topic(text).is_ok() => {
                    Ok(ViewNode::Topic(self.topic(text, *at).await?))
                }
                _ if at.is_some() && name.contains(&b'@') => Err(nested(name)),
                _ => Err(not_found(name)),
            },
            ViewNode::Topic(topic) => self.topic_child(topic, name).await,
            ViewNode::Keys(topic) => self.key_child(topic, name).await,
            ViewNode::Groups(_) | ViewNode::Group { .. } | ViewNode::GroupTopic { .. } => {
                self.offset_child(parent, name).await
            }
            ViewNode::File { inode, cut } => {
                let at = cut.unwrap_or(Cut::ALL);
                let child = block_in_place(|| {
                    let kind = self.engine.files().stat_inode(*inode, at)?.kind;
                    if kind != engine::files::FileKind::Directory {
                        return Err(FileError::NotDirectory(escaped(name)));
                    }
                    self.engine.files().lookup(*inode, name, at)
                });
                Ok(ViewNode::File { inode: child?, cut: *cut })
            }
            ViewNode::Znode(znode) => self.znode_child(znode, name),
            ViewNode::Pin(_)
            | ViewNode::Partition { .. }
            | ViewNode::Key { .. }
            | ViewNode::Committed { .. }
            | ViewNode::ZnodeData(_) => Err(TreeError::NotDirectory(escaped(name).to_string())),
        }
    }

    /// Asks the guard, before a name is looked up. A name below files, znodes, and a topic of a
    /// group needs no more than the directory that it was found in.
    fn check_child(&self, parent: &ViewNode, name: &[u8]) -> Result<(), TreeError> {
        match parent {
            ViewNode::Root(_) => match name {
                b"topics" => self.check(GuardedPlace::Topics),
                b"offsets" => self.check(GuardedPlace::Groups),
                b"files" | b"znodes" => self.check(GuardedPlace::Names),
                _ => Ok(()),
            },
            // A name that is no moment would be a pin.
            ViewNode::Moments if parse_moment(name).is_err() => self.check(GuardedPlace::Pins),
            ViewNode::Topics(_) | ViewNode::Group { .. } => match std::str::from_utf8(name) {
                Ok(text) if check_topic(text).is_ok() => self.check(GuardedPlace::Topic(text)),
                _ => Ok(()),
            },
            ViewNode::Keys(topic) => self.check(GuardedPlace::Records(&topic.name)),
            ViewNode::Groups(_) => match decode(name) {
                Some(DecodedKey::Whole(group)) => match std::str::from_utf8(&group) {
                    Ok(group) => self.check(GuardedPlace::Group(group)),
                    Err(_) => Ok(()),
                },
                // Nobody guesses the hash in the name of a long one. The list that it is found in
                // is checked.
                Some(DecodedKey::Long) | None => Ok(()),
            },
            ViewNode::Moments
            | ViewNode::Pin(_)
            | ViewNode::Topic(_)
            | ViewNode::Partition { .. }
            | ViewNode::Key { .. }
            | ViewNode::GroupTopic { .. }
            | ViewNode::Committed { .. }
            | ViewNode::File { .. }
            | ViewNode::Znode(_)
            | ViewNode::ZnodeData(_) => Ok(()),
        }
    }

    /// The moment behind the `@` of a name: spelled, or that of a pin.
    fn moment_in_name(&self, text: &[u8]) -> Result<MomentSelector, TreeError> {
        parse_moment(text).or_else(|error| {
            self.check(GuardedPlace::Pins).map_err(|_| error.clone())?;
            let pin = std::str::from_utf8(text).ok();
            let cut = pin.and_then(|pin| self.engine.pins().moment_of(pin)).ok_or(error)?;
            Ok(MomentSelector::At(Moment::Sys(cut)))
        })
    }

    async fn moment_child(&self, name: &[u8]) -> Result<ViewNode, TreeError> {
        let selector = match parse_moment(name) {
            Ok(selector) => selector,
            Err(error) => {
                let name = name.strip_prefix(b"pin:").unwrap_or(name);
                let mut pins = self.engine.pins().all().into_iter();
                let pin = pins.find(|pin| pin.name.as_bytes() == name);
                return pin.map(|pin| ViewNode::Pin(pin.name)).ok_or(error);
            }
        };
        Ok(ViewNode::Root(Some(self.wait_until_closed(selector).await?)))
    }

    /// The topic with a name, now or at a moment that is final.
    pub(crate) async fn topic(
        &self,
        name: &str,
        at: Option<MomentSelector>,
    ) -> Result<TopicNode, TreeError> {
        let Some(selector) = at else {
            let topic =
                self.engine.topics().named(name).ok_or_else(|| not_found(name.as_bytes()))?;
            return Ok(present_topic(&topic));
        };
        // For a window too, the name is resolved at its end.
        let cut = MomentSelector::At(Moment::Sys(system_cut(&selector)));
        let view = self.engine.seek().view_partitions(name, 0..0, cut, WaitPolicy::Refuse).await?;
        let topic = view.topic;
        Ok(TopicNode { name: Arc::clone(&topic.name), id: topic.id, at })
    }

    async fn topic_child(&self, topic: &TopicNode, name: &[u8]) -> Result<ViewNode, TreeError> {
        if name == b"by-key" {
            return Ok(ViewNode::Keys(topic.clone()));
        }
        let Some((partition, format)) = partition_file(name) else {
            let is_nested = topic.at.is_some() && name.contains(&b'@');
            return Err(if is_nested { nested(name) } else { not_found(name) });
        };
        if format == ViewFormat::Raw && user_times(&topic.at).is_some() {
            return Err(TreeError::Moment(RenderError::RawOfUserTime.to_string()));
        }
        let count = self.topic_at_moment(topic).await?.partitions.len();
        if partition as usize >= count {
            return Err(not_found(name));
        }
        Ok(ViewNode::Partition { topic: topic.clone(), partition, format })
    }

    /// The topic of a node.
    pub(crate) async fn topic_at_moment(
        &self,
        topic: &TopicNode,
    ) -> Result<Arc<engine::Topic>, TreeError> {
        let current = match topic.at {
            None => self.engine.topics().by_id(&topic.id),
            Some(selector) => {
                let cut = MomentSelector::At(Moment::Sys(system_cut(&selector)));
                let view = self
                    .engine
                    .seek()
                    .view_partitions(&topic.name, 0..0, cut, WaitPolicy::Refuse)
                    .await?;
                Some(view.topic).filter(|current| current.id == topic.id)
            }
        };
        current.ok_or_else(|| TreeError::NotFound(format!("the topic {} was deleted", topic.name)))
    }

    /// The visible ranges of some partitions of a topic, if they are retained. By user time, they
    /// cover everything known.
    pub(crate) async fn visible_ranges(
        &self,
        topic: &TopicNode,
        partitions: std::ops::Range<u32>,
    ) -> Result<Vec<VisibleRange>, TreeError> {
        let Some(selector) = topic.at else {
            let current = self.topic_at_moment(topic).await?;
            let selected =
                current.partitions.iter().filter(|partition| partitions.contains(&partition.index));
            let range_of = |partition: &Arc<engine::Partition>| {
                let transactions = TransactionFilter::present(&self.engine, self.isolation);
                let end = Some(transactions.end_of(partition));
                let view = PartitionView { end, ..PartitionView::present(partition) };
                visible_range_of(topic, view, transactions, None, None)
            };
            return Ok(selected.map(range_of).collect());
        };
        let topic_view = self
            .engine
            .seek()
            .view_partitions(&topic.name, partitions.clone(), selector, WaitPolicy::Refuse)
            .await?;
        if topic_view.topic.id != topic.id {
            return Err(not_found(topic.name.as_bytes()));
        }
        let user = user_times(&topic.at);
        let views = match user {
            None => topic_view.partitions.clone(),
            // The exact set can lie anywhere in what was known. The prefix by user time tells
            // whether records of the set were removed. The moment as of which it is known does not
            // tell that.
            Some(_) => {
                let as_known = MomentSelector::At(Moment::Sys(system_cut(&selector)));
                self.engine
                    .seek()
                    .view_partitions(&topic.name, partitions, as_known, WaitPolicy::Refuse)
                    .await?
                    .partitions
            }
        };
        let topic_view = Arc::new(topic_view);
        let range_of = |view: PartitionView| {
            let user = user.clone().map(|times| UserTimeFilter {
                times,
                engine: Arc::clone(&self.engine),
                partition: Arc::clone(&view.partition),
            });
            let cut = system_cut(&topic_view.selector);
            let (partition, end) = (&view.partition, view.end());
            let transactions =
                TransactionFilter::at(&self.engine, self.isolation, partition, end, cut)?;
            Ok(visible_range_of(topic, view, transactions, user, Some(&topic_view)))
        };
        views.into_iter().map(range_of).collect()
    }

    /// [`ViewTree::visible_ranges`] for one partition.
    pub(crate) async fn visible_range(
        &self,
        topic: &TopicNode,
        partition: u32,
    ) -> Result<VisibleRange, TreeError> {
        let ranges = self.visible_ranges(topic, partition..partition.saturating_add(1)).await?;
        ranges
            .into_iter()
            .next()
            .ok_or_else(|| TreeError::NotFound(format!("{}/{partition}", topic.name)))
    }

    async fn offset_child(&self, parent: &ViewNode, name: &[u8]) -> Result<ViewNode, TreeError> {
        let children = self.committed_children(parent).await?;
        let child = children.into_iter().find(|child| child.name == name);
        child.map(|child| child.node).ok_or_else(|| not_found(name))
    }

    /// The node at a path: names with slashes between them, from the root.
    ///
    /// `..` is followed, and may not leave the tree. A link is followed if a slash is behind it. A
    /// moment after the last name applies to the whole path: the other names are resolved at that
    /// moment too.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn resolve(&self, path: &[u8]) -> Result<ViewNode, TreeError> {
        let steps = path_components(path)?;
        let Some((last, before)) = steps.split_last() else { return Ok(self.root()) };
        let is_then = before.first().is_some_and(|first| *first != b".at") && last.contains(&b'@');
        if !is_then {
            let node = self.walk(self.root(), &steps).await?;
            let is_followed = path.ends_with(b"/") || path.ends_with(b"/.");
            return if is_followed { self.follow(node).await } else { Ok(node) };
        }
        // A name that itself contains an @ takes precedence.
        if let Ok(parent) = self.walk(self.root(), before).await
            && let Ok(node) = self.child(&parent, last).await
        {
            return Ok(node);
        }
        let mut refused = None;
        for (base, text) in split_moments(last) {
            let node = async {
                let selector = self.moment_in_name(text)?;
                let root = ViewNode::Root(Some(self.wait_until_closed(selector).await?));
                let parent = self.walk(root, before).await?;
                self.child(&parent, base).await
            };
            match node.await {
                Ok(node) => return Ok(node),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(refused @ TreeError::NotPermitted(_)) => Err(refused),
            Some(refused) if before[0] == b"files" => Err(no_such_file(last, &refused)),
            Some(refused) => Err(refused),
            None => Err(not_found(last)),
        }
    }

    async fn walk(&self, from: ViewNode, steps: &[&[u8]]) -> Result<ViewNode, TreeError> {
        let mut node = from;
        for name in steps {
            node = self.lookup(&self.follow(node).await?, name).await?;
        }
        Ok(node)
    }

    /// Follows a link to its root of a moment; returns any other node as it is.
    async fn follow(&self, node: ViewNode) -> Result<ViewNode, TreeError> {
        let ViewNode::Pin(pin) = &node else { return Ok(node) };
        let selector = self.moment_in_name(format!("pin:{pin}").as_bytes())?;
        Ok(ViewNode::Root(Some(self.wait_until_closed(selector).await?)))
    }
}

fn visible_range_of(
    topic: &TopicNode,
    view: PartitionView,
    transactions: TransactionFilter,
    user: Option<UserTimeFilter>,
    topic_view: Option<&Arc<TopicView>>,
) -> VisibleRange {
    // If the log start passes the end, inside a batch, the range is empty at the end.
    let end = view.end().max(Offset(0));
    let start = view.start().min(end);
    let (topic, partition) = (Arc::clone(&topic.name), view.partition);
    VisibleRange {
        topic,
        partition,
        start,
        end,
        transactions,
        user,
        topic_view: topic_view.cloned(),
    }
}

fn root_child(at: &Option<MomentSelector>, name: &[u8]) -> Result<ViewNode, TreeError> {
    match name {
        b"topics" => Ok(ViewNode::Topics(*at)),
        b"offsets" if has_offsets(at) => Ok(ViewNode::Groups(*at)),
        b"offsets" => Err(no_offsets()),
        b"files" => match files_at(at) {
            Some(cut) => Ok(ViewNode::File { inode: engine::files::Inode::ROOT, cut }),
            None => Err(no_files()),
        },
        b"znodes" => match files_at(at) {
            Some(cut) => Ok(ViewNode::Znode(ZnodeNode::root(cut))),
            None => Err(no_znodes()),
        },
        b".at" if at.is_none() => Ok(ViewNode::Moments),
        _ => Err(not_found(name)),
    }
}

/// A program may be about to create a file of that name. For it the name does not exist.
fn no_such_file(name: &[u8], refused: &TreeError) -> TreeError {
    TreeError::NotFound(format!("{} (and as a moment: {refused})", escaped(name)))
}

fn no_offsets() -> TreeError {
    TreeError::Moment("committed offsets have no user time: ask by system time (s…)".to_owned())
}

fn no_files() -> TreeError {
    TreeError::Moment(
        "files are seen as of one moment of system time (s…), not by user time or in a window"
            .to_owned(),
    )
}

fn no_znodes() -> TreeError {
    TreeError::Moment(
        "znodes are seen as of one moment of system time (s…), not by user time or in a window"
            .to_owned(),
    )
}

fn nested(name: &[u8]) -> TreeError {
    TreeError::Moment(format!("it is seen as of a moment already: {}", escaped(name)))
}
