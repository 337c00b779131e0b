//! A NATS server spoken to by bytes of our own, so that anything can be published, and JetStream's interface over it.

use std::{io, sync::Arc, time::Duration};

use inbox_runtime::Message;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::servers::nats::{Nats as Server, NatsCluster};

/// One account of a NATS server, spoken to by bytes of our own: whatever can be published can be published here.
#[derive(Clone, Debug)]
pub struct JetStream {
    /// Of the servers, of which any will do.
    ports: Arc<[u16]>,
    /// User and password.
    user: Option<String>,
    wire: Arc<tokio::sync::Mutex<Option<Wire>>>,
}

#[derive(Debug)]
struct Wire {
    stream: BufReader<TcpStream>,
    replies: u64,
}

impl JetStream {
    /// A server of the test's own.
    #[must_use]
    pub fn on(server: &Server) -> Self {
        Self::of(&[server.port()], None)
    }

    /// A cluster of the test's own.
    #[must_use]
    pub fn on_cluster(cluster: &NatsCluster) -> Self {
        let ports: Vec<_> = cluster.servers().iter().map(Server::port).collect();
        Self::of(&ports, None)
    }

    /// The same with another user, whose password is its name.
    #[must_use]
    pub fn as_user(&self, user: &str) -> Self {
        Self::of(&self.ports, Some(user.to_owned()))
    }

    /// A server of this machine that runs already, by its URL.
    #[must_use]
    pub fn at(url: &str) -> Option<Self> {
        let port = url.rsplit(':').next()?.trim_end_matches('/').parse().ok()?;
        Some(Self::of(&[port], None))
    }

    /// A stream on the disk with nothing but so many orders on it, each with an id of its own.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn fill(&self, stream: &str, subject: &str, count: u64) {
        self.api(&format!("STREAM.DELETE.{stream}"), Value::Null).await;
        self.make_stream(stream, &[subject], json!({})).await;
        let mut wire = self.connect().await.expect("a connection");
        for number in 0..count {
            let headers = format!("NATS/1.0\r\nmessage_id: evt-{number}\r\n\r\n");
            let payload = format!("{{\"order_id\":{number},\"amount_cents\":100}}");
            let total = headers.len() + payload.len();
            let bytes = format!("HPUB {subject} {} {total}\r\n{headers}{payload}\r\n", headers.len());
            wire.stream.write_all(bytes.as_bytes()).await.expect("sent");
        }
        wire.stream.flush().await.expect("sent");
        while self.api(&format!("STREAM.INFO.{stream}"), Value::Null).await["state"]["messages"] != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) fn of(ports: &[u16], user: Option<String>) -> Self {
        Self {
            ports: ports.into(),
            user,
            wire: Arc::default(),
        }
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        let login = self
            .user
            .as_ref()
            .map(|user| format!("{user}:{user}@"))
            .unwrap_or_default();
        let servers: Vec<_> = self.ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("nats://{login}{}", servers.join(","))
    }

    /// Asks JetStream's own interface.
    ///
    /// # Panics
    ///
    /// When the server doesn't answer.
    pub async fn api(&self, question: &str, body: Value) -> Value {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let answer = self.request(&format!("$JS.API.{question}"), "", body.as_bytes()).await;
        serde_json::from_slice(&answer).unwrap_or(Value::Null)
    }

    /// Publishes with a block of headers as it is, or without any; returns the server's answer.
    ///
    /// # Panics
    ///
    /// When the server doesn't answer, after three tries.
    pub async fn request(&self, subject: &str, headers: impl AsRef<[u8]>, payload: &[u8]) -> Vec<u8> {
        let mut wire = self.wire.lock().await;
        let mut last = None;
        for _ in 0..50 {
            match self.try_request(&mut wire, subject, headers.as_ref(), payload).await {
                Ok(answer) => return answer,
                Err(error) => last = Some(error),
            }
            *wire = None;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the NATS server doesn't answer: {last:?}");
    }

    /// Publishes to a subject that nobody needs to answer.
    ///
    /// # Panics
    ///
    /// When the server can't be reached.
    pub async fn send(&self, subject: &str, headers: &[u8], payload: &[u8]) {
        let mut wire = self.connect().await.expect("a connection");
        let total = headers.len() + payload.len();
        let mut bytes = format!("HPUB {subject} {} {total}\r\n", headers.len()).into_bytes();
        bytes.extend_from_slice(headers);
        bytes.extend_from_slice(payload);
        // The answer to the ping says that all was taken.
        bytes.extend_from_slice(b"\r\nPING\r\n");
        wire.stream.write_all(&bytes).await.expect("sent");
        // That of the greeting is the first.
        let mut pongs = 0;
        while pongs < 2 {
            let mut line = String::new();
            assert_ne!(
                wire.stream.read_line(&mut line).await.expect("an answer"),
                0,
                "it was refused"
            );
            pongs += u32::from(line.trim() == "PONG");
        }
    }

    async fn try_request(
        &self,
        wire: &mut Option<Wire>,
        subject: &str,
        headers: &[u8],
        payload: &[u8],
    ) -> io::Result<Vec<u8>> {
        let wire = match wire {
            Some(wire) => wire,
            None => wire.insert(self.connect().await?),
        };
        wire.replies += 1;
        let reply = format!("_INBOX.test.{}", wire.replies);
        let total = headers.len() + payload.len();
        let mut bytes = if headers.is_empty() {
            format!("PUB {subject} {reply} {total}\r\n").into_bytes()
        } else {
            format!("HPUB {subject} {reply} {} {total}\r\n", headers.len()).into_bytes()
        };
        bytes.extend_from_slice(headers);
        bytes.extend_from_slice(payload);
        bytes.extend_from_slice(b"\r\n");
        wire.stream.write_all(&bytes).await?;
        tokio::time::timeout(Duration::from_secs(5), wire.answer(&reply))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer"))?
    }

    async fn connect(&self) -> io::Result<Wire> {
        let port = self.ports[fastrand::usize(..self.ports.len())];
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?);
        stream.get_mut().set_nodelay(true)?;
        stream.read_line(&mut String::new()).await?;
        let mut options = json!({ "verbose": false, "headers": true, "no_responders": true, "protocol": 1 });
        if let Some(user) = &self.user {
            options["user"] = json!(user);
            options["pass"] = json!(user);
        }
        let hello = format!("CONNECT {options}\r\nSUB _INBOX.test.* 1\r\nPING\r\n");
        stream.write_all(hello.as_bytes()).await?;
        Ok(Wire { stream, replies: 0 })
    }

    /// Makes a stream; `more` is set besides.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    pub async fn make_stream(&self, name: &str, subjects: &[&str], more: Value) {
        let mut config = json!({ "name": name, "subjects": subjects, "storage": "file", "retention": "limits",
            "max_consumers": -1, "max_msgs": -1, "max_bytes": -1, "num_replicas": 1 });
        if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
            config.extend(more);
        }
        let made = self.api(&format!("STREAM.CREATE.{name}"), config).await;
        assert!(made.get("error").is_none(), "{made}");
    }

    /// Publishes a message; returns the answer of the stream that has stored it.
    ///
    /// # Panics
    ///
    /// When none has.
    pub async fn publish(&self, message: &Message) -> Value {
        let mut headers = Vec::new();
        for (name, value) in message.headers.iter() {
            headers.extend_from_slice(name.as_bytes());
            headers.extend_from_slice(b": ");
            headers.extend_from_slice(value.expect("NATS has no null headers"));
            headers.extend_from_slice(b"\r\n");
        }
        if !headers.is_empty() {
            headers = [b"NATS/1.0\r\n", &headers[..], b"\r\n"].concat();
        }
        let payload = message.payload.as_deref().expect("NATS has no null payload");
        self.publish_raw(&message.subject, headers, payload).await
    }

    /// Publishes with a block of headers as it is.
    ///
    /// # Panics
    ///
    /// When no stream has stored it.
    pub async fn publish_raw(&self, subject: &str, headers: impl AsRef<[u8]>, payload: &[u8]) -> Value {
        let answer = self.request(subject, headers, payload).await;
        let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
        assert!(answer["seq"].as_u64() > Some(0), "not stored: {answer}");
        answer
    }

    /// What the server says about a durable; `None` if there is none.
    ///
    /// # Panics
    ///
    /// When it says anything else.
    pub async fn durable(&self, stream: &str, group: &str, subject: &str) -> Option<Value> {
        let info = self
            .api(
                &format!("CONSUMER.INFO.{stream}.{}", durable_name(group, subject)),
                Value::Null,
            )
            .await;
        if info["error"]["code"] == 404 {
            return None;
        }
        assert!(info["config"].is_object(), "no durable: {info}");
        Some(info)
    }
}

/// The name of a group's durable on a subject.
fn durable_name(group: &str, subject: &str) -> String {
    let name = format!("{group}@{subject}");
    name.replace('.', ",").replace('*', "+").replace('>', "#")
}

impl Wire {
    async fn answer(&mut self, reply: &str) -> io::Result<Vec<u8>> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.stream.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                ["PING"] => self.stream.write_all(b"PONG\r\n").await?,
                ["MSG", subject, _, length] => {
                    let body = self.body(length).await?;
                    if subject == reply {
                        return Ok(body);
                    }
                }
                ["HMSG", subject, _, _, length] => {
                    let body = self.body(length).await?;
                    if subject == reply {
                        // Nobody listens there: an answer without a body.
                        return Ok(body);
                    }
                }
                _ if line.starts_with("-ERR") => return Err(io::Error::other(line)),
                _ => {}
            }
        }
    }

    async fn body(&mut self, length: &str) -> io::Result<Vec<u8>> {
        let length: usize = length.parse().map_err(io::Error::other)?;
        let mut body = vec![0; length + 2];
        self.stream.read_exact(&mut body).await?;
        body.truncate(length);
        Ok(body)
    }
}
