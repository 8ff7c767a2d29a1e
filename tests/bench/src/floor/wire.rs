//! The parts of requests that are parsed for every batch, without a copy: a produce request,
//! version 3 to 7.

use anyhow::{Context, Result, ensure};

/// A request header, version 0 or 1.
#[derive(Clone, Copy)]
pub(super) struct FloorHeader {
    pub(super) api: i16,
    pub(super) version: i16,
    pub(super) correlation_id: i32,
}

/// Bytes that are read from their front.
#[derive(Clone, Copy)]
pub(super) struct RequestCursor<'a>(pub(super) &'a [u8]);

impl<'a> RequestCursor<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        ensure!(count <= self.0.len(), "a request ends early. wants={count}, has={}", self.0.len());
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.bytes(N)?.try_into().expect("as many bytes as were asked for"))
    }

    pub(super) fn i16(&mut self) -> Result<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        self.array().map(i32::from_be_bytes)
    }

    fn nullable_string(&mut self) -> Result<Option<&'a [u8]>> {
        match self.i16()? {
            -1 => Ok(None),
            length => self.bytes(usize::try_from(length)?).map(Some),
        }
    }

    pub(super) fn string(&mut self) -> Result<&'a str> {
        let bytes = self.nullable_string()?.context("a name is missing")?;
        Ok(std::str::from_utf8(bytes)?)
    }

    pub(super) fn header(&mut self) -> Result<FloorHeader> {
        let (api, version, correlation_id) = (self.i16()?, self.i16()?, self.i32()?);
        self.nullable_string()?;
        Ok(FloorHeader { api, version, correlation_id })
    }
}

/// Calls `each` with topic, partition and batch of each partition of a produce request.
pub(super) fn walk_batches<'a>(
    mut body: RequestCursor<'a>,
    mut each: impl FnMut(&'a str, i32, &'a [u8]) -> Result<()>,
) -> Result<()> {
    body.nullable_string()?;
    let (_acks, _timeout) = (body.i16()?, body.i32()?);
    for _ in 0..body.i32()? {
        let topic = body.string()?;
        for _ in 0..body.i32()? {
            let partition = body.i32()?;
            let length = usize::try_from(body.i32()?)?;
            each(topic, partition, body.bytes(length)?)?;
        }
    }
    Ok(())
}
