//! From names to nodes.

use std::sync::Arc;

use engine::blocking::on_disk;
use engine::files::FileError;
use engine::{Offset, TopicView, View, When};
use hlc::{Ask, Cut, Moment};

use super::moments::bound;
use super::names::{check, moment, partition_file, shown, steps, user_times, with_moment};
use super::scan::{ByUser, Seen};
use super::{Node, TopicNode, Tree, TreeError};
use crate::{Format, RenderError, check_topic};

fn missing(name: &[u8]) -> TreeError {
    TreeError::NotFound(format!("name={}", shown(name)))
}

/// A topic of the present, as a node.
fn present(topic: &engine::Topic) -> TopicNode {
    TopicNode { name: Arc::clone(&topic.name), id: topic.id, at: None }
}

/// Of all that can stand below a root, what there is at a moment.
pub(crate) fn has_offsets(at: &Option<Ask>) -> bool {
    // Commits and files have no user time.
    user_times(at).is_none()
}

/// The cut at which files are seen; `None` where they are not: between two moments there are none.
pub(crate) fn files_at(at: &Option<Ask>) -> Option<Option<Cut>> {
    match at {
        None => Some(None),
        Some(Ask::At(Moment::Sys(cut))) => Some(Some(*cut)),
        Some(_) => None,
    }
}

impl Tree {
    /// What a name in a directory means. `..` and `.` are up to the caller.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn lookup(&self, parent: &Node, name: &[u8]) -> Result<Node, TreeError> {
        check(name)?;
        let found = self.child(parent, name).await;
        let is_open = parent.is_present() && !matches!(parent, Node::Root(_) | Node::Moments);
        if !is_open || !matches!(found, Err(TreeError::NotFound(_))) || !name.contains(&b'@') {
            return found;
        }
        let mut refused = None;
        for (base, ask) in with_moment(name) {
            match self.child_then(parent, base, ask).await {
                Ok(node) => return Ok(node),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(refused) if matches!(parent, Node::File { .. }) => Err(no_file(name, &refused)),
            Some(refused) => Err(refused),
            None => found,
        }
    }

    /// What a name meant at a moment, in what the directory is called now.
    async fn child_then(
        &self,
        parent: &Node,
        name: &[u8],
        ask: Result<Ask, TreeError>,
    ) -> Result<Node, TreeError> {
        let at = Some(self.settle(ask?).await?);
        let then = match parent {
            Node::Topics(_) => Node::Topics(at),
            Node::Topic(topic) => Node::Topic(self.topic(&topic.name, at).await?),
            Node::Keys(topic) => Node::Keys(self.topic(&topic.name, at).await?),
            Node::Groups(_) => Node::Groups(at),
            Node::Group { group, .. } => Node::Group { group: Arc::clone(group), at },
            Node::GroupTopic { group, topic, .. } => {
                Node::GroupTopic { group: Arc::clone(group), topic: Arc::clone(topic), at }
            }
            Node::File { inode, .. } => match files_at(&at) {
                Some(cut) => Node::File { inode: *inode, cut },
                None => return Err(no_files()),
            },
            _ => return Err(missing(name)),
        };
        if !has_offsets(&at)
            && matches!(then, Node::Groups(_) | Node::Group { .. } | Node::GroupTopic { .. })
        {
            return Err(no_offsets());
        }
        self.child(&then, name).await
    }

    /// What a name means that has no moment in it.
    async fn child(&self, parent: &Node, name: &[u8]) -> Result<Node, TreeError> {
        if name.is_empty() {
            return Err(missing(name));
        }
        match parent {
            Node::Root(at) => root_child(at, name),
            Node::Moments => self.moment_child(name).await,
            Node::Topics(at) => match std::str::from_utf8(name) {
                Ok(text) if check_topic(text).is_ok() => {
                    Ok(Node::Topic(self.topic(text, *at).await?))
                }
                _ if at.is_some() && name.contains(&b'@') => Err(nested(name)),
                _ => Err(missing(name)),
            },
            Node::Topic(topic) => self.topic_child(topic, name).await,
            Node::Keys(topic) => self.key_child(topic, name).await,
            Node::Groups(_) | Node::Group { .. } | Node::GroupTopic { .. } => {
                self.offset_child(parent, name).await
            }
            Node::File { inode, cut } => {
                let at = cut.unwrap_or(Cut::ALL);
                let found = on_disk(|| {
                    let kind = self.engine.files().stat_inode(*inode, at)?.kind;
                    if kind != engine::files::FileKind::Directory {
                        return Err(FileError::NotDirectory(shown(name)));
                    }
                    self.engine.files().lookup(*inode, name, at)
                });
                Ok(Node::File { inode: found?, cut: *cut })
            }
            Node::Pin(_) | Node::Partition { .. } | Node::Key { .. } | Node::Committed { .. } => {
                Err(TreeError::NotDirectory(format!("name={}", shown(name))))
            }
        }
    }

    async fn moment_child(&self, name: &[u8]) -> Result<Node, TreeError> {
        let ask = match moment(name) {
            Ok(ask) => ask,
            Err(error) => {
                let pin = self.engine.pins().into_iter().find(|pin| pin.name.as_bytes() == name);
                return pin.map(|pin| Node::Pin(pin.name)).ok_or(error);
            }
        };
        Ok(Node::Root(Some(self.settle(ask).await?)))
    }

    /// The topic of a name, now or at a moment that has been settled.
    pub(crate) async fn topic(&self, name: &str, at: Option<Ask>) -> Result<TopicNode, TreeError> {
        let Some(ask) = at else {
            let topic = self.engine.topic(name).ok_or_else(|| missing(name.as_bytes()))?;
            return Ok(present(&topic));
        };
        // Of a window too, the name is that of its end.
        let cut = Ask::At(Moment::Sys(bound(&ask)));
        let view = self.engine.view_of(name, 0..0, cut, When::Refuse).await?;
        let topic = view.topic;
        Ok(TopicNode { name: Arc::clone(&topic.name), id: topic.id, at })
    }

    async fn topic_child(&self, topic: &TopicNode, name: &[u8]) -> Result<Node, TreeError> {
        if name == b"by-key" {
            return Ok(Node::Keys(topic.clone()));
        }
        let Some((partition, format)) = partition_file(name) else {
            let is_nested = topic.at.is_some() && name.contains(&b'@');
            return Err(if is_nested { nested(name) } else { missing(name) });
        };
        if format == Format::Raw && user_times(&topic.at).is_some() {
            return Err(TreeError::Moment(RenderError::RawOfUserTime.to_string()));
        }
        let count = self.topic_then(topic).await?.partitions.len();
        if partition as usize >= count {
            return Err(missing(name));
        }
        Ok(Node::Partition { topic: topic.clone(), partition, format })
    }

    /// The topic of a node.
    pub(crate) async fn topic_then(
        &self,
        topic: &TopicNode,
    ) -> Result<Arc<engine::Topic>, TreeError> {
        let found = match topic.at {
            None => self.engine.topic_by_id(&topic.id),
            Some(ask) => {
                let cut = Ask::At(Moment::Sys(bound(&ask)));
                let view = self.engine.view_of(&topic.name, 0..0, cut, When::Refuse).await?;
                Some(view.topic).filter(|found| found.id == topic.id)
            }
        };
        found.ok_or_else(|| {
            TreeError::NotFound(format!("the topic was deleted. topic={}", topic.name))
        })
    }

    /// What a reader may see of some partitions of a topic, if it is kept. By user time, of all that was
    /// known.
    pub(crate) async fn seen(
        &self,
        topic: &TopicNode,
        partitions: std::ops::Range<u32>,
    ) -> Result<Vec<Seen>, TreeError> {
        let Some(ask) = topic.at else {
            let found = self.topic_then(topic).await?;
            let held = found.partitions.iter().filter(|held| partitions.contains(&held.index));
            return Ok(held.map(|held| seen_of(topic, View::present(held), None, None)).collect());
        };
        let then = self.engine.view_of(&topic.name, partitions.clone(), ask, When::Refuse).await?;
        if then.topic.id != topic.id {
            return Err(missing(topic.name.as_bytes()));
        }
        let user = user_times(&topic.at);
        let views = match user {
            None => then.partitions.clone(),
            // The exact set lies anywhere in what was known. Whether something of it was given up, the
            // prefix tells: by user time, not by when the moment was known.
            Some(_) => {
                let known = Ask::At(Moment::Sys(bound(&ask)));
                self.engine.view_of(&topic.name, partitions, known, When::Refuse).await?.partitions
            }
        };
        let then = Arc::new(then);
        let seen = |view: View| {
            let user = user.clone().map(|times| ByUser {
                times,
                engine: Arc::clone(&self.engine),
                partition: Arc::clone(&view.partition),
            });
            seen_of(topic, view, user, Some(&then))
        };
        Ok(views.into_iter().map(seen).collect())
    }

    /// [`Tree::seen`], of one partition.
    pub(crate) async fn seen_one(
        &self,
        topic: &TopicNode,
        partition: u32,
    ) -> Result<Seen, TreeError> {
        let seen = self.seen(topic, partition..partition.saturating_add(1)).await?;
        seen.into_iter().next().ok_or_else(|| {
            TreeError::NotFound(format!("topic={}, partition={partition}", topic.name))
        })
    }

    async fn offset_child(&self, parent: &Node, name: &[u8]) -> Result<Node, TreeError> {
        let found = self.committed_below(parent).await?;
        let found = found.into_iter().find(|listed| listed.name == name);
        found.map(|listed| listed.node).ok_or_else(|| missing(name))
    }

    /// What a path means: names with slashes between them, from the root. `..` is followed, and may
    /// not leave the tree; links are not followed. A moment behind the last name holds for the whole
    /// path: the names on the way are those of that moment too.
    ///
    /// # Errors
    /// [`TreeError`].
    pub async fn resolve(&self, path: &[u8]) -> Result<Node, TreeError> {
        let steps = steps(path)?;
        let Some((last, before)) = steps.split_last() else { return Ok(self.root()) };
        let is_then = before.first().is_some_and(|first| *first != b".at") && last.contains(&b'@');
        if !is_then {
            return self.walk(self.root(), &steps).await;
        }
        // A name that holds an @ of its own wins.
        if let Ok(parent) = self.walk(self.root(), before).await
            && let Ok(node) = self.child(&parent, last).await
        {
            return Ok(node);
        }
        let mut refused = None;
        for (base, ask) in with_moment(last) {
            let node = async {
                let root = Node::Root(Some(self.settle(ask?).await?));
                let parent = self.walk(root, before).await?;
                self.child(&parent, base).await
            };
            match node.await {
                Ok(node) => return Ok(node),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(refused) if before[0] == b"files" => Err(no_file(last, &refused)),
            Some(refused) => Err(refused),
            None => Err(missing(last)),
        }
    }

    async fn walk(&self, from: Node, steps: &[&[u8]]) -> Result<Node, TreeError> {
        let mut node = from;
        for name in steps {
            node = self.lookup(&node, name).await?;
        }
        Ok(node)
    }
}

fn seen_of(
    topic: &TopicNode,
    view: View,
    user: Option<ByUser>,
    then: Option<&Arc<TopicView>>,
) -> Seen {
    // What was given up within a batch has its place at the end, if it passes it.
    let end = view.end().max(Offset(0));
    let start = view.start().min(end);
    let topic = Arc::clone(&topic.name);
    Seen { topic, partition: view.partition, start, end, user, then: then.cloned() }
}

fn root_child(at: &Option<Ask>, name: &[u8]) -> Result<Node, TreeError> {
    match name {
        b"topics" => Ok(Node::Topics(*at)),
        b"offsets" if has_offsets(at) => Ok(Node::Groups(*at)),
        b"offsets" => Err(no_offsets()),
        b"files" => match files_at(at) {
            Some(cut) => Ok(Node::File { inode: engine::files::Inode::ROOT, cut }),
            None => Err(no_files()),
        },
        b".at" if at.is_none() => Ok(Node::Moments),
        _ => Err(missing(name)),
    }
}

/// Somebody may be about to make a file of that name: to them there is nothing yet.
fn no_file(name: &[u8], refused: &TreeError) -> TreeError {
    TreeError::NotFound(format!("name={}, and as a moment: {refused}", shown(name)))
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

fn nested(name: &[u8]) -> TreeError {
    TreeError::Moment(format!("it is seen as of a moment already. name={}", shown(name)))
}
