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

use std::net::SocketAddr;

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    config::Given,
    error::StartErrors,
    health::{Health, HealthHandle},
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
    match serde_json::to_string(health) {
        Ok(body) => (status, [(CONTENT_TYPE, "application/json")], body).into_response(),
        // Texts and numbers can always be written.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
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
            tracing::error!(%error, "the server of health and metrics has ended");
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::health::HandlerHealth;

    #[test]
    fn health_as_json_has_seconds_to_the_millisecond_and_no_unknown_lag() {
        let handler = |lag, next_retry| HandlerHealth {
            handler: "shop::billing",
            group: "billing",
            subject: "order.created",
            ready: false,
            broker: None,
            database: Some("the disk is full".to_owned()),
            waiting: vec!["orders:3 has no leader".to_owned()],
            back_offs: Vec::new(),
            backing_off: 2,
            next_retry,
            in_flight: 3,
            since_progress: Duration::from_micros(1_234_567),
            oldest_transaction: None,
            lag,
        };
        let health = Health {
            live: true,
            ready: false,
            reasons: vec!["shop::billing: the disk is full".to_owned()],
            warnings: Vec::new(),
            handlers: vec![handler(Some(0), Some(Duration::from_millis(1500))), handler(None, None)],
        };
        let mut first = json!({
            "handler": "shop::billing",
            "group": "billing",
            "subject": "order.created",
            "ready": false,
            "broker": null,
            "database": "the disk is full",
            "waiting": ["orders:3 has no leader"],
            "back_offs": [],
            "backing_off": 2,
            "next_retry": 1.5,
            "in_flight": 3,
            "since_progress": 1.235,
            "oldest_transaction": null,
        });
        let mut second = first.clone();
        first["lag"] = 0.into();
        second["next_retry"] = json!(null);
        let expected = json!({
            "live": true,
            "ready": false,
            "reasons": ["shop::billing: the disk is full"],
            "warnings": [],
            "handlers": [first, second],
        });
        assert_eq!(serde_json::to_value(&health).expect("JSON"), expected);
    }
}
