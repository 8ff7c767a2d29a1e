//! All that is known of znodes, to be compared.

use super::*;

pub(super) type ZnodeDump = BTreeMap<String, (ZnodeStat, Option<Vec<u8>>)>;
/// A moment, the state of the model then, and its last transaction.
pub(super) type PastDump = (Cut, ZnodeDump, i64);

/// All that the tree says of znodes, but for times.
pub(super) fn dump(znodes: &Znodes) -> ZnodeDump {
    let tree = znodes.tree();
    let mut dump = BTreeMap::new();
    let mut open = vec![String::new()];
    while let Some(path) = open.pop() {
        let znode = tree.get(&path).unwrap();
        open.extend(znode.children().map(|name| format!("{path}/{name}")));
        let stat = ZnodeStat { ctime: 0, mtime: 0, ..znode.stat() };
        let data = data_of(znodes, &path, znode);
        dump.insert(path, (stat, data));
    }
    dump
}

/// A znode's data, from memory or not.
pub(super) fn data_of(znodes: &Znodes, path: &str, znode: ZnodeRef<'_>) -> Option<Vec<u8>> {
    match znode.data() {
        ZnodeData::Here(data) => data.map(<[u8]>::to_vec),
        ZnodeData::Elsewhere => {
            let data = znodes.history().data_since(path, znode.stat().mzxid).unwrap();
            data.map(|data| data.to_vec())
        }
    }
}

/// The same of the past, by the catalog.
pub(super) fn dump_past(znodes: &Znodes, cut: Cut) -> ZnodeDump {
    let mut dump = BTreeMap::new();
    let mut open = vec![String::new()];
    while let Some(path) = open.pop() {
        let znode = znodes.history().get(&path, cut).unwrap().unwrap();
        let names = znodes.history().children(&path, cut).unwrap();
        open.extend(names.iter().map(|name| format!("{path}/{name}")));
        let stat = ZnodeStat { ctime: 0, mtime: 0, ..znode.stat };
        dump.insert(path, (stat, znode.data));
    }
    dump
}
