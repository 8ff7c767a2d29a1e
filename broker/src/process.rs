//! The program, and the resources that this process uses.

use std::time::Duration;

/// The target that the program was built for: processor, system and C library.
pub fn build_target() -> String {
    let library = if cfg!(target_env = "musl") { "musl" } else { "gnu" };
    format!("{}-{}-{library}", std::env::consts::ARCH, std::env::consts::OS)
}

/// Resident memory in bytes; `None` if the system does not report it.
pub(crate) fn resident_bytes() -> Option<u64> {
    resident_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The time at which the process started, since 1970; `None` if the system does not report it.
pub(crate) fn started_at() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the program may have blanks; what follows it is the third field.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields.split_whitespace().nth(19)?.parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    let since_boot = Duration::from_millis(ticks * 1000 / per_second.max(1));
    let all = std::fs::read_to_string("/proc/stat").ok()?;
    let boot = all.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(Duration::from_secs(boot.trim().parse().ok()?) + since_boot)
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
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let started_at = started_at().unwrap();
        let second = Duration::from_secs(1);
        assert!(started_at <= now + second && started_at + 3600 * second > now, "{started_at:?}");
        let before = cpu_time();
        assert!(cpu_time() >= before);
        assert_eq!(resident_in("Name:\tx\nVmRSS:\t    5 kB\n"), Some(5 << 10));
        assert_eq!(resident_in("Name:\tx\n"), None);
    }
}
