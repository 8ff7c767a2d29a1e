//! TLS of the kernel (Linux 5.11 and later, with its module `tls`): after the handshake the socket
//! itself encrypts and decrypts, in one pass with its copy, and is read and written like one in the
//! open.
//!
//! The kernel keeps the keys of the handshake: a client that changes keys (TLS 1.3) or shakes hands
//! again (TLS 1.2) is disconnected.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, TcpListener, TcpStream as BlockingStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::BytesMut;
use nix::cmsg_space;
use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, TlsGetRecordType, recvmsg, setsockopt};
use rustls::{ConnectionTrafficSecrets, ProtocolVersion, ServerConnection};
use socket2::{MsgHdr, SockRef};
use tokio::net::TcpStream;
use zeroize::Zeroize;

/// The most that one record carries.
const RECORD_BYTES_MAX: usize = 16 << 10;
/// The most that AES-GCM may encrypt with one key, in its blocks of 16 bytes: 2^24 records of the
/// greatest length, where RFC 8446, section 5.5, allows 2^24.5.
const AES_BLOCKS_MAX: u64 = 1 << 34;
/// The blocks that a record takes besides its content.
const RECORD_BLOCKS: usize = 3;
/// The type of a record, and what it says when this was all: a warning, and of what.
const ALERT: u8 = 21;
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// Returns `Ok` if the kernel has TLS, with each cipher that we have.
///
/// # Errors
/// The kernel's error if it has not.
pub fn probe_kernel_tls() -> Result<(), &'static io::Error> {
    static PROBED: LazyLock<io::Result<()>> = LazyLock::new(probe);
    PROBED.as_ref().copied()
}

fn probe() -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
        let stream = BlockingStream::connect(listener.local_addr()?)?;
        attach(&stream)?;
        let keys = cipher.crypto_info(libc::TLS_1_3_VERSION, 0, &[0; 32], &[0; 12]);
        setsockopt(&stream, TcpTlsTx, &keys)?;
        setsockopt(&stream, TcpTlsRx, &keys)?;
    }
    Ok(())
}

/// Hands a socket to the kernel's TLS, which does nothing before it has keys.
///
/// # Errors
/// The kernel has none, or the client is gone. The socket is as it was.
pub(crate) fn attach(stream: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(stream, TcpUlp::<[u8; 3]>::default(), b"tls")?)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cipher {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Cipher {
    /// The kernel's parameters for one direction: `key` may be longer than the cipher's; the next
    /// record has the number `sequence`.
    fn crypto_info(
        self,
        version: u16,
        sequence: u64,
        key: &[u8; 32],
        iv: &[u8; 12],
    ) -> TlsCryptoInfo {
        let rec_seq = sequence.to_be_bytes();
        let (salt, nonce) = iv.split_first_chunk::<4>().expect("it has twelve");
        let explicit = nonce.try_into().expect("eight are left");
        match self {
            Cipher::Aes128Gcm => TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
                info: libc::tls_crypto_info { version, cipher_type: libc::TLS_CIPHER_AES_GCM_128 },
                iv: explicit,
                key: *key.first_chunk().expect("it is longer"),
                salt: *salt,
                rec_seq,
            }),
            Cipher::Aes256Gcm => TlsCryptoInfo::Aes256Gcm(libc::tls12_crypto_info_aes_gcm_256 {
                info: libc::tls_crypto_info { version, cipher_type: libc::TLS_CIPHER_AES_GCM_256 },
                iv: explicit,
                key: *key,
                salt: *salt,
                rec_seq,
            }),
            Cipher::ChaCha20Poly1305 => {
                TlsCryptoInfo::Chacha20Poly1305(libc::tls12_crypto_info_chacha20_poly1305 {
                    info: libc::tls_crypto_info {
                        version,
                        cipher_type: libc::TLS_CIPHER_CHACHA20_POLY1305,
                    },
                    iv: *iv,
                    key: *key,
                    salt: [],
                    rec_seq,
                })
            }
        }
    }
}

/// The keys of one direction.
struct DirectionKeys {
    cipher: Cipher,
    info: TlsCryptoInfo,
}

impl DirectionKeys {
    fn new(
        version: u16,
        sequence: u64,
        secrets: &ConnectionTrafficSecrets,
    ) -> Option<DirectionKeys> {
        let (key, iv, is_aes) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (key, iv, true),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv, false),
            _ => return None,
        };
        let key = key.as_ref();
        let cipher = match (is_aes, key.len()) {
            (true, 16) => Cipher::Aes128Gcm,
            (true, 32) => Cipher::Aes256Gcm,
            (false, 32) => Cipher::ChaCha20Poly1305,
            _ => return None,
        };
        let mut whole = [0; 32];
        whole[..key.len()].copy_from_slice(key);
        let info = cipher.crypto_info(version, sequence, &whole, iv.as_ref().try_into().ok()?);
        whole.zeroize();
        Some(DirectionKeys { cipher, info })
    }
}

impl Drop for DirectionKeys {
    fn drop(&mut self) {
        match &mut self.info {
            TlsCryptoInfo::Aes128Gcm(info) => info.key.zeroize(),
            TlsCryptoInfo::Aes256Gcm(info) => info.key.zeroize(),
            TlsCryptoInfo::Chacha20Poly1305(info) => info.key.zeroize(),
        }
    }
}

/// The state of a socket whose records are the kernel's.
#[derive(Debug)]
pub(crate) struct KernelRecords {
    /// The number of blocks that AES-GCM may still encrypt; `None` for another cipher.
    blocks_left: Option<AtomicU64>,
    /// True if the client has said that this was all.
    has_ended: AtomicBool,
}

impl KernelRecords {
    /// Gives the kernel the keys of a connection whose socket is attached, and of which nothing is
    /// read after the handshake, and nothing waits to be sent.
    ///
    /// # Errors
    /// The kernel does not take them. The connection is lost.
    pub(crate) fn take_over(
        stream: &TcpStream,
        connection: ServerConnection,
    ) -> io::Result<KernelRecords> {
        let version = match connection.protocol_version() {
            Some(ProtocolVersion::TLSv1_2) => libc::TLS_1_2_VERSION,
            _ => libc::TLS_1_3_VERSION,
        };
        let secrets = connection.dangerous_extract_secrets().map_err(io::Error::other)?;
        let unknown = || io::Error::other("the kernel does not have the cipher suite");
        let (sequence, keys) = &secrets.tx;
        let sent = DirectionKeys::new(version, *sequence, keys).ok_or_else(unknown)?;
        let (sequence, keys) = &secrets.rx;
        let received = DirectionKeys::new(version, *sequence, keys).ok_or_else(unknown)?;
        setsockopt(stream, TcpTlsTx, &sent.info)?;
        setsockopt(stream, TcpTlsRx, &received.info)?;
        let is_aes = sent.cipher != Cipher::ChaCha20Poly1305;
        let blocks_left = is_aes.then(|| AtomicU64::new(AES_BLOCKS_MAX));
        Ok(KernelRecords { blocks_left, has_ended: AtomicBool::new(false) })
    }

    /// [`crate::TlsSocket::try_read`]
    pub(crate) fn try_read(&self, stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
        self.unless_control(stream, stream.try_read(buffer))
    }

    /// [`crate::TlsSocket::try_read_buf`]
    pub(crate) fn try_read_buf(
        &self,
        stream: &TcpStream,
        buffer: &mut BytesMut,
    ) -> io::Result<usize> {
        self.unless_control(stream, stream.try_read_buf(buffer))
    }

    /// The result of a read; the kernel refuses to read records other than data in this way.
    fn unless_control(&self, stream: &TcpStream, read: io::Result<usize>) -> io::Result<usize> {
        match read {
            _ if self.has_ended.load(Ordering::Relaxed) => Ok(0),
            Err(error) if error.raw_os_error() == Some(libc::EIO) => self.read_control(stream),
            Err(error) if error.raw_os_error() == Some(libc::EBADMSG) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "a record does not decrypt"))
            }
            read => read,
        }
    }

    /// Reads a record that is not data: 0 if it says that this was all.
    fn read_control(&self, stream: &TcpStream) -> io::Result<usize> {
        let mut payload = [0; 256];
        let mut control = cmsg_space!(u8);
        let mut slices = [IoSliceMut::new(&mut payload)];
        let (fd, flags) = (stream.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        let message = recvmsg::<()>(fd, &mut slices, Some(&mut control), flags)?;
        let mut types = message.cmsgs()?.filter_map(|control| match control {
            ControlMessageOwned::TlsGetRecordType(record_type) => Some(record_type),
            _ => None,
        });
        let (record_type, bytes) = (types.next(), message.bytes);
        let why = match (record_type, &payload[..bytes]) {
            (Some(TlsGetRecordType::Alert), [_, 0]) => {
                self.has_ended.store(true, Ordering::Relaxed);
                return Ok(0);
            }
            (Some(TlsGetRecordType::Alert), [_, alert]) => format!("the client ended it: alert {alert}"),
            (Some(TlsGetRecordType::Handshake), _) => {
                "the client changes keys or shakes hands again, which the kernel's TLS cannot (tls.kernel)".to_owned()
            }
            _ => "the client sent a record that has no place here".to_owned(),
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }

    /// [`crate::TlsSocket::try_write_vectored`]
    pub(crate) fn try_write_vectored(
        &self,
        stream: &TcpStream,
        slices: &[IoSlice<'_>],
    ) -> io::Result<usize> {
        let Some(blocks_left) = &self.blocks_left else { return stream.try_write_vectored(slices) };
        if blocks_left.load(Ordering::Relaxed) == 0 {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the connection has sent as much as TLS may with one key",
            ));
        }
        let written = stream.try_write_vectored(slices)?;
        let blocks = written / 16 + (written / RECORD_BYTES_MAX + 1) * RECORD_BLOCKS;
        // Nobody else writes.
        blocks_left.store(
            blocks_left.load(Ordering::Relaxed).saturating_sub(blocks as u64),
            Ordering::Relaxed,
        );
        Ok(written)
    }

    /// Tells the other side that this was all, if that can be done at once.
    pub(crate) fn close(&self, stream: &TcpStream) {
        let control = record_type_message(ALERT);
        let slices = [IoSlice::new(&CLOSE_NOTIFY)];
        let message = MsgHdr::new().with_buffers(&slices).with_control(&control);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let _ = SockRef::from(stream).sendmsg(&message, flags);
    }
}

/// A control message that says the type of a record: its length, level and kind, and the type,
/// padded to whole words.
fn record_type_message(record_type: u8) -> Vec<u8> {
    let header = size_of::<libc::cmsghdr>();
    let mut message = (header + 1).to_ne_bytes().to_vec();
    message.extend(libc::SOL_TLS.to_ne_bytes());
    message.extend(libc::TLS_SET_RECORD_TYPE.to_ne_bytes());
    message.push(record_type);
    message.resize(message.len().next_multiple_of(size_of::<usize>()), 0);
    message
}
