//! Requests that take a zxid: the checks that need no tree, and the form of their results.

use bytes::BytesMut;
use engine_core::EngineError;
use engine_znodes::acl::{AclId, resolve_acl};
use engine_znodes::{
    OpOutcome, SPECIAL_PATHS, TransactionOutcome, TransactionRequest, ZkCode, ZnodeLifetime,
    ZnodeOp, ZnodeTree, check_path, split_path,
};
use zk_wire::JuteWriter;
use zk_wire::opcode as op;

use crate::options::ZkOptions;
use crate::output::ConnectionOutput;
use crate::past::is_past;
use crate::request::{WriteOp, WriteOpBody, WriteRequest};
use crate::traffic::RequestMark;

const FLAG_EPHEMERAL: i32 = 1;
const FLAG_SEQUENTIAL: i32 = 2;
/// The flags of `CreateMode`: two bits, then the container, and a time to live with or without a
/// sequence.
const FLAGS_CONTAINER: i32 = 4;
const FLAGS_TTL: i32 = 5;
const FLAGS_TTL_SEQUENTIAL: i32 = 6;
/// The longest time to live: 40 bits.
const TTL_MAX: i64 = (1 << 40) - 1;

/// The form of a write's reply: the numbers of its changes.
#[derive(Clone, Debug)]
pub(crate) enum WriteReply {
    Single(i32),
    Multi(Vec<i32>),
    /// The header alone.
    Header,
}

/// The transaction of a request up to the first change that fails whatever the tree is like, and
/// the form of its reply.
pub(crate) fn transaction_of(
    request: WriteRequest,
    ids: &[AclId],
    options: &ZkOptions,
) -> (TransactionRequest, WriteReply) {
    let refused = |code| TransactionRequest::Ops { ops: Vec::new(), refusal: Some(code) };
    match request {
        WriteRequest::Single(write) => {
            let reply = WriteReply::Single(write.opcode);
            (checked_ops(vec![write], ids, options), reply)
        }
        WriteRequest::Multi(writes) => {
            let reply = WriteReply::Multi(writes.iter().map(|write| write.opcode).collect());
            (checked_ops(writes, ids, options), reply)
        }
        WriteRequest::Refused(code) => (refused(code), WriteReply::Header),
        WriteRequest::Reconfig => {
            let code = if options.reconfig_enabled {
                ZkCode::Unimplemented
            } else {
                ZkCode::ReconfigDisabled
            };
            (refused(code), WriteReply::Header)
        }
    }
}

fn checked_ops(writes: Vec<WriteOp>, ids: &[AclId], options: &ZkOptions) -> TransactionRequest {
    let mut ops = Vec::with_capacity(writes.len());
    for write in writes {
        match znode_op(write, ids, options) {
            Ok(op) => ops.push(op),
            Err(code) => return TransactionRequest::Ops { ops, refusal: Some(code) },
        }
    }
    TransactionRequest::Ops { ops, refusal: None }
}

fn znode_op(write: WriteOp, ids: &[AclId], options: &ZkOptions) -> Result<ZnodeOp, ZkCode> {
    let WriteOp { opcode, path, body } = write;
    if is_past(&path) {
        return Err(ZkCode::NotReadOnly);
    }
    match body {
        WriteOpBody::Create { data, acl, flags, ttl } => {
            let lifetime = lifetime_of(opcode, flags, ttl, options)?;
            split_path(&path)?;
            let acl = resolve_acl(acl.as_deref(), ids, options.optional_schemes())?;
            let is_sequential = is_sequential(flags);
            Ok(ZnodeOp::Create { path, data, acl, lifetime, is_sequential })
        }
        WriteOpBody::Delete { version } => match split_path(&path) {
            Ok(_) if !SPECIAL_PATHS.contains(&&*path) => Ok(ZnodeOp::Delete { path, version }),
            _ => Err(ZkCode::BadArguments),
        },
        WriteOpBody::SetData { data, version } => {
            check_path(&path)?;
            Ok(ZnodeOp::SetData { path, data, version })
        }
        WriteOpBody::SetAcl { acl, version } => {
            check_path(&path)?;
            let acl = resolve_acl(acl.as_deref(), ids, options.optional_schemes())?;
            Ok(ZnodeOp::SetAcl { path, acl, version })
        }
        WriteOpBody::Check { version } => {
            check_path(&path)?;
            Ok(ZnodeOp::Check { path, version })
        }
        WriteOpBody::RaiseSequence { next } => {
            check_path(&path)?;
            Ok(ZnodeOp::RaiseSequence { path, next })
        }
    }
}

fn is_sequential(flags: i32) -> bool {
    flags == FLAGS_TTL_SEQUENTIAL || (flags < FLAGS_CONTAINER && flags & FLAG_SEQUENTIAL != 0)
}

fn lifetime_of(
    opcode: i32,
    flags: i32,
    ttl: i64,
    options: &ZkOptions,
) -> Result<ZnodeLifetime, ZkCode> {
    if !(0..=FLAGS_TTL_SEQUENTIAL).contains(&flags) {
        return Err(ZkCode::BadArguments);
    }
    let has_ttl = flags >= FLAGS_TTL;
    if has_ttl && !options.extended_types {
        return Err(ZkCode::Unimplemented);
    }
    if has_ttl != (1..=TTL_MAX).contains(&ttl) || (!has_ttl && ttl >= 0) {
        return Err(ZkCode::BadArguments);
    }
    Ok(match opcode {
        op::CREATE_CONTAINER => ZnodeLifetime::Container,
        op::CREATE_TTL if has_ttl => ZnodeLifetime::Ttl(ttl),
        _ if flags < FLAGS_CONTAINER && flags & FLAG_EPHEMERAL != 0 => ZnodeLifetime::Ephemeral,
        _ => ZnodeLifetime::Persistent,
    })
}

/// Replies to a write.
pub(crate) fn reply_to_write(
    output: &ConnectionOutput,
    tree: &ZnodeTree,
    request: RequestMark,
    reply: &WriteReply,
    result: Result<TransactionOutcome, EngineError>,
) {
    let zxid = tree.last_zxid();
    let result = match result {
        Ok(outcome) => outcome.result,
        Err(error) => {
            tracing::debug!(%error, "a ZooKeeper client's write failed");
            return output.reply_header(request, zxid, Err(ZkCode::SystemError));
        }
    };
    match (reply, result) {
        (WriteReply::Multi(opcodes), Ok(outcomes)) => {
            output.reply_with_body(request, zxid, 0, |out| {
                for (opcode, outcome) in opcodes.iter().zip(&outcomes) {
                    put_multi_outcome(out, *opcode, outcome);
                }
                put_multi_end(out);
            });
        }
        (WriteReply::Multi(opcodes), Err(refusal)) => {
            // The header says nothing of it: the results do.
            output.reply_with_body(request, zxid, 0, |out| {
                for index in 0..opcodes.len() {
                    put_multi_error(
                        out,
                        match index.cmp(&(refusal.op as usize)) {
                            std::cmp::Ordering::Less => 0,
                            std::cmp::Ordering::Equal => refusal.code.number(),
                            std::cmp::Ordering::Greater => ZkCode::RuntimeInconsistency.number(),
                        },
                    );
                }
                put_multi_end(out);
            });
        }
        (_, Err(refusal)) => output.reply_header(request, zxid, Err(refusal.code)),
        (WriteReply::Single(opcode), Ok(outcomes)) => {
            output.reply_with_body(request, zxid, 0, |out| {
                for outcome in &outcomes {
                    put_outcome(out, *opcode != op::CREATE, outcome);
                }
            });
        }
        (WriteReply::Header, Ok(_)) => output.reply_header(request, zxid, Ok(())),
    }
}

fn put_outcome(out: &mut BytesMut, with_stat: bool, outcome: &OpOutcome) {
    match outcome {
        OpOutcome::Created(path, stat) => {
            out.string(Some(path));
            if with_stat {
                stat.write(out);
            }
        }
        OpOutcome::DataSet(stat) | OpOutcome::AclSet(stat) => stat.write(out),
        OpOutcome::Deleted | OpOutcome::Checked | OpOutcome::SequenceRaised => {}
    }
}

fn put_multi_outcome(out: &mut BytesMut, opcode: i32, outcome: &OpOutcome) {
    // Results with a stat all have the number of `create2`.
    let number = match opcode {
        op::CREATE_CONTAINER | op::CREATE_TTL => op::CREATE_2,
        opcode => opcode,
    };
    put_multi_header(out, number, false, 0);
    put_outcome(out, opcode != op::CREATE, outcome);
}

pub(crate) fn put_multi_error(out: &mut BytesMut, err: i32) {
    put_multi_header(out, op::ERROR, false, err);
    out.int(err);
}

pub(crate) fn put_multi_header(out: &mut BytesMut, opcode: i32, is_done: bool, err: i32) {
    out.int(opcode);
    out.bool(is_done);
    out.int(err);
}

pub(crate) fn put_multi_end(out: &mut BytesMut) {
    put_multi_header(out, op::ERROR, true, -1);
}
