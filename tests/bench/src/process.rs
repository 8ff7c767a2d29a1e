//! What the kernel reports about a process under `/proc`: CPU time, memory, and listening ports.
//!
//! CPU time is in ticks of 10 ms. A process shorter than that is read from its threads' scheduler
//! statistics, in nanoseconds, which however lose threads that have ended. [`Process::cpu_fine`]
//! returns the larger of both.

use std::{collections::BTreeMap, fs, io, time::Duration};

use anyhow::{Context, Result, bail};

/// One process, by its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
}

/// CPU time since a process began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuTime {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl CpuTime {
    pub(crate) fn total(self) -> Duration {
        self.user + self.system
    }

    pub(crate) fn since(self, before: CpuTime) -> CpuTime {
        CpuTime {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}

impl Process {
    pub(crate) fn this() -> Process {
        Process { pid: std::process::id() }
    }

    /// The process that listens on a TCP port of this machine.
    pub(crate) fn listening_on(port: u16) -> Result<Process> {
        let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
        let inodes: Vec<u64> =
            tables.iter().flatten().flat_map(|table| listening_inodes(table, port)).collect();
        if inodes.is_empty() {
            bail!("nothing on this machine listens on the port. port={port}");
        }
        let links: Vec<String> = inodes.iter().map(|inode| format!("socket:[{inode}]")).collect();
        pids()?
            .into_iter()
            .find(|pid| holds_one_of(*pid, &links))
            .map(|pid| Process { pid })
            .with_context(|| {
                format!("the listener belongs to a process we may not see. port={port}")
            })
    }

    fn read(self, file: &str) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{}/{file}", self.pid))
    }

    fn stat(self) -> Result<ProcessStat> {
        let text = self.read("stat").with_context(|| format!("read /proc/{}/stat", self.pid))?;
        ProcessStat::parse(&text).with_context(|| format!("understand /proc/{}/stat", self.pid))
    }

    /// In ticks of 10 ms.
    pub(crate) fn cpu(self) -> Result<CpuTime> {
        let stat = self.stat()?;
        Ok(CpuTime { user: ticks(stat.user_ticks), system: ticks(stat.system_ticks) })
    }

    /// This process, with the children that it has waited for: finer than a tick where possible.
    fn cpu_fine(self) -> Result<Duration> {
        let stat = self.stat()?;
        let own = ticks(stat.user_ticks + stat.system_ticks);
        let waited_for = ticks(stat.child_user_ticks + stat.child_system_ticks);
        Ok(own.max(self.threads_cpu()) + waited_for)
    }

    fn threads_cpu(self) -> Duration {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.pid)) else {
            return Duration::ZERO;
        };
        let on_cpu = |thread: fs::DirEntry| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
        };
        threads.flatten().filter_map(on_cpu).sum()
    }

    /// Resident memory now.
    pub(crate) fn resident_bytes(self) -> Result<u64> {
        let text =
            self.read("status").with_context(|| format!("read /proc/{}/status", self.pid))?;
        kib_field(&text, "VmRSS").map(|kib| kib * 1024).context("find VmRSS in status")
    }

    /// Bytes that this process has written to disks, if readable.
    pub(crate) fn written_bytes(self) -> Option<u64> {
        self.io_field("write_bytes: ")
    }

    /// Bytes that this process has read from disks, if readable.
    pub(crate) fn read_bytes(self) -> Option<u64> {
        self.io_field("read_bytes: ")
    }

    fn io_field(self, name: &str) -> Option<u64> {
        let text = self.read("io").ok()?;
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    }

    /// This process and all its descendants.
    pub(crate) fn tree(self) -> Vec<Process> {
        let pids = pids().unwrap_or_default();
        let parents: BTreeMap<u32, u32> = pids
            .into_iter()
            .filter_map(|pid| Some((pid, Process { pid }.stat().ok()?.parent)))
            .collect();
        let mut tree = vec![self];
        let mut next = 0;
        while next < tree.len() {
            let parent = tree[next].pid;
            let children = parents.iter().filter(|(_, of)| **of == parent);
            tree.extend(children.map(|(pid, _)| Process { pid: *pid }));
            next += 1;
        }
        tree
    }

    /// CPU time of the tree; those that end meanwhile are counted by the parent that waits for them.
    pub(crate) fn tree_cpu(self) -> Duration {
        self.tree().iter().filter_map(|process| process.cpu_fine().ok()).sum()
    }

    pub(crate) fn tree_resident_bytes(self) -> u64 {
        self.tree().iter().filter_map(|process| process.resident_bytes().ok()).sum()
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs(count) / rustix::param::clock_ticks_per_second() as u32
}

fn pids() -> Result<Vec<u32>> {
    let entries = fs::read_dir("/proc").context("list /proc")?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

fn holds_one_of(pid: u32, links: &[String]) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .any(|target| links.iter().any(|link| target.as_os_str() == link.as_str()))
}

/// The fields of `/proc/<pid>/stat` that we use.
#[derive(Debug, PartialEq)]
struct ProcessStat {
    parent: u32,
    user_ticks: u64,
    system_ticks: u64,
    child_user_ticks: u64,
    child_system_ticks: u64,
}

impl ProcessStat {
    /// The command's name is in parentheses and may itself contain spaces and parentheses, so the
    /// last one counts.
    fn parse(text: &str) -> Option<ProcessStat> {
        let (_, after_name) = text.rsplit_once(')')?;
        let fields: Vec<&str> = after_name.split_whitespace().collect();
        // `proc(5)` counts from 1, and the first here is its third.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(ProcessStat {
            parent: u32::try_from(field(4)?).ok()?,
            user_ticks: field(14)?,
            system_ticks: field(15)?,
            child_user_ticks: field(16)?,
            child_system_ticks: field(17)?,
        })
    }
}

fn kib_field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

const LISTEN: &str = "0A";

/// The inodes of sockets that listen on `port`, from `/proc/net/tcp` or `tcp6`.
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    let listening = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local_port) = fields.get(1)?.rsplit_once(':')?;
        let ours = u16::from_str_radix(local_port, 16).ok()? == port && *fields.get(3)? == LISTEN;
        ours.then(|| fields.get(9)?.parse().ok()).flatten()
    };
    table.lines().skip(1).filter_map(listening).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let text = "4711 (a) b (c) S 17 4711 4711 0 -1 4194560 1 2 3 4 1250 333 7 9 20 0 61 0 9 8";
        let expected = ProcessStat {
            parent: 17,
            user_ticks: 1250,
            system_ticks: 333,
            child_user_ticks: 7,
            child_system_ticks: 9,
        };
        assert_eq!(ProcessStat::parse(text), Some(expected));
        assert_eq!(ProcessStat::parse("4711 (short) S 17"), None);
        assert_eq!(ProcessStat::parse(""), None);
    }

    #[test]
    fn memory_is_found_by_its_whole_name() {
        let status = "Name:\tjava\nVmHWM:\t  999 kB\nVmRSSx:\t 1 kB\nVmRSS:\t  123456 kB\n";
        assert_eq!(kib_field(status, "VmRSS"), Some(123_456));
        assert_eq!(kib_field(status, "VmSwap"), None);
    }

    #[test]
    fn only_listeners_on_the_port_are_found_in_the_socket_tables() {
        let header =
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid";
        let table = format!(
            "{header}\n\
             0: 0100007F:2384 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 71 1 0\n\
             1: 0100007F:2384 0100007F:9C40 01 00000000:00000000 00:00000000 00000000 0 0 72 1 0\n\
             2: 0100007F:2385 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 73 1 0\n"
        );
        assert_eq!(listening_inodes(&table, 9092), [71]);
        let v6 = format!(
            "{header}\n0: 0000000000000000FFFF00000100007F:2384 \
             00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 81 1 0\n"
        );
        assert_eq!(listening_inodes(&v6, 9092), [81]);
    }

    #[test]
    fn a_listener_of_ours_is_found_to_be_ours() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(Process::listening_on(port).unwrap(), Process::this());
    }

    #[test]
    fn this_process_uses_memory_and_its_cpu_time_grows() {
        let this = Process::this();
        assert!(this.resident_bytes().unwrap() > 100_000);
        let before = this.tree_cpu();
        let busy_until = std::time::Instant::now() + Duration::from_millis(60);
        while std::time::Instant::now() < busy_until {}
        assert!(this.tree_cpu() > before);
    }
}
