//! A plug-in of Freezeframe: user time from a Windows FILETIME at the front of a record's value.
//!
//! That is a count of 100 ns since 1601, in 8 bytes, the least significant first. docs/USER-TIME.md says
//! how this file was compiled, and how to use it.

/// "This record has no user time."
const NONE: i64 = i64::MIN;
/// Milliseconds from 1601 to 1970.
const EPOCH_MS: i64 = 11_644_473_600_000;

/// Room for a record. It is asked for seldom, and memory lives only for a batch: nothing is freed.
#[no_mangle]
pub extern "C" fn alloc(length: usize) -> *mut u8 {
    Box::leak(vec![0; length].into_boxed_slice()).as_mut_ptr()
}

/// Milliseconds since 1970, or [`NONE`]. A length of -1 stands for null.
///
/// # Safety
/// Called by the service only, with what it wrote into room that [`alloc`] gave it.
#[no_mangle]
pub unsafe extern "C" fn user_time(
    _key: *const u8,
    _key_length: i32,
    value: *const u8,
    value_length: i32,
    _timestamp: i64,
) -> i64 {
    if value_length < 8 {
        return NONE;
    }
    let value = std::slice::from_raw_parts(value, value_length as usize);
    let mut count = [0; 8];
    count.copy_from_slice(&value[..8]);
    match i64::from_le_bytes(count) {
        count if count > 0 => count / 10_000 - EPOCH_MS,
        _ => NONE,
    }
}
