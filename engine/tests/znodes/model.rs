//! ZooKeeper, one transaction after the other, on a plain map.

use super::dumps::ZnodeDump;
use super::*;

#[derive(Clone, Debug)]
pub(super) struct ModelZnode {
    pub(super) stat: ZnodeStat,
    pub(super) creates: i32,
    pub(super) data: Option<Vec<u8>>,
    /// True if its list permits changes.
    pub(super) is_open: bool,
    pub(super) owner: Option<SessionId>,
}

/// ZooKeeper, one transaction after the other, on a plain map.
#[derive(Clone, Debug)]
pub(super) struct ZnodeModel {
    pub(super) znodes: BTreeMap<String, ModelZnode>,
    pub(super) ended: BTreeSet<SessionId>,
    pub(super) zxid: i64,
}

impl ZnodeModel {
    pub(super) fn new() -> ZnodeModel {
        let built_in = |aversion, is_open| ModelZnode {
            stat: ZnodeStat { aversion, ..ZnodeStat::default() },
            creates: 0,
            data: Some(Vec::new()),
            is_open,
            owner: None,
        };
        let paths = ["", "/zookeeper", "/zookeeper/quota"];
        let mut znodes: BTreeMap<String, ModelZnode> =
            paths.map(|path| (path.to_owned(), built_in(0, true))).into();
        znodes.insert("/zookeeper/config".to_owned(), built_in(-1, false));
        ZnodeModel { znodes, ended: BTreeSet::new(), zxid: 0 }
    }

    fn children(&self, path: &str) -> i32 {
        let prefix = format!("{path}/");
        let below = |other: &&String| {
            other.strip_prefix(&prefix).is_some_and(|rest| !rest.is_empty() && !rest.contains('/'))
        };
        self.znodes.keys().filter(below).count() as i32
    }

    fn stat(&self, path: &str) -> ZnodeStat {
        let (znode, children) = (&self.znodes[path], self.children(path));
        ZnodeStat {
            cversion: znode.creates * 2 - children,
            num_children: children,
            data_length: znode.data.as_ref().map_or(0, Vec::len) as i32,
            ..znode.stat
        }
    }

    pub(super) fn dump(&self) -> ZnodeDump {
        let all = self.znodes.iter();
        all.map(|(path, znode)| (path.clone(), (self.stat(path), znode.data.clone()))).collect()
    }

    pub(super) fn run(
        &mut self,
        session: SessionId,
        ops: &[ZnodeOp],
    ) -> Result<Vec<OpOutcome>, ZnodeRefusal> {
        self.zxid += 1;
        let mut after = self.clone();
        let mut outcomes = Vec::new();
        for (place, op) in ops.iter().enumerate() {
            match after.run_op(session, op) {
                Ok(outcome) => outcomes.push(outcome),
                Err(code) => return Err(ZnodeRefusal { code, op: place as u32 }),
            }
        }
        *self = after;
        Ok(outcomes)
    }

    fn run_op(&mut self, session: SessionId, op: &ZnodeOp) -> Result<OpOutcome, ZkCode> {
        if self.ended.contains(&session) {
            return Err(ZkCode::SessionExpired);
        }
        let zxid = self.zxid;
        match op {
            ZnodeOp::Create { path, data, lifetime, is_sequential, .. } => {
                let parent = path.rsplit_once('/').unwrap().0;
                let above = self.znodes.get_mut(parent).ok_or(ZkCode::NoNode)?;
                if !above.is_open {
                    return Err(ZkCode::NoAuth);
                }
                let (is_ephemeral, creates) = (above.owner.is_some(), above.creates);
                let path =
                    if *is_sequential { format!("{path}{creates:010}") } else { path.clone() };
                if self.znodes.contains_key(&path) {
                    return Err(ZkCode::NodeExists);
                }
                if is_ephemeral {
                    return Err(ZkCode::NoChildrenForEphemerals);
                }
                let above = self.znodes.get_mut(parent).unwrap();
                above.creates += 1;
                above.stat.pzxid = zxid;
                let owner = (*lifetime == ZnodeLifetime::Ephemeral).then_some(session);
                let stat = ZnodeStat {
                    czxid: zxid,
                    mzxid: zxid,
                    pzxid: zxid,
                    ephemeral_owner: owner.map_or(0, |owner| owner.0),
                    ..ZnodeStat::default()
                };
                let data = data.as_ref().map(|data| data.to_vec());
                let znode = ModelZnode { stat, creates: 0, data, is_open: true, owner };
                self.znodes.insert(path.clone(), znode);
                let stat = self.stat(&path);
                Ok(OpOutcome::Created(path, stat))
            }
            ZnodeOp::Delete { path, version } => {
                let parent = path.rsplit_once('/').unwrap().0.to_owned();
                let above = self.znodes.get(&parent).ok_or(ZkCode::NoNode)?;
                if !above.is_open {
                    return Err(ZkCode::NoAuth);
                }
                let znode = self.znodes.get(path).ok_or(ZkCode::NoNode)?;
                check(znode.stat.version, *version)?;
                if self.children(path) > 0 {
                    return Err(ZkCode::NotEmpty);
                }
                self.remove(path);
                Ok(OpOutcome::Deleted)
            }
            ZnodeOp::SetData { path, data, version } => {
                let znode = self.znodes.get_mut(path).ok_or(ZkCode::NoNode)?;
                if !znode.is_open {
                    return Err(ZkCode::NoAuth);
                }
                check(znode.stat.version, *version)?;
                znode.stat.version += 1;
                znode.stat.mzxid = zxid;
                znode.data = data.as_ref().map(|data| data.to_vec());
                Ok(OpOutcome::DataSet(self.stat(path)))
            }
            ZnodeOp::SetAcl { path, version, .. } => {
                let znode = self.znodes.get_mut(path).ok_or(ZkCode::NoNode)?;
                check(znode.stat.aversion, *version)?;
                znode.stat.aversion += 1;
                znode.is_open = false;
                Ok(OpOutcome::AclSet(self.stat(path)))
            }
            ZnodeOp::Check { path, version } => {
                let znode = self.znodes.get(path).ok_or(ZkCode::NoNode)?;
                check(znode.stat.version, *version)?;
                Ok(OpOutcome::Checked)
            }
            ZnodeOp::RaiseSequence { path, next } => {
                let znode = self.znodes.get_mut(path).ok_or(ZkCode::NoNode)?;
                if !znode.is_open && znode.creates < *next && znode.stat.czxid != zxid {
                    return Err(ZkCode::NoAuth);
                }
                if znode.owner.is_some() {
                    return Err(ZkCode::NoChildrenForEphemerals);
                }
                if znode.creates < *next {
                    znode.creates = *next;
                    znode.stat.pzxid = zxid;
                }
                Ok(OpOutcome::SequenceRaised)
            }
        }
    }

    fn remove(&mut self, path: &str) {
        self.znodes.remove(path);
        let parent = path.rsplit_once('/').unwrap().0;
        self.znodes.get_mut(parent).unwrap().stat.pzxid = self.zxid;
    }

    pub(super) fn close(&mut self, session: SessionId) {
        self.zxid += 1;
        self.ended.insert(session);
        let owned = |(path, znode): (&String, &ModelZnode)| {
            (znode.owner == Some(session)).then(|| path.clone())
        };
        for path in self.znodes.iter().filter_map(owned).collect::<Vec<_>>() {
            self.remove(&path);
        }
    }
}

pub(super) fn check(current: i32, wanted: i32) -> Result<(), ZkCode> {
    if wanted == -1 || wanted == current { Ok(()) } else { Err(ZkCode::BadVersion) }
}
