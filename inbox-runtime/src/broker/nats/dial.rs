//! Making a connection to one server by hand: TCP, TLS where it is wanted, and saying who we are.

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
    config::{CLIENT_NAME, Settings},
    wire::{self, Frame, Info},
};
use crate::error_chain::text;

/// How much room there is at least for what comes, in bytes.
pub(super) const READ_BUFFER: usize = 64 * 1024;

/// A connection, with TLS or without.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection on which the server has let us in.
pub(super) struct Dialed {
    pub(super) stream: Box<dyn Duplex>,
    /// What has come behind the server's word.
    pub(super) buffer: BytesMut,
    pub(super) info: Info,
}

impl fmt::Debug for Dialed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialed")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

/// Connects to a server. The error is the cause, without anything secret.
pub(super) async fn dial(settings: &Settings, tls: &Arc<ClientConfig>, server: &ServerAddr) -> Result<Dialed, String> {
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
    if settings.tls_first {
        stream = encrypted(stream).await?;
    }
    let info = match next(&mut stream, &mut buffer).await? {
        Frame::Info(info) => *info,
        _ => return Err("the server did not begin as a NATS server does".to_owned()),
    };
    if !settings.tls_first && (info.tls_required || server.tls_required()) {
        stream = encrypted(stream).await?;
    }
    let auth = settings.login.auth(info.nonce.as_bytes())?;
    let hello = format!("CONNECT {}\r\nPING\r\n", connect(auth, server.tls_required()));
    stream.write_all(hello.as_bytes()).await.map_err(failed)?;
    stream.flush().await.map_err(failed)?;
    loop {
        match next(&mut stream, &mut buffer).await? {
            Frame::Pong => return Ok(Dialed { stream, buffer, info }),
            Frame::Error(error) => {
                return Err(format!(
                    "the NATS server lets nobody in with these credentials: {error}"
                ));
            }
            _ => {}
        }
    }
}

/// What we say of ourselves.
fn connect(auth: Auth, tls_required: bool) -> serde_json::Value {
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

async fn next(stream: &mut Box<dyn Duplex>, buffer: &mut BytesMut) -> Result<Frame, String> {
    loop {
        if let Some(frame) = wire::read(buffer)? {
            return Ok(frame);
        }
        if stream.read_buf(buffer).await.map_err(|error| text(&error))? == 0 {
            return Err("the server closed the connection".to_owned());
        }
    }
}
