//! The kernel's report of a process under `/proc`: CPU time, memory, and listening ports.
//!
//! CPU time is in ticks of 10 ms. A process shorter than that is read from its threads' scheduler
//! statistics, in nanoseconds, which however lose threads that have ended. [`Process::cpu_fine`]
//! returns the larger of both.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use procfs::{
    net::{TcpState, tcp, tcp6},
    process::{FDTarget, Stat, all_processes},
};

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
        let sockets = [tcp(), tcp6()].into_iter().flatten().flatten();
        let listens = |at: u16, state| at == port && state == TcpState::Listen;
        let inodes: Vec<u64> = sockets
            .filter(|socket| listens(socket.local_address.port(), socket.state.clone()))
            .map(|socket| socket.inode)
            .collect();
        ensure!(!inodes.is_empty(), "nothing on this machine listens on the port. port={port}");
        let holds_one = |process: &procfs::process::Process| {
            let open = process.fd().into_iter().flatten().flatten();
            let mut targets = open.map(|open| open.target);
            targets.any(|to| matches!(to, FDTarget::Socket(inode) if inodes.contains(&inode)))
        };
        let found = all_processes()?.flatten().find(holds_one);
        let found = found.with_context(|| {
            format!("the listener belongs to a process we may not see. port={port}")
        })?;
        Ok(Process { pid: found.pid() as u32 })
    }

    fn open(self) -> Result<procfs::process::Process> {
        Ok(procfs::process::Process::new(self.pid as i32)?)
    }

    fn stat(self) -> Result<Stat> {
        Ok(self.open()?.stat()?)
    }

    /// In ticks of 10 ms.
    pub(crate) fn cpu(self) -> Result<CpuTime> {
        let stat = self.stat()?;
        Ok(CpuTime { user: ticks(stat.utime), system: ticks(stat.stime) })
    }

    /// This process, with the children that it has waited for: finer than a tick where possible.
    fn cpu_fine(self) -> Result<Duration> {
        let process = self.open()?;
        let stat = process.stat()?;
        let scheduled = |task: procfs::process::Task| Some(task.schedstat().ok()?.sum_exec_runtime);
        let threads = process.tasks().into_iter().flatten().flatten().filter_map(scheduled);
        let threads = Duration::from_nanos(threads.sum());
        let waited_for = ticks((stat.cutime + stat.cstime) as u64);
        Ok(ticks(stat.utime + stat.stime).max(threads) + waited_for)
    }

    pub(crate) fn resident_bytes(self) -> Result<u64> {
        let kib = self.open()?.status()?.vmrss.context("a process without memory has ended")?;
        Ok(kib * 1024)
    }

    /// Bytes that this process has written to disks, if readable.
    pub(crate) fn written_bytes(self) -> Option<u64> {
        Some(self.open().ok()?.io().ok()?.write_bytes)
    }

    /// Bytes that this process has read from disks, if readable.
    pub(crate) fn read_bytes(self) -> Option<u64> {
        Some(self.open().ok()?.io().ok()?.read_bytes)
    }

    /// This process and all its descendants.
    pub(crate) fn tree(self) -> Vec<Process> {
        let all = all_processes().into_iter().flatten().flatten();
        let parents: BTreeMap<u32, u32> = all
            .filter_map(|process| Some((process.pid() as u32, process.stat().ok()?.ppid as u32)))
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

    /// CPU time of the tree; those that end meanwhile are counted by the parent that waits for
    /// them.
    pub(crate) fn tree_cpu(self) -> Duration {
        self.tree().iter().filter_map(|process| process.cpu_fine().ok()).sum()
    }

    pub(crate) fn tree_resident_bytes(self) -> u64 {
        self.tree().iter().filter_map(|process| process.resident_bytes().ok()).sum()
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs(count) / procfs::ticks_per_second() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

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
