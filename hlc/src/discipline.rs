//! What the kernel says of the wall clock's precision: `adjtimex`.

use std::time::Duration;

/// Whether somebody keeps the wall clock right, and how well, by the kernel's word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockDiscipline {
    /// A time daemon says that it is synchronised. In a container the kernel may always say that it is not.
    pub is_synchronised: bool,
    /// The largest error that it may have, where that is known.
    pub error_max: Option<Duration>,
}

impl ClockDiscipline {
    /// Asks the kernel. It changes nothing.
    pub(crate) fn of_kernel() -> ClockDiscipline {
        // SAFETY: `timex` is plain integers, for which all zeros are a value.
        let mut timex: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a whole `timex` of ours; with `modes` 0 the kernel only fills it in.
        let state = unsafe { libc::adjtimex(&raw mut timex) };
        if state < 0 {
            return ClockDiscipline::default();
        }
        let is_synchronised = state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0;
        let error_max = u64::try_from(timex.maxerror).ok().map(Duration::from_micros);
        ClockDiscipline { is_synchronised, error_max: error_max.filter(|_| is_synchronised) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_known_only_of_a_clock_that_is_synchronised() {
        let ClockDiscipline { is_synchronised, error_max } = ClockDiscipline::of_kernel();
        assert_eq!(error_max.is_some(), is_synchronised);
    }
}
