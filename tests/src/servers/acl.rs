//! The rights of Kafka's users, given and taken in Kafka's own protocol: librdkafka's Rust client can't.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

/// What a right is for, with its number in the protocol.
#[derive(Clone, Copy, Debug)]
pub enum Resource<'a> {
    /// One topic.
    Topic(&'a str),
    /// One group.
    Group(&'a str),
}

/// What a user may do, with its number in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum Operation {
    /// To read a topic, or to be a member of a group.
    Read = 3,
    /// To publish.
    Write = 4,
    /// To see it.
    Describe = 8,
}

const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;
/// A resource is meant with exactly that name.
const LITERAL: i8 = 3;
const ALLOW: i8 = 3;

/// Gives a user a right, on the server whose listener for everybody has that port.
///
/// # Panics
///
/// When the server doesn't do it.
pub fn grant(port: u16, user: &str, resource: Resource<'_>, operation: Operation) {
    ask(port, CREATE_ACLS, user, resource, operation);
}

/// Takes a right away.
///
/// # Panics
///
/// When the server doesn't do it.
pub fn revoke(port: u16, user: &str, resource: Resource<'_>, operation: Operation) {
    ask(port, DELETE_ACLS, user, resource, operation);
}

/// Both questions have the same fields in the same order, in version 1.
fn ask(port: u16, question: i16, user: &str, resource: Resource<'_>, operation: Operation) {
    let (kind, name) = match resource {
        Resource::Topic(name) => (2_i8, name),
        Resource::Group(name) => (3, name),
    };
    let mut request = Vec::new();
    request.extend(question.to_be_bytes());
    request.extend(1_i16.to_be_bytes());
    // Its number, and no name of the client.
    request.extend(7_i32.to_be_bytes());
    request.extend((-1_i16).to_be_bytes());
    // One of them.
    request.extend(1_i32.to_be_bytes());
    request.extend(kind.to_be_bytes());
    text(&mut request, name);
    request.extend(LITERAL.to_be_bytes());
    text(&mut request, &format!("User:{user}"));
    text(&mut request, "*");
    request.extend((operation as i8).to_be_bytes());
    request.extend(ALLOW.to_be_bytes());

    let mut server = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let length = i32::try_from(request.len()).expect("a short request");
    server.write_all(&length.to_be_bytes()).expect("sent");
    server.write_all(&request).expect("sent");
    let mut length = [0; 4];
    server.read_exact(&mut length).expect("an answer");
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length)).expect("a length")];
    server.read_exact(&mut answer).expect("an answer");
    // Behind the number, the throttle time and the count of results.
    assert_eq!(answer[12..14], [0, 0], "{}", String::from_utf8_lossy(&answer));
}

fn text(request: &mut Vec<u8>, text: &str) {
    request.extend(i16::try_from(text.len()).expect("a short text").to_be_bytes());
    request.extend(text.as_bytes());
}
