//! Requests that take a zxid: what can be said against them without knowing the tree, and how their
//! results look.

use bytes::BytesMut;
use engine_core::EngineError;
use engine_znodes::acl::{AclId, RequestedAclEntry, resolve_acl};
use engine_znodes::{
    CheckedOp, OpOutcome, SPECIAL_PATHS, TransactionOutcome, ZkCode, ZnodeLifetime, ZnodeOp,
    ZnodeTree, check_path, split_path,
};

use crate::JuteWriter;
use crate::opcode as op;
use crate::options::ZkOptions;
use crate::output::{ConnectionOutput, put_stat};
use crate::past::is_past;
use crate::request::{WriteOp, WriteOpBody, WriteRequest};

const FLAG_EPHEMERAL: i32 = 1;
const FLAG_SEQUENTIAL: i32 = 2;
/// The flags of `CreateMode`: two bits, then the container, and a time to live with or without a
/// sequence.
const FLAGS_CONTAINER: i32 = 4;
const FLAGS_TTL: i32 = 5;
const FLAGS_TTL_SEQUENTIAL: i32 = 6;
/// The longest time to live: 40 bits.
const TTL_MAX: i64 = (1 << 40) - 1;

/// The changes of a request, with what is wrong with them.
pub(crate) fn checked_ops(
    request: &WriteRequest,
    held: &[AclId],
    options: &ZkOptions,
) -> Vec<CheckedOp> {
    match request {
        WriteRequest::Single(op) => vec![checked_op(op, held, options)],
        WriteRequest::Multi(ops) => ops.iter().map(|op| checked_op(op, held, options)).collect(),
        WriteRequest::Refused(code) => vec![refused(*code)],
        WriteRequest::Reconfig => vec![refused(match options.reconfig_enabled {
            true => ZkCode::Unimplemented,
            false => ZkCode::ReconfigDisabled,
        })],
    }
}

fn checked_op(write: &WriteOp, held: &[AclId], options: &ZkOptions) -> CheckedOp {
    let op = match is_past(&write.path) {
        true => Err(ZkCode::NotReadOnly),
        false => znode_op(write, held, options),
    };
    op.map_or_else(refused, |op| CheckedOp { op, refusal: None })
}

fn znode_op(write: &WriteOp, held: &[AclId], options: &ZkOptions) -> Result<ZnodeOp, ZkCode> {
    let path = write.path.clone();
    match &write.body {
        WriteOpBody::Create { data, acl, flags, ttl } => {
            let (lifetime, acl) = check_create(write, *flags, *ttl, acl.as_deref(), held, options)?;
            let (data, is_sequential) = (data.clone(), is_sequential(*flags));
            Ok(ZnodeOp::Create { path, data, acl, lifetime, is_sequential })
        }
        WriteOpBody::Delete { version } => match split_path(&path) {
            Ok(_) if !SPECIAL_PATHS.contains(&&*path) => {
                Ok(ZnodeOp::Delete { path, version: *version })
            }
            _ => Err(ZkCode::BadArguments),
        },
        WriteOpBody::SetData { data, version } => {
            check_path(&path)?;
            Ok(ZnodeOp::SetData { path, data: data.clone(), version: *version })
        }
        WriteOpBody::SetAcl { acl, version } => {
            check_path(&path)?;
            let acl = resolve_acl(acl.as_deref(), held)?;
            Ok(ZnodeOp::SetAcl { path, acl, version: *version })
        }
        WriteOpBody::Check { version } => {
            check_path(&path)?;
            Ok(ZnodeOp::Check { path, version: *version })
        }
    }
}

/// What takes the place of a change that fails anyway.
fn refused(code: ZkCode) -> CheckedOp {
    let op = ZnodeOp::Check { path: String::new(), version: -1 };
    CheckedOp { op, refusal: Some(code) }
}

fn is_sequential(flags: i32) -> bool {
    flags == FLAGS_TTL_SEQUENTIAL || (flags < FLAGS_CONTAINER && flags & FLAG_SEQUENTIAL != 0)
}

fn check_create(
    write: &WriteOp,
    flags: i32,
    ttl: i64,
    acl: Option<&[RequestedAclEntry]>,
    held: &[AclId],
    options: &ZkOptions,
) -> Result<(ZnodeLifetime, engine_znodes::acl::Acl), ZkCode> {
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
    split_path(&write.path)?;
    let lifetime = match write.opcode {
        op::CREATE_CONTAINER => ZnodeLifetime::Container,
        op::CREATE_TTL if has_ttl => ZnodeLifetime::Ttl(ttl),
        _ if flags < FLAGS_CONTAINER && flags & FLAG_EPHEMERAL != 0 => ZnodeLifetime::Ephemeral,
        _ => ZnodeLifetime::Persistent,
    };
    Ok((lifetime, resolve_acl(acl, held)?))
}

/// Replies to a write, or without one to the end of the session.
pub(crate) fn reply_to_write(
    output: &ConnectionOutput,
    tree: &ZnodeTree,
    xid: i32,
    request: Option<&WriteRequest>,
    result: Result<TransactionOutcome, EngineError>,
) {
    let zxid = tree.last_zxid();
    let result = match result {
        Ok(outcome) => outcome.result,
        Err(error) => {
            tracing::warn!(%error, "a ZooKeeper client's write failed");
            return output.reply_header(xid, zxid, Err(ZkCode::SystemError));
        }
    };
    match (request, result) {
        (Some(WriteRequest::Multi(ops)), Ok(outcomes)) => {
            output.reply_with_body(xid, zxid, 0, |out| {
                for (op, outcome) in ops.iter().zip(&outcomes) {
                    put_multi_outcome(out, op.opcode, outcome);
                }
                put_multi_end(out);
            });
        }
        (Some(WriteRequest::Multi(ops)), Err(refusal)) => {
            // The header says nothing of it: the results do.
            output.reply_with_body(xid, zxid, 0, |out| {
                for place in 0..ops.len() {
                    put_multi_error(
                        out,
                        match place.cmp(&(refusal.op as usize)) {
                            std::cmp::Ordering::Less => 0,
                            std::cmp::Ordering::Equal => refusal.code.number(),
                            std::cmp::Ordering::Greater => ZkCode::RuntimeInconsistency.number(),
                        },
                    );
                }
                put_multi_end(out);
            });
        }
        (_, Err(refusal)) => output.reply_header(xid, zxid, Err(refusal.code)),
        (request, Ok(outcomes)) => output.reply_with_body(xid, zxid, 0, |out| {
            if let (Some(WriteRequest::Single(write)), [outcome]) = (request, &outcomes[..]) {
                put_outcome(out, write.opcode != op::CREATE, outcome);
            }
        }),
    }
}

fn put_outcome(out: &mut BytesMut, with_stat: bool, outcome: &OpOutcome) {
    match outcome {
        OpOutcome::Created(path, stat) => {
            out.string(Some(path));
            if with_stat {
                put_stat(out, stat);
            }
        }
        OpOutcome::DataSet(stat) | OpOutcome::AclSet(stat) => put_stat(out, stat),
        OpOutcome::Deleted | OpOutcome::Checked => {}
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

pub(crate) fn put_multi_header(out: &mut BytesMut, opcode: i32, done: bool, err: i32) {
    out.int(opcode);
    out.bool(done);
    out.int(err);
}

pub(crate) fn put_multi_end(out: &mut BytesMut) {
    put_multi_header(out, op::ERROR, true, -1);
}
