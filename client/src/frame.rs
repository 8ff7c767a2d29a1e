//! Frames: a length of four bytes, then that many bytes.
//!
//! The length comes from the other side and is not trusted. It is checked against
//! [`FRAME_BYTES_MAX`] first. Beyond [`FIRST_BYTES`], memory is allocated as the bytes arrive, not
//! as they are announced.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest accepted frame.
pub const FRAME_BYTES_MAX: usize = 128 << 20;

/// The most that is allocated for a frame before its bytes arrive. A buffer that grows is copied,
/// and may be twice as long as the frame.
const FIRST_BYTES: usize = 8 << 20;

/// The reason why no frame was read.
#[derive(Debug)]
pub(crate) enum ClientFrameError {
    /// The other side closed the connection, between frames or inside one.
    Closed,
    /// The announced length is out of range.
    Length(i32),
    /// The connection failed.
    Io(io::Error),
}

impl From<io::Error> for ClientFrameError {
    fn from(error: io::Error) -> ClientFrameError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => ClientFrameError::Closed,
            _ => ClientFrameError::Io(error),
        }
    }
}

/// Reads one frame and returns its contents.
pub(crate) async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
) -> Result<Bytes, ClientFrameError> {
    let announced = reader.read_i32().await?;
    let length = match usize::try_from(announced) {
        Ok(length) if length <= FRAME_BYTES_MAX => length,
        _ => return Err(ClientFrameError::Length(announced)),
    };
    let mut buffer = BytesMut::with_capacity(length.min(FIRST_BYTES));
    let mut rest = reader.take(length as u64);
    while buffer.len() < length {
        if buffer.capacity() == buffer.len() {
            buffer.reserve(buffer.len().min(length - buffer.len()));
        }
        if rest.read_buf(&mut buffer).await? == 0 {
            return Err(ClientFrameError::Closed);
        }
    }
    Ok(buffer.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(length: i32, contents: &[u8]) -> Vec<u8> {
        [&length.to_be_bytes()[..], contents].concat()
    }

    #[tokio::test]
    async fn a_frame_is_its_contents_and_no_byte_of_the_next() {
        let contents = vec![7; 300_000];
        let wire = [framed(300_000, &contents), framed(1, b"x")].concat();
        let mut reader = &wire[..];
        assert_eq!(read_frame(&mut reader).await.unwrap(), contents);
        assert_eq!(read_frame(&mut reader).await.unwrap(), &b"x"[..]);
        assert!(matches!(read_frame(&mut reader).await, Err(ClientFrameError::Closed)));
    }

    #[tokio::test]
    async fn an_announced_length_beyond_the_limit_is_refused() {
        for length in [-1, FRAME_BYTES_MAX as i32 + 1, i32::MAX] {
            let wire = framed(length, b"abc");
            assert!(
                matches!(read_frame(&mut &wire[..]).await, Err(ClientFrameError::Length(l)) if l == length)
            );
        }
    }

    #[tokio::test]
    async fn a_frame_that_breaks_off_is_a_closed_connection() {
        let wire = framed(100 << 20, &[0; 1000]);
        assert!(matches!(read_frame(&mut &wire[..]).await, Err(ClientFrameError::Closed)));
    }
}
