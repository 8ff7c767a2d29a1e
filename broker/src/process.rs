//! The resources that this process uses.

use std::time::Duration;

/// Resident memory in bytes; `None` if the system does not report it.
pub(crate) fn resident_bytes() -> Option<u64> {
    resident_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The CPU time of all threads together.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanoseconds)
}

/// The number of open files and sockets; `None` if the system does not report it.
pub(crate) fn open_files() -> Option<u64> {
    // The listing itself has one open.
    Some(std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_says_what_is_taken() {
        assert!(resident_bytes().unwrap() > 1 << 20);
        assert!(open_files().unwrap() >= 3);
        let before = cpu_time();
        assert!(cpu_time() >= before);
        assert_eq!(resident_in("Name:\tx\nVmRSS:\t    5 kB\n"), Some(5 << 10));
        assert_eq!(resident_in("Name:\tx\n"), None);
    }
}
