//! Watches of connections on paths.
//!
//! As in ZooKeeper there are two tables. The data table has the watches of `getData` and `exists`,
//! and all recursive ones; the child table has those of `getChildren`. A persistent watch is in
//! both.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use admission::{BudgetKind, BudgetSpec, BudgetUsage, Holder};
use ahash::RandomState;
use engine_znodes::acl::{self, Acl, check_permission};
use engine_znodes::{SessionId, TreeChange, TreeChangeKind, ZkCode, ZnodeTree, split_path};

use crate::connection::Connection;
use crate::event::{WatchEvent, WatchEventKind};
use crate::past::is_past;
use crate::request::SetWatches;

/// Kinds of watches of one connection on one path, as bits.
type WatchKinds = u8;
/// It fires once.
const STANDARD: WatchKinds = 1;
const PERSISTENT: WatchKinds = 2;
/// It fires for all paths below it too.
const RECURSIVE: WatchKinds = 4;
const ANY: WatchKinds = STANDARD | PERSISTENT | RECURSIVE;

/// The watches that a `checkWatches` or a `removeWatches` means (`Watcher.WatcherType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatcherType {
    Children,
    Data,
    Any,
    Persistent,
    PersistentRecursive,
}

impl WatcherType {
    /// # Errors
    /// [`ZkCode::MarshallingError`]: there is no such type.
    pub(crate) fn from_number(number: i32) -> Result<WatcherType, ZkCode> {
        Ok(match number {
            1 => WatcherType::Children,
            2 => WatcherType::Data,
            3 => WatcherType::Any,
            4 => WatcherType::Persistent,
            5 => WatcherType::PersistentRecursive,
            _ => return Err(ZkCode::MarshallingError),
        })
    }

    /// The kinds in the data table, and in the child table.
    fn kinds(self) -> (WatchKinds, WatchKinds) {
        match self {
            WatcherType::Children => (0, STANDARD),
            WatcherType::Data => (STANDARD, 0),
            WatcherType::Any => (ANY, ANY),
            WatcherType::Persistent => (PERSISTENT, PERSISTENT),
            WatcherType::PersistentRecursive => (RECURSIVE, 0),
        }
    }
}

/// The mode of an `addWatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddWatchMode {
    Persistent,
    PersistentRecursive,
}

/// Connections by the number that they have in this process.
type ConnectionId = u64;

/// The memory that a watch takes besides its path, approximately.
const WATCH_BYTES: usize = 200;

/// The paths that one connection watches.
#[derive(Debug, Default)]
struct WatchedPaths {
    paths: HashSet<Arc<str>>,
    /// The memory that its watches take, approximately.
    bytes: usize,
}

#[derive(Debug, Default)]
struct WatchTable {
    by_path: HashMap<Arc<str>, HashMap<ConnectionId, WatchKinds>>,
    by_connection: HashMap<ConnectionId, WatchedPaths>,
    /// The memory that all watches take, approximately.
    bytes: usize,
    /// The connections that watch recursively, by the hash of the path.
    recursive: HashMap<u64, HashSet<ConnectionId>>,
    hasher: RandomState,
}

/// The root's path among the names of [`names`].
const ROOT: &str = "";

/// The names of a path. Its first so many are the names of the znodes above it.
fn names(path: &str) -> impl Iterator<Item = &str> {
    path.strip_suffix('/').filter(|parent| *parent == ROOT).unwrap_or(path).split('/')
}

impl WatchTable {
    /// The hash of a path after the hash of its parent. With keys of this process, so that nobody
    /// finds two paths of one hash; all znodes above another one are looked up in the time that it
    /// takes to read its path.
    fn hash_below(&self, parent: u64, name: &str) -> u64 {
        self.hasher.hash_one((parent, name))
    }

    fn hash(&self, path: &str) -> u64 {
        names(path).fold(0, |parent, name| self.hash_below(parent, name))
    }

    /// The connections that watch a znode above `path` recursively.
    fn watchers_above(&self, path: &str) -> impl Iterator<Item = ConnectionId> {
        let parent =
            if path == "/" { None } else { path.rsplit_once('/').map(|(parent, _)| parent) };
        let hashes = parent.into_iter().flat_map(|parent| {
            parent.split('/').scan(0, |hash, name| {
                *hash = self.hash_below(*hash, name);
                Some(*hash)
            })
        });
        hashes.filter_map(|hash| self.recursive.get(&hash)).flatten().copied()
    }

    fn change_recursive(&mut self, path: &str, connection: ConnectionId, is_watched: bool) {
        // No znode's path, though a client may name it: nothing is below it.
        if path.is_empty() {
            return;
        }
        let hash = self.hash(path);
        let watchers = self.recursive.entry(hash).or_default();
        if is_watched {
            watchers.insert(connection);
        } else {
            watchers.remove(&connection);
        }
        if watchers.is_empty() {
            self.recursive.remove(&hash);
        }
    }

    fn add(&mut self, path: &str, connection: ConnectionId, kinds: WatchKinds) {
        let path = match self.by_path.get_key_value(path) {
            Some((path, _)) => Arc::clone(path),
            None => Arc::from(path),
        };
        let watched = self.by_path.entry(Arc::clone(&path)).or_default().entry(connection);
        let watched = watched.or_default();
        let is_newly_recursive = kinds & !*watched & RECURSIVE != 0;
        *watched |= kinds;
        if is_newly_recursive {
            self.change_recursive(&path, connection, true);
        }
        let bytes = WATCH_BYTES + path.len();
        let watched = self.by_connection.entry(connection).or_default();
        if watched.paths.insert(path) {
            watched.bytes += bytes;
            self.bytes += bytes;
        }
    }

    fn bytes_of(&self, connection: ConnectionId) -> usize {
        self.by_connection.get(&connection).map_or(0, |watched| watched.bytes)
    }

    /// Removes kinds of watches. Returns true if there was one.
    fn remove(&mut self, path: &str, connection: ConnectionId, kinds: WatchKinds) -> bool {
        let Some(watchers) = self.by_path.get_mut(path) else { return false };
        let Some(watched) = watchers.get_mut(&connection) else { return false };
        let removed = *watched & kinds;
        *watched &= !kinds;
        if *watched == 0 {
            watchers.remove(&connection);
            if watchers.is_empty() {
                self.by_path.remove(path);
            }
            if let Some(watched) = self.by_connection.get_mut(&connection) {
                if watched.paths.remove(path) {
                    watched.bytes -= WATCH_BYTES + path.len();
                    self.bytes -= WATCH_BYTES + path.len();
                }
                if watched.paths.is_empty() {
                    self.by_connection.remove(&connection);
                }
            }
        }
        if removed & RECURSIVE != 0 {
            self.change_recursive(path, connection, false);
        }
        removed != 0
    }

    fn remove_connection(&mut self, connection: ConnectionId) {
        let watched = self.by_connection.remove(&connection).unwrap_or_default();
        self.bytes -= watched.bytes;
        for path in watched.paths {
            let Some(watchers) = self.by_path.get_mut(&path) else { continue };
            let watched = watchers.remove(&connection).unwrap_or_default();
            if watchers.is_empty() {
                self.by_path.remove(&path);
            }
            if watched & RECURSIVE != 0 {
                self.change_recursive(&path, connection, false);
            }
        }
    }

    fn holds(&self, path: &str, connection: ConnectionId, kinds: WatchKinds) -> bool {
        let watched = self.by_path.get(path).and_then(|watchers| watchers.get(&connection));
        watched.is_some_and(|watched| watched & kinds != 0)
    }

    /// The connections that watch `path`, once each. Watches that fire once are removed.
    fn fire(&mut self, path: &str) -> Vec<ConnectionId> {
        let mut fired: Vec<ConnectionId> = Vec::new();
        if let Some(watchers) = self.by_path.get(path) {
            fired.extend(watchers.keys());
        }
        for connection in &fired {
            self.remove(path, *connection, STANDARD);
        }
        if !self.recursive.is_empty() {
            fired.extend(self.watchers_above(path));
        }
        fired.sort_unstable();
        fired.dedup();
        fired
    }
}

/// The number of watches. As in ZooKeeper, the first three are of the data table alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchCounts {
    pub(crate) connections: usize,
    pub(crate) paths: usize,
    pub(crate) watches: usize,
    /// In both tables.
    pub(crate) all: usize,
}

#[derive(Debug)]
pub(crate) struct Watches {
    data: WatchTable,
    children: WatchTable,
    connections: HashMap<ConnectionId, Arc<Connection>>,
    /// The memory that all watches may take, in bytes.
    bytes_max: usize,
    /// The number of connections that were closed for their watches.
    closed: u64,
}

const WATCHES: BudgetSpec = BudgetSpec {
    name: "zookeeper-watch-bytes",
    unit: "bytes",
    setting: Some("zookeeper.watches-bytes-max"),
    kind: BudgetKind::Yielding,
};

impl Watches {
    pub(crate) fn new(bytes_max: usize) -> Watches {
        Watches {
            data: WatchTable::default(),
            children: WatchTable::default(),
            connections: HashMap::new(),
            bytes_max,
            closed: 0,
        }
    }

    /// The memory that watches take, by network.
    pub(crate) fn usage(&self) -> BudgetUsage {
        let connections = self.connections.values();
        let network_bytes =
            connections.map(|connection| (&connection.network, self.bytes_of(connection) as u64));
        BudgetUsage::of_parts(&WATCHES, self.bytes_max as u64, self.closed, network_bytes)
    }

    pub(crate) fn watch_data(&mut self, path: &str, connection: &Arc<Connection>) {
        if self.connect(connection) {
            self.data.add(path, connection.id(), STANDARD);
            self.make_room();
        }
    }

    pub(crate) fn watch_children(&mut self, path: &str, connection: &Arc<Connection>) {
        if self.connect(connection) {
            self.children.add(path, connection.id(), STANDARD);
            self.make_room();
        }
    }

    fn bytes_of(&self, connection: &Connection) -> usize {
        let id = connection.id();
        self.data.bytes_of(id) + self.children.bytes_of(id)
    }

    /// Ends the connections with most watches, of the network whose watches take most, until all
    /// watches take no more than they may.
    fn make_room(&mut self) {
        while self.data.bytes + self.children.bytes > self.bytes_max {
            let mut by_network = HashMap::<&Holder, usize>::new();
            for connection in self.connections.values() {
                *by_network.entry(&connection.network).or_default() += self.bytes_of(connection);
            }
            let largest = by_network.into_iter().max_by_key(|(_, bytes)| *bytes);
            let Some((network, bytes)) = largest else { return };
            let connections =
                self.connections.values().filter(|connection| connection.network == *network);
            let Some(connection) =
                connections.max_by_key(|connection| self.bytes_of(connection)).cloned()
            else {
                return;
            };
            tracing::warn!(
                peer = %connection.peer,
                bytes = self.bytes_of(&connection),
                bytes_of_network = bytes,
                "the ZooKeeper connections of a network have too many watches (zookeeper.watches-bytes-max), and one is closed"
            );
            connection.output.cut();
            self.closed += 1;
            self.remove_connection(&connection);
        }
    }

    pub(crate) fn add(&mut self, path: &str, connection: &Arc<Connection>, mode: AddWatchMode) {
        if !self.connect(connection) {
            return;
        }
        match mode {
            AddWatchMode::Persistent => {
                self.data.add(path, connection.id(), PERSISTENT);
                self.children.add(path, connection.id(), PERSISTENT);
            }
            AddWatchMode::PersistentRecursive => {
                self.data.add(path, connection.id(), RECURSIVE);
            }
        }
        self.make_room();
    }

    /// Returns true if the connection can have watches. One that has ended cannot: its watches were
    /// removed already, or will be.
    fn connect(&mut self, connection: &Arc<Connection>) -> bool {
        let goes_on = !connection.output.has_ended();
        if goes_on {
            self.connections.entry(connection.id()).or_insert_with(|| Arc::clone(connection));
        }
        goes_on
    }

    pub(crate) fn holds(&self, path: &str, connection: &Connection, kind: WatcherType) -> bool {
        let (data, children) = match kind {
            // A persistent watch is looked for in one table only.
            WatcherType::Persistent => (PERSISTENT, 0),
            _ => kind.kinds(),
        };
        self.data.holds(path, connection.id(), data)
            || self.children.holds(path, connection.id(), children)
    }

    /// Removes watches. Returns true if there was one.
    pub(crate) fn remove(
        &mut self,
        path: &str,
        connection: &Connection,
        kind: WatcherType,
    ) -> bool {
        let (data, children) = kind.kinds();
        let from_data = self.data.remove(path, connection.id(), data);
        self.children.remove(path, connection.id(), children) || from_data
    }

    pub(crate) fn remove_connection(&mut self, connection: &Connection) {
        self.data.remove_connection(connection.id());
        self.children.remove_connection(connection.id());
        self.connections.remove(&connection.id());
    }

    /// Sets the watches of a client that has a new connection. The client gets missed changes as
    /// events, as in ZooKeeper whether or not it may read the znode.
    pub(crate) fn restore<'a>(
        &mut self,
        tree: &ZnodeTree,
        watches: &'a SetWatches,
        connection: &Arc<Connection>,
    ) {
        if !self.connect(connection) {
            return;
        }
        let since = watches.relative_zxid;
        let live = |paths: &'a [String]| paths.iter().filter(|path| !is_past(path));
        let missed =
            |kind, path: &str| connection.output.event(&WatchEvent { kind, path, zxid: -1 });
        for path in live(&watches.data) {
            match tree.get(path) {
                None => missed(WatchEventKind::Deleted, path),
                Some(znode) if znode.stat().mzxid > since => {
                    missed(WatchEventKind::DataChanged, path);
                }
                Some(_) => self.data.add(path, connection.id(), STANDARD),
            }
        }
        for path in live(&watches.exists) {
            match tree.get(path) {
                Some(_) => missed(WatchEventKind::Created, path),
                None => self.data.add(path, connection.id(), STANDARD),
            }
        }
        for path in live(&watches.children) {
            match tree.get(path) {
                None => missed(WatchEventKind::Deleted, path),
                Some(znode) if znode.stat().pzxid > since => {
                    missed(WatchEventKind::ChildrenChanged, path);
                }
                Some(_) => self.children.add(path, connection.id(), STANDARD),
            }
        }
        self.make_room();
        for path in live(&watches.persistent) {
            self.add(path, connection, AddWatchMode::Persistent);
        }
        for path in live(&watches.recursive) {
            self.add(path, connection, AddWatchMode::PersistentRecursive);
        }
    }

    /// Sends the events of a change.
    pub(crate) fn fire(&mut self, change: &TreeChange<'_>) {
        let TreeChange { kind, path, acl, parent_acl, zxid } = *change;
        let (parent, _) = split_path(path).unwrap_or_default();
        let parent = if parent.is_empty() { "/" } else { parent };
        let event = |kind, path| WatchEvent { kind, path, zxid };
        match kind {
            TreeChangeKind::Created => {
                let created = self.data.fire(path);
                self.send(&created, acl, event(WatchEventKind::Created, path));
            }
            TreeChangeKind::Deleted => {
                let deleted = self.data.fire(path);
                self.send(&deleted, acl, event(WatchEventKind::Deleted, path));
                let mut watchers_of_children = self.children.fire(path);
                watchers_of_children.retain(|connection| !deleted.contains(connection));
                self.send(&watchers_of_children, acl, event(WatchEventKind::Deleted, path));
            }
            TreeChangeKind::DataChanged => {
                let changed = self.data.fire(path);
                return self.send(&changed, acl, event(WatchEventKind::DataChanged, path));
            }
        }
        let changed = self.children.fire(parent);
        self.send(&changed, parent_acl, event(WatchEventKind::ChildrenChanged, parent));
    }

    /// Sends an event to the clients that may read the znode.
    fn send(&self, receivers: &[ConnectionId], acl: &Acl, event: WatchEvent<'_>) {
        for connection in receivers.iter().filter_map(|id| self.connections.get(id)) {
            if check_permission(acl, acl::READ, &connection.held()).is_ok() {
                connection.output.event(&event);
            }
        }
    }

    /// The sessions that watch each path.
    pub(crate) fn by_path(&self) -> BTreeMap<&str, BTreeSet<SessionId>> {
        let mut by_path: BTreeMap<&str, BTreeSet<SessionId>> = BTreeMap::new();
        for (path, session) in self.all() {
            by_path.entry(path).or_default().insert(session);
        }
        by_path
    }

    /// The paths that each session watches.
    pub(crate) fn by_session(&self) -> BTreeMap<SessionId, BTreeSet<&str>> {
        let mut by_session: BTreeMap<SessionId, BTreeSet<&str>> = BTreeMap::new();
        for (path, session) in self.all() {
            by_session.entry(session).or_default().insert(path);
        }
        by_session
    }

    /// The data watches, as ZooKeeper shows them.
    fn all(&self) -> impl Iterator<Item = (&str, SessionId)> {
        let watchers = self
            .data
            .by_path
            .iter()
            .flat_map(|(path, watchers)| watchers.keys().map(move |id| (path, id)));
        watchers.filter_map(|(path, id)| Some((&**path, self.connections.get(id)?.session()?)))
    }

    pub(crate) fn counts(&self) -> WatchCounts {
        let count = |table: &WatchTable| table.by_path.values().map(HashMap::len).sum::<usize>();
        let watches = count(&self.data);
        WatchCounts {
            connections: self.data.by_connection.len(),
            paths: self.data.by_path.len(),
            watches,
            all: watches + count(&self.children),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One or several names, or none, and what is no path of a znode.
    fn paths() -> impl Strategy<Value = String> {
        let names = prop::collection::vec(prop::sample::select(vec!["a", "b", "aa", ""]), 1..4);
        prop_oneof![
            names.prop_map(|names| format!("/{}", names.join("/"))),
            prop::sample::select(vec!["/", "", "a", "a/b", "//"]).prop_map(str::to_owned),
        ]
    }

    #[derive(Clone, Debug)]
    enum WatchChange {
        Add(String, ConnectionId, WatchKinds),
        Remove(String, ConnectionId, WatchKinds),
        Drop(ConnectionId),
        Fire(String),
    }

    fn changes() -> impl Strategy<Value = Vec<WatchChange>> {
        let kinds = || prop::sample::select(vec![STANDARD, PERSISTENT, RECURSIVE, ANY]);
        let change = prop_oneof![
            4 => (paths(), 1..4_u64, kinds()).prop_map(|(path, id, kinds)| WatchChange::Add(path, id, kinds)),
            2 => (paths(), 1..4_u64, kinds()).prop_map(|(path, id, kinds)| WatchChange::Remove(path, id, kinds)),
            1 => (1..4_u64).prop_map(WatchChange::Drop),
            4 => paths().prop_map(WatchChange::Fire),
        ];
        prop::collection::vec(change, 1..40)
    }

    fn is_below(path: &str, ancestor: &str) -> bool {
        let rest = path.strip_prefix(ancestor.strip_suffix('/').unwrap_or(ancestor));
        let is_root_or_path =
            ancestor == "/" || (ancestor.starts_with('/') && !ancestor.ends_with('/'));
        is_root_or_path && path != ancestor && rest.is_some_and(|rest| rest.starts_with('/'))
    }

    proptest! {
        #[test]
        fn those_fire_that_watch_a_path_or_what_is_above_it(changes in changes()) {
            let mut table = WatchTable::default();
            let mut naive: BTreeMap<(String, ConnectionId), WatchKinds> = BTreeMap::new();
            for change in changes {
                match change {
                    WatchChange::Add(path, id, kinds) => {
                        table.add(&path, id, kinds);
                        *naive.entry((path, id)).or_default() |= kinds;
                    }
                    WatchChange::Remove(path, id, kinds) => {
                        table.remove(&path, id, kinds);
                        naive.entry((path, id)).and_modify(|watched| *watched &= !kinds);
                    }
                    WatchChange::Drop(id) => {
                        table.remove_connection(id);
                        naive.retain(|(_, connection), _| *connection != id);
                    }
                    // Znodes have paths without empty names.
                    WatchChange::Fire(path) if path.starts_with('/') && !path.contains("//") && (path == "/" || !path.ends_with('/')) => {
                        let watches = naive.iter().filter(|((watched, _), kinds)| {
                            **kinds != 0 && *watched == path
                                || **kinds & RECURSIVE != 0 && is_below(&path, watched)
                        });
                        let expected: BTreeSet<ConnectionId> = watches.map(|((_, id), _)| *id).collect();
                        let fired: BTreeSet<ConnectionId> = table.fire(&path).into_iter().collect();
                        prop_assert_eq!(fired, expected, "{}", path);
                        for ((watched, _), kinds) in &mut naive {
                            *kinds &= if *watched == path { !STANDARD } else { ANY };
                        }
                    }
                    WatchChange::Fire(_) => {}
                }
                naive.retain(|_, kinds| *kinds != 0);
            }
            (1..4).for_each(|id| table.remove_connection(id));
            prop_assert!(table.recursive.is_empty() && table.by_path.is_empty());
            prop_assert_eq!(table.bytes, 0);
        }
    }
}
