//! GET requests in the open.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::Context;
use serde_json::Value;

use super::TIMEOUT;

/// The answer to a request.
#[derive(Debug)]
pub struct HttpAnswer {
    pub status: u16,
    /// By their names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl HttpAnswer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The body as text.
    ///
    /// # Panics
    /// It is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    /// The body as a document.
    ///
    /// # Panics
    /// It is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The code of an error of the history API.
    ///
    /// # Panics
    /// The body is not JSON.
    pub fn code(&self) -> Value {
        self.json()["error"]["code"].clone()
    }
}

/// Sends a GET request. Returns the status and the body.
///
/// # Errors
///
/// There is no response.
pub fn http_get(address: SocketAddr, path: &str) -> anyhow::Result<(u16, String)> {
    let answer = http_get_with(address, path, "")?;
    Ok((answer.status, String::from_utf8(answer.body)?))
}

/// Sends a GET request with more headers, each with its line end.
///
/// # Errors
///
/// There is no response.
pub fn http_get_with(address: SocketAddr, path: &str, headers: &str) -> anyhow::Result<HttpAnswer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    // HTTP/1.0 has no chunks.
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n{headers}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.context("a head and a body")?;
    let body = answer.split_off(end + 4);
    let head = String::from_utf8(answer)?;
    let mut lines = head.lines();
    let status =
        lines.next().and_then(|line| line.split(' ').nth(1)).context("a status")?.parse()?;
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect();
    Ok(HttpAnswer { status, headers, body })
}
