//! A handshake that reads one record of TLS at a time, and none behind its last, so that what the client sends after it
//! stays in the socket.

use std::io;

use rustls::ServerConnection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The bytes of a record's header: its type, a version, and in two bytes the length of what follows.
const HEADER_BYTES: usize = 5;
/// The most that follows: 2^14 bytes, and what encryption adds.
const BODY_BYTES_MAX: usize = (16 << 10) + 2048;

/// Shakes hands with a client. Nothing waits to be sent then.
///
/// # Errors
/// The client breaks the protocol, and gets an alert if that can be sent at once; or it is gone.
pub(crate) async fn shake_hands(
    stream: &mut TcpStream,
    connection: &mut ServerConnection,
) -> io::Result<()> {
    let (mut sent, mut record) = (Vec::new(), Vec::new());
    loop {
        while connection.wants_write() {
            connection.write_tls(&mut sent)?;
        }
        stream.write_all(&sent).await?;
        sent.clear();
        if !connection.is_handshaking() {
            return Ok(());
        }
        read_record(stream, &mut record).await?;
        let mut left = &record[..];
        while !left.is_empty() {
            // It takes nothing more after the client has said that this was all.
            if connection.read_tls(&mut left)? == 0 {
                let why = "the client ended its handshake";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            if let Err(error) = connection.process_new_packets() {
                while connection.wants_write() {
                    connection.write_tls(&mut sent)?;
                }
                let _ = stream.try_write(&sent);
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
}

async fn read_record(stream: &mut TcpStream, record: &mut Vec<u8>) -> io::Result<()> {
    record.resize(HEADER_BYTES, 0);
    stream.read_exact(record).await?;
    let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
    if length > BODY_BYTES_MAX {
        let why = format!("a record of TLS is too long, or it is none. bytes={length}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    record.resize(HEADER_BYTES + length, 0);
    stream.read_exact(&mut record[HEADER_BYTES..]).await?;
    Ok(())
}
