//! The memory limit of this process: the machine's memory, or less if a cgroup limits it.

use std::fs;
use std::path::Path;

/// The assumed limit if the system does not report one. The tail is 64 MiB then.
const UNKNOWN_BYTES: u64 = 256 << 20;
/// The tail takes one part in this many of the memory. The rest is for requests, responses,
/// indexes, the page cache and other processes.
const TAIL_DIVISOR: u64 = 4;

/// The default size of the tail for this limit.
pub(super) fn tail_bytes(limit: Option<u64>) -> usize {
    (limit.unwrap_or(UNKNOWN_BYTES) / TAIL_DIVISOR) as usize
}

/// The memory of the machine, or the least limit of a cgroup of this process. `root` is the root of
/// the kernel's files.
pub(super) fn limit(root: &Path) -> Option<u64> {
    let cgroups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = cgroups.lines().filter_map(|line| cgroup_limit(root, line));
    limits.chain(machine_bytes(root)).min()
}

/// `MemTotal` of /proc/meminfo.
fn machine_bytes(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// The limit from a line of /proc/self/cgroup: `0::PATH` of version 2, or `N:memory:PATH` of
/// version 1.
///
/// Each group on the path to the root may have a limit. In a container the path may be the host's,
/// and only the root may exist.
fn cgroup_limit(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (top, file) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let groups = Path::new(path.trim_start_matches('/')).ancestors();
    // "max", and an empty file, are not numbers.
    let limit = |group: &Path| {
        let text = fs::read_to_string(root.join(top).join(group).join(file)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    groups.filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const MEMINFO: &str = "MemTotal:       24684096 kB\nMemFree:        1 kB\n";

    /// The limit on a machine with these files.
    fn limit_of(files: &[(&str, &str)]) -> Option<u64> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("freezeframe-memory-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let bytes = limit(&root);
        let _ = fs::remove_dir_all(&root);
        bytes
    }

    #[test]
    fn the_machine_is_the_limit_where_no_cgroup_is() {
        assert_eq!(limit_of(&[("proc/meminfo", MEMINFO)]), Some(24_684_096 << 10));
        assert_eq!(limit_of(&[]), None);
        assert_eq!(limit_of(&[("proc/meminfo", "MemTotal: some kB\n")]), None);
        assert_eq!(tail_bytes(None), 64 << 20);
        assert_eq!(tail_bytes(Some(8 << 30)), 2 << 30);
    }

    #[test]
    fn the_tightest_group_of_version_2_on_the_way_to_the_top_counts() {
        let group = ("proc/self/cgroup", "0::/system.slice/freezeframe.service\n");
        let service = "sys/fs/cgroup/system.slice/freezeframe.service/memory.max";
        let slice = "sys/fs/cgroup/system.slice/memory.max";
        let memory = ("proc/meminfo", MEMINFO);
        let limits =
            |own_max, slice_max| limit_of(&[memory, group, (service, own_max), (slice, slice_max)]);
        assert_eq!(limits("536870912\n", "max\n"), Some(512 << 20));
        assert_eq!(limits("max\n", "268435456\n"), Some(256 << 20));
        assert_eq!(limits("max\n", "max\n"), Some(24_684_096 << 10));
    }

    #[test]
    fn a_group_of_version_1_counts_and_in_a_container_the_top_alone_is_there() {
        let group = ("proc/self/cgroup", "5:cpu,memory:/docker/1f\n1:name=systemd:/x\n0::/\n");
        let memory = ("proc/meminfo", MEMINFO);
        let path = "sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes";
        assert_eq!(limit_of(&[memory, group, (path, "1073741824\n")]), Some(1 << 30));
        let path = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(limit_of(&[memory, group, (path, "1073741824\n")]), Some(1 << 30));
        // The value that stands for no limit in version 1.
        let no_limit = limit_of(&[memory, group, (path, "9223372036854771712\n")]);
        assert_eq!(no_limit, Some(24_684_096 << 10));
    }
}
