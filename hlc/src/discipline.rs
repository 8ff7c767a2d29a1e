//! The kernel's view of the wall clock's precision: `adjtimex`.

use std::time::Duration;

/// The kernel's view of the wall clock: whether it is synchronised, and how well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockDiscipline {
    /// A time daemon reports that it is synchronised. In a container the kernel may always report
    /// that it is not.
    pub is_synchronised: bool,
    /// The largest error, where it is known.
    pub error_max: Option<Duration>,
}

impl ClockDiscipline {
    /// Reads the kernel's state. It changes nothing.
    pub(crate) fn from_kernel() -> ClockDiscipline {
        // SAFETY: `timex` is plain integers, for which all zeros are a value.
        let mut timex: libc::timex = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a whole `timex` of ours; with `modes` 0 the kernel only fills
        // it in.
        let state = unsafe { libc::adjtimex(&raw mut timex) };
        ClockDiscipline::from_adjtimex(state, timex.status, timex.maxerror)
    }

    /// Interprets the state that `adjtimex` returned, with the status and the largest error. A
    /// state below zero means that the call failed.
    fn from_adjtimex(state: i32, status: i32, error_us: i64) -> ClockDiscipline {
        let is_error = state < 0 || state == libc::TIME_ERROR;
        let is_synchronised = !is_error && status & libc::STA_UNSYNC == 0;
        let error_max = if is_synchronised {
            u64::try_from(error_us).ok().map(Duration::from_micros)
        } else {
            None
        };
        ClockDiscipline { is_synchronised, error_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_state_and_a_status_without_a_fault_are_a_clock_that_is_synchronised() {
        let error_max = Some(Duration::from_micros(7));
        let synchronised = ClockDiscipline { is_synchronised: true, error_max };
        assert_eq!(ClockDiscipline::from_adjtimex(libc::TIME_OK, libc::STA_PLL, 7), synchronised);
        assert_eq!(ClockDiscipline::from_adjtimex(libc::TIME_INS, libc::STA_INS, 7), synchronised);
        let not = ClockDiscipline::default();
        assert_eq!(ClockDiscipline::from_adjtimex(libc::TIME_ERROR, libc::STA_PLL, 7), not);
        assert_eq!(
            ClockDiscipline::from_adjtimex(libc::TIME_OK, libc::STA_PLL | libc::STA_UNSYNC, 7),
            not
        );
        assert_eq!(ClockDiscipline::from_adjtimex(-1, 0, 7), not);
        let vague = ClockDiscipline { error_max: None, ..synchronised };
        assert_eq!(ClockDiscipline::from_adjtimex(libc::TIME_OK, 0, -1), vague);
    }

    #[test]
    fn an_error_is_known_only_of_a_clock_that_is_synchronised() {
        let ClockDiscipline { is_synchronised, error_max } = ClockDiscipline::from_kernel();
        assert_eq!(error_max.is_some(), is_synchronised);
    }
}
