//! `zk import`, from servers that run.

use std::collections::HashMap;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};

use bytes::{Bytes, BytesMut};
use testkit::directory::TestDirectory;
use zk_wire::{
    ConnectRequest, ConnectResponse, JuteReader, JuteWriter, ReplyHeader, RequestHeader, ZkCode,
    ZnodeStat, opcode,
};

use super::client::*;
use super::command_line::{zk, zk_error};

/// Without its counter, a queue would give a number again, and then fail on each that is there.
#[test]
fn sequential_names_go_on_after_an_import() {
    let (data, other) = (TestDirectory::new(), TestDirectory::new());
    let (source, copy) = (serve(&data), serve(&other));
    let (from, to) = (address(&source), address(&copy));
    zk(from, &["create", "/queue"], "");
    for _ in 0..3 {
        zk(from, &["create", "/queue/n-", "--sequential"], "");
    }
    zk(from, &["create", "/lock-", "--sequential"], "");
    for gone in ["/queue/n-0000000000", "/queue/n-0000000001"] {
        zk(from, &["delete", gone], "");
    }
    zk(to, &["create", "/queue"], "");
    for turn in 3..5 {
        zk(to, &["import", &from.to_string()], "");
        let next = zk(to, &["create", "/queue/n-", "--sequential"], "");
        assert_eq!(next, format!("/queue/n-{turn:010}\n"));
    }
    assert_eq!(zk(to, &["create", "/lock-", "--sequential"], ""), "/lock-0000000002\n");
    let third = TestDirectory::new();
    let part = serve(&third);
    zk(address(&part), &["import", &from.to_string(), "--path", "/queue/n-0000000002"], "");
    let next = zk(address(&part), &["create", "/queue/n-", "--sequential"], "");
    assert_eq!(next, "/queue/n-0000000003\n");
}

/// A server shows `digest:USER:x` to whoever may not administer the znode: as a list, that shuts
/// everybody out.
#[test]
fn lists_without_hashes_are_not_imported() {
    let (data, other) = (TestDirectory::new(), TestDirectory::new());
    let (source, copy) = (serve(&data), serve(&other));
    let (from, to) = (address(&source).to_string(), address(&copy));
    let me = ["--auth", "digest:me:secret"];
    let lists = ["--acl", "auth::cdrwa", "--acl", "world:anyone:r"];
    zk(address(&source), &[&["create", "/a", "x"], &lists[..], &me[..]].concat(), "");
    let (code, why) = zk_error(to, &["import", &from]);
    assert!(code == Some(1) && why.contains("/a") && why.contains("--from-auth"), "{why}");
    zk(to, &[&["import", &from, "--from-auth", "digest:me:secret"], &me[..]].concat(), "");
    assert_eq!(zk(to, &[&["get", "/a"], &me[..]].concat(), ""), "x");
    zk(to, &[&["set", "/a", "y"], &me[..]].concat(), "");
}

/// A ZooKeeper that has a root with `children`, of which those named `gone…` are deleted between
/// two requests. It answers nothing about a child before it was asked about all of them.
fn serve_changing_tree(children: &'static [&'static str]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it has one");
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        answer_about(stream, children)
    });
    address
}

fn answer_about(mut stream: TcpStream, children: &[&str]) -> Option<()> {
    let connect = ConnectRequest::read(read_frame(&mut stream)?).expect("it reads");
    let response = ConnectResponse {
        protocol_version: 0,
        timeout_ms: connect.timeout_ms,
        session_id: 1,
        password: Some(Bytes::from_static(&[7; 16])),
        read_only: Some(false),
    };
    send(&mut stream, |out| response.write(out));
    let (mut asked, mut waiting) = (HashMap::new(), Vec::new());
    loop {
        let mut fields = JuteReader::new(read_frame(&mut stream)?);
        let header = RequestHeader::read(&mut fields).expect("it reads");
        let path = fields.required_string().unwrap_or_default();
        *asked.entry(path.clone()).or_insert(0) += 1;
        waiting.push((header, path));
        if asked.contains_key("/a")
            && children.iter().any(|c| !asked.contains_key(&format!("/{c}")))
        {
            continue;
        }
        for (header, path) in waiting.drain(..) {
            answer_one(&mut stream, header, &path, children);
        }
    }
}

fn answer_one(
    stream: &mut TcpStream,
    RequestHeader { xid, op }: RequestHeader,
    path: &str,
    children: &[&str],
) {
    let is_gone = path.starts_with("/gone") && op != opcode::GET_DATA;
    let err = if is_gone { ZkCode::NoNode.number() } else { 0 };
    let num_children = if path == "/" { children.len() as i32 } else { 0 };
    let stat = ZnodeStat { num_children, cversion: num_children, ..ZnodeStat::default() };
    send(stream, |out| {
        ReplyHeader { xid, zxid: 9, err }.write(out);
        match op {
            _ if is_gone => {}
            opcode::GET_DATA => {
                out.buffer(Some(b"x"));
                stat.write(out);
            }
            opcode::GET_ACL => {
                out.vector(Some(&[()]), |out: &mut BytesMut, ()| {
                    out.int(31);
                    out.string(Some("world"));
                    out.string(Some("anyone"));
                });
                stat.write(out);
            }
            opcode::GET_CHILDREN_2 => {
                let names = if path == "/" { children } else { &[] };
                out.vector(Some(names), |out: &mut BytesMut, name| out.string(Some(name)));
                stat.write(out);
            }
            _ => {}
        }
    });
}

fn read_frame(stream: &mut TcpStream) -> Option<Bytes> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; i32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    Some(frame.into())
}

#[test]
fn an_import_goes_on_where_a_znode_is_deleted_meanwhile() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let source = serve_changing_tree(&["a", "gone"]);
    zk(address(&server), &["import", &source.to_string()], "");
    assert_eq!(zk(address(&server), &["ls", "/"], ""), "a\nzookeeper\n");
}

#[test]
fn an_import_asks_about_many_znodes_at_once() {
    let data = TestDirectory::new();
    let server = serve(&data);
    let source = serve_changing_tree(&["a", "b", "c", "d", "e", "f", "g", "h"]);
    zk(address(&server), &["import", &source.to_string()], "");
    assert_eq!(zk(address(&server), &["ls", "/"], "").lines().count(), 9);
}
