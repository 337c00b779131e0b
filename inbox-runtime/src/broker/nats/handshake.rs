//! Connects to one server without the client library: TCP, TLS, `INFO`, `CONNECT`.

use std::{fmt, sync::Arc};

use async_nats::{
    Auth, ServerAddr,
    rustls::{ClientConfig, pki_types::ServerName},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::BytesMut;
use serde_json::json;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::{
    connect_options::ConnectOptions,
    limits::CLIENT_NAME,
    protocol::{self, ServerInfo, ServerOp},
};
use crate::error_chain::text;

/// The size of the read buffer, in bytes.
pub(super) const READ_BUFFER: usize = 64 * 1024;

/// A byte stream, with TLS or without.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// An authenticated connection.
pub(super) struct ServerConnection {
    pub(super) stream: Box<dyn Duplex>,
    /// What was read after the `PONG` of the handshake.
    pub(super) buffer: BytesMut,
    pub(super) info: ServerInfo,
}

impl fmt::Debug for ServerConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConnection")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

/// Connects to a server and authenticates. The error has no secrets.
pub(super) async fn connect(
    options: &ConnectOptions,
    tls: &Arc<ClientConfig>,
    server: &ServerAddr,
) -> Result<ServerConnection, String> {
    let failed = |error: std::io::Error| text(&error);
    let host = server.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let tcp = TcpStream::connect((address, server.port())).await.map_err(failed)?;
    tcp.set_nodelay(true).map_err(failed)?;
    let mut buffer = BytesMut::with_capacity(READ_BUFFER);
    let mut stream: Box<dyn Duplex> = Box::new(tcp);
    let encrypted = async |stream: Box<dyn Duplex>| -> Result<Box<dyn Duplex>, String> {
        let name = ServerName::try_from(address.to_owned()).map_err(|error| text(&error))?;
        let connected = TlsConnector::from(tls.clone()).connect(name, stream).await;
        let stream: Box<dyn Duplex> = Box::new(connected.map_err(failed)?);
        Ok(stream)
    };
    if options.tls_first {
        stream = encrypted(stream).await?;
    }
    let info = match read_op(&mut stream, &mut buffer).await? {
        ServerOp::Info(info) => *info,
        _ => return Err("the server did not begin with INFO; is it a NATS server?".to_owned()),
    };
    if !options.tls_first && (info.tls_required || server.tls_required()) {
        stream = encrypted(stream).await?;
    }
    let auth = options.login.auth(info.nonce.as_bytes())?;
    let connect = format!("CONNECT {}\r\nPING\r\n", connect_op(auth, server.tls_required()));
    stream.write_all(connect.as_bytes()).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    loop {
        match read_op(&mut stream, &mut buffer).await? {
            ServerOp::Pong => return Ok(ServerConnection { stream, buffer, info }),
            ServerOp::Error(error) => {
                return Err(format!("the NATS server rejects these credentials: {error}"));
            }
            _ => {}
        }
    }
}

/// The JSON of `CONNECT`.
fn connect_op(auth: Auth, tls_required: bool) -> serde_json::Value {
    let signature = auth.signature.map(|signature| URL_SAFE_NO_PAD.encode(signature));
    let mut options = json!({
        "verbose": false, "pedantic": false, "lang": "rust", "version": env!("CARGO_PKG_VERSION"), "protocol": 1,
        "name": format!("{CLIENT_NAME} deliveries"), "echo": true, "headers": true, "no_responders": true,
        "tls_required": tls_required,
    });
    for (name, value) in [
        ("user", auth.username),
        ("pass", auth.password),
        ("auth_token", auth.token),
        ("jwt", auth.jwt),
        ("nkey", auth.nkey),
        ("sig", signature),
    ] {
        if let Some(value) = value {
            options[name] = value.into();
        }
    }
    options
}

async fn read_op(stream: &mut Box<dyn Duplex>, buffer: &mut BytesMut) -> Result<ServerOp, String> {
    loop {
        if let Some(op) = protocol::parse(buffer)? {
            return Ok(op);
        }
        if stream.read_buf(buffer).await.map_err(|error| text(&error))? == 0 {
            return Err("the server closed the connection".to_owned());
        }
    }
}
