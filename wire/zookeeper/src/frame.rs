//! Frames: a length of 4 bytes, and that many bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::JuteError;

/// ZooKeeper's default for `jute.maxbuffer`.
pub const FRAME_BYTES_MAX: usize = 1_048_575;

const LENGTH_BYTES: usize = 4;

/// Takes the next whole frame from the front of `stream`: `None` while some of it is missing.
///
/// A length above `bytes_max` or below 0 is an error as soon as it has arrived: ZooKeeper closes
/// the connection without a reply. (A four-letter word looks the same. The listener must handle
/// those before the first frame.)
pub fn frame(stream: &mut BytesMut, bytes_max: usize) -> Result<Option<Bytes>, JuteError> {
    let Some(length) = stream.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = i32::from_be_bytes(*length);
    let len = usize::try_from(length)
        .ok()
        .filter(|len| *len <= bytes_max)
        .ok_or(JuteError::Frame { length, max: bytes_max })?;
    if stream.len() - LENGTH_BYTES < len {
        return Ok(None);
    }
    stream.advance(LENGTH_BYTES);
    Ok(Some(stream.split_to(len).freeze()))
}

/// Appends a frame whose content `write` appends.
///
/// # Panics
///
/// If the content exceeds 2 GiB.
pub fn put_frame(out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
    let start = out.len();
    out.put_i32(0);
    write(out);
    let len = out.len() - start - LENGTH_BYTES;
    let length = i32::try_from(len).expect("a frame below 2 GiB");
    out[start..start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_taken_only_when_it_is_whole() {
        let mut whole = BytesMut::new();
        put_frame(&mut whole, |out| out.put_slice(b"abc"));
        for cut in 0..whole.len() {
            let mut stream = BytesMut::from(&whole[..cut]);
            assert_eq!(frame(&mut stream, FRAME_BYTES_MAX), Ok(None));
            assert_eq!(stream.len(), cut, "nothing is taken");
        }
        let mut stream = whole.clone();
        stream.put_slice(b"next");
        assert_eq!(frame(&mut stream, FRAME_BYTES_MAX), Ok(Some(Bytes::from_static(b"abc"))));
        assert_eq!(&stream[..], b"next");
    }

    #[test]
    fn lengths_below_zero_or_above_the_limit_are_refused_at_once() {
        for length in [-1, i32::MIN, FRAME_BYTES_MAX as i32 + 1, i32::MAX] {
            let mut stream = BytesMut::from(&length.to_be_bytes()[..]);
            let refused = Err(JuteError::Frame { length, max: FRAME_BYTES_MAX });
            assert_eq!(frame(&mut stream, FRAME_BYTES_MAX), refused);
        }
        let mut longest = BytesMut::from(&(FRAME_BYTES_MAX as i32).to_be_bytes()[..]);
        assert_eq!(frame(&mut longest, FRAME_BYTES_MAX), Ok(None));
    }
}
