//! Znodes: a directory each, with the znode's data as a file beside its children.
//!
//! A program that reads files has no identity that ZooKeeper knows, so it sees what `world:anyone`
//! may read.

use std::sync::Arc;

use bytes::Bytes;
use engine::blocking::block_in_place;
use engine::files::FileTime;
use engine::znodes::acl::{self, Acl, check_permission};
use engine::znodes::{PastZnode, ZnodeData, ZnodeStat};
use hlc::{Cut, Hlc, SysTime};

use super::names::{DecodedKey, decode, encode, escaped};
use super::{TreeError, ViewNode, ViewNodeKind, ViewTree};

/// The name of the file with a znode's data.
const DATA: &[u8] = b"data";
/// The name of a child that has the name of that file.
const CHILD_NAMED_DATA: &[u8] = b"%64ata";

/// A znode as of a moment; `None` is the present.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ZnodeNode {
    /// Its path; empty for the root.
    pub path: Arc<str>,
    /// The moment; `None` is the present.
    pub cut: Option<Cut>,
}

impl ZnodeNode {
    pub(crate) fn root(cut: Option<Cut>) -> ZnodeNode {
        ZnodeNode { path: Arc::from(""), cut }
    }

    fn child(&self, name: &str) -> ZnodeNode {
        ZnodeNode { path: format!("{}/{name}", self.path).into(), cut: self.cut }
    }

    fn not_found(&self) -> TreeError {
        TreeError::NotFound(format!("the znode {}", self.shown_path()))
    }

    fn shown_path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    fn check_readable(&self, acl: &Acl) -> Result<(), TreeError> {
        check_permission(acl, acl::READ, &[]).map_err(|_| {
            let path = self.shown_path();
            TreeError::NotPermitted(format!("the list of {path:?} lets only some read it"))
        })
    }
}

/// The name of a child, as a name of a file.
fn name_of(child: &str) -> Vec<u8> {
    match child.as_bytes() {
        DATA => CHILD_NAMED_DATA.to_vec(),
        child => encode(child),
    }
}

/// The parts of a znode that the tree shows.
struct SeenZnode {
    stat: ZnodeStat,
    data: Option<Bytes>,
}

impl ViewTree {
    fn znode(&self, node: &ZnodeNode, with_data: bool) -> Result<SeenZnode, TreeError> {
        match node.cut {
            None => {
                let stat = {
                    let tree = self.engine.znodes().tree();
                    let znode = tree.get(&node.path).ok_or_else(|| node.not_found())?;
                    node.check_readable(znode.acl())?;
                    if !with_data {
                        return Ok(SeenZnode { stat: znode.stat(), data: None });
                    }
                    if let ZnodeData::Here(data) = znode.data() {
                        let data = data.map(Bytes::copy_from_slice);
                        return Ok(SeenZnode { stat: znode.stat(), data });
                    }
                    znode.stat()
                };
                let history = self.engine.znodes().history();
                let data = block_in_place(|| history.data_since(&node.path, stat.mzxid))?;
                Ok(SeenZnode { stat, data })
            }
            Some(cut) => {
                let history = self.engine.znodes().history();
                let znode = block_in_place(|| history.get(&node.path, cut))?;
                let PastZnode { stat, acl, data, .. } = znode.ok_or_else(|| node.not_found())?;
                node.check_readable(&acl)?;
                Ok(SeenZnode { stat, data: data.map(Bytes::from) })
            }
        }
    }

    fn znode_children(&self, node: &ZnodeNode) -> Result<Vec<String>, TreeError> {
        self.znode(node, false)?;
        match node.cut {
            None => {
                let tree = self.engine.znodes().tree();
                let znode = tree.get(&node.path).ok_or_else(|| node.not_found())?;
                Ok(znode.children().map(str::to_owned).collect())
            }
            Some(cut) => {
                let history = self.engine.znodes().history();
                Ok(block_in_place(|| history.children(&node.path, cut))?)
            }
        }
    }

    /// The names in a znode's directory.
    pub(crate) fn list_znode(
        &self,
        node: &ZnodeNode,
    ) -> Result<Vec<(Vec<u8>, ViewNode, ViewNodeKind)>, TreeError> {
        let data = (DATA.to_vec(), ViewNode::ZnodeData(node.clone()), ViewNodeKind::File);
        let children = self.znode_children(node)?.into_iter().map(|name| {
            (name_of(&name), ViewNode::Znode(node.child(&name)), ViewNodeKind::Directory)
        });
        Ok(std::iter::once(data).chain(children).collect())
    }

    pub(crate) fn znode_child(&self, node: &ZnodeNode, name: &[u8]) -> Result<ViewNode, TreeError> {
        let not_found = || TreeError::NotFound(escaped(name).to_string());
        if name == DATA {
            self.znode(node, false)?;
            return Ok(ViewNode::ZnodeData(node.clone()));
        }
        let child = match decode(name) {
            _ if name == CHILD_NAMED_DATA => "data".to_owned(),
            Some(DecodedKey::Whole(child)) => String::from_utf8(child).map_err(|_| not_found())?,
            Some(DecodedKey::Long) => {
                let children = self.znode_children(node)?.into_iter();
                children.into_iter().find(|child| name_of(child) == name).ok_or_else(not_found)?
            }
            None => return Err(not_found()),
        };
        if child.is_empty() {
            return Err(not_found());
        }
        let child = node.child(&child);
        match self.znode(&child, false) {
            // It is there, and says so when it is read.
            Ok(_) | Err(TreeError::NotPermitted(_)) => Ok(ViewNode::Znode(child)),
            Err(TreeError::NotFound(_)) => Err(not_found()),
            Err(error) => Err(error),
        }
    }

    /// The length of a znode's data, and when the znode was created and its data changed.
    pub(crate) fn stat_znode(
        &self,
        node: &ZnodeNode,
    ) -> Result<(u64, FileTime, FileTime), TreeError> {
        let ZnodeStat { data_length, ctime, mtime, .. } = self.znode(node, false)?.stat;
        let time = |ms: i64| match ms {
            // The root, and what has always been there.
            0 => self.started_at,
            ms => Hlc::at(SysTime(ms as u64)).into(),
        };
        Ok((data_length as u64, time(ctime), time(mtime)))
    }

    pub(crate) fn znode_data(&self, node: &ZnodeNode) -> Result<Bytes, TreeError> {
        Ok(self.znode(node, true)?.data.unwrap_or_default())
    }
}
