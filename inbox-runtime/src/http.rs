//! Health and metrics over HTTP: routes that a program mounts, or that the runtime serves.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 while the inbox runs, 503 when it has ended: restart it |
//! | `/readyz` | 200 while it can work, 503 while it starts, can't work or stops: send it no work |
//! | `/metrics` | with the feature `metrics`: every metric of the program, as Prometheus reads it |
//!
//! The first two have the whole [`Health`] as JSON, with each reason; times are in seconds, to the millisecond. `lag` is left out
//! where it isn't known.
//!
//! A program that serves HTTP anyway mounts [`router`]. For one that doesn't, the runtime serves these routes on
//! `INBOX_HTTP_ADDR`, from before it connects to anything until the drain is over.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    config::Given,
    error::StartErrors,
    health::{HandlerHealth, Health, HealthHandle},
};

/// The routes `/healthz` and `/readyz`, and with the feature `metrics` `/metrics`, which has something to show if the
/// inbox was built with [`prometheus`](crate::InboxBuilder::prometheus).
///
/// ```
/// # async fn example(inbox: inbox_runtime::InboxHandle) -> std::io::Result<()> {
/// use axum::{Router, routing::get};
///
/// let app = Router::new()
///     .route("/orders", get(async || "…"))
///     .merge(inbox_runtime::http::router(&inbox));
/// let listener = tokio::net::TcpListener::bind("0.0.0.0:8080").await?;
/// axum::serve(listener, app).await
/// # }
/// ```
pub fn router(inbox: impl Into<HealthHandle>) -> Router {
    let live: HealthHandle = inbox.into();
    let ready = live.clone();
    let router = Router::new()
        .route(
            "/healthz",
            get(async move || answer(&live.health(), |health| health.live)),
        )
        .route(
            "/readyz",
            get(async move || answer(&ready.health(), |health| health.ready)),
        );
    #[cfg(feature = "metrics")]
    let router = router.route("/metrics", get(async || metrics()));
    router
}

fn answer(health: &Health, good: impl Fn(&Health) -> bool) -> Response {
    let status = if good(health) {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = json(health).to_string();
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(feature = "metrics")]
fn metrics() -> Response {
    match crate::telemetry::prometheus::render() {
        Some(text) => ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response(),
        None => {
            let text = "nothing is recorded here: add `.prometheus()` to `Inbox::builder()`, or ask the recorder that the \
                        program has\n";
            (StatusCode::NOT_FOUND, text).into_response()
        }
    }
}

fn json(health: &Health) -> Value {
    let handlers: Vec<_> = health.handlers.iter().map(handler).collect();
    json!({
        "live": health.live,
        "ready": health.ready,
        "reasons": health.reasons,
        "warnings": health.warnings,
        "handlers": handlers,
    })
}

fn handler(health: &HandlerHealth) -> Value {
    let mut value = json!({
        "handler": health.handler,
        "group": health.group,
        "subject": health.subject,
        "ready": health.ready,
        "broker": health.broker,
        "database": health.database,
        "waiting": health.waiting,
        "backing_off": health.backing_off,
        "back_offs": health.back_offs,
        "next_retry": health.next_retry.map(seconds),
        "in_flight": health.in_flight,
        "since_progress": seconds(health.since_progress),
        "oldest_transaction": health.oldest_transaction.map(seconds),
    });
    // Absent, not null: no number is there to be taken for one.
    if let Some(lag) = health.lag {
        value["lag"] = lag.into();
    }
    value
}

/// A time in seconds, to the millisecond.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Serves until the result is dropped. That an address can't be used is known at once.
pub(crate) async fn serve(addr: &Given<SocketAddr>, health: HealthHandle) -> Result<Serving, StartErrors> {
    let Given { value, place } = addr;
    let refused = |error: std::io::Error| {
        StartErrors::new(vec![format!(
            "{place}: the address {value} can't be served on: {error}; write a free one of this machine, as in 0.0.0.0:8080"
        )])
    };
    let listener = TcpListener::bind(value).await.map_err(refused)?;
    let addr = listener.local_addr().map_err(refused)?;
    tracing::info!(%addr, "health and metrics are served");
    let server = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router(health)).await {
            tracing::error!(%error, "health and metrics are served no more");
        }
    });
    Ok(Serving { addr, server })
}

/// The server, which ends when this is dropped.
pub(crate) struct Serving {
    addr: SocketAddr,
    server: JoinHandle<()>,
}

impl Serving {
    pub(crate) const fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.server.abort();
    }
}
