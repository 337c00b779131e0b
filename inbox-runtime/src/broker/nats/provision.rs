//! Finds or creates the durable consumer of a subscription, and updates one whose configuration differs.

use serde_json::{Map, Value, json};

use super::{
    consumer_config::{self, DeliverPolicy},
    durable::{Checkpoint, Durable, DurableInfo},
    error::{BindError, RequestError},
    jetstream::JetStream,
    stream::{StreamInfo, find_stream},
};
use crate::{broker::Subscription, handler::StartPosition};

/// The API's code for a consumer that exists with another configuration.
const CONSUMER_EXISTS: u64 = 10148;

/// Finds or creates the consumer. A new one starts after `checkpoint`, if there is one.
pub(super) async fn provision(
    jetstream: &JetStream,
    subscription: &Subscription,
    name: &str,
    checkpoint: Option<&Checkpoint>,
) -> Result<(Durable, DurableInfo), BindError> {
    let stream = find_stream(jetstream, subscription).await?;
    let operation = format!("CONSUMER.INFO.{}.{name}", stream.config.name);
    let existing: Result<DurableInfo, _> = jetstream.api(&operation, &Value::Null).await;
    let info = match existing {
        Ok(info) => update(jetstream, subscription, &stream, name, info).await?,
        Err(error) if error.is_not_found() => create(jetstream, subscription, &stream, name, checkpoint).await?,
        Err(error) => return Err(error.into()),
    };
    let created = stream.created();
    let durable = Durable::new(stream.config.name, created, name.to_owned(), &info);
    Ok((durable, info))
}

/// Updates the fields that differ, or says why that is impossible.
async fn update(
    jetstream: &JetStream,
    subscription: &Subscription,
    stream: &StreamInfo,
    name: &str,
    info: DurableInfo,
) -> Result<DurableInfo, BindError> {
    consumer_config::check_unchangeable(subscription, stream, name, &info)?;
    let (config, changes) = consumer_config::updated(subscription, stream, &info);
    warn_of_limit(subscription, stream);
    if changes.is_empty() {
        return Ok(info);
    }
    let changes = changes.join(", ");
    match send_config(jetstream, stream, name, &config, "update").await {
        Ok(updated) => {
            tracing::warn!(
                durable = name,
                changed = changes,
                "updated the configuration of a durable consumer"
            );
            Ok(updated)
        }
        Err(RequestError::Api(error)) if error.code < 500 => Err(BindError::Misconfigured(format!(
            "the durable {name} of the stream {} has another configuration than is needed, and the server doesn't change \
             {changes}: {error}",
            stream.config.name
        ))),
        Err(error) => Err(error.into()),
    }
}

async fn create(
    jetstream: &JetStream,
    subscription: &Subscription,
    stream: &StreamInfo,
    name: &str,
    checkpoint: Option<&Checkpoint>,
) -> Result<DurableInfo, BindError> {
    let start = DeliverPolicy::of(subscription, stream, checkpoint)?;
    let config = consumer_config::new(subscription, stream, name, &start);
    match send_config(jetstream, stream, name, &config, "create").await {
        Ok(info) => {
            warn_of_lost_position(subscription, stream, checkpoint);
            warn_of_limit(subscription, stream);
            tracing::info!(
                group = subscription.group,
                subject = subscription.subject,
                stream = stream.config.name,
                start = start.description,
                "created a durable consumer"
            );
            Ok(info)
        }
        // Another process created it concurrently, with another start.
        Err(RequestError::Api(error)) if error.err_code == CONSUMER_EXISTS => Err(BindError::Unavailable(
            "another process has just created the durable".to_owned(),
        )),
        Err(RequestError::Api(error)) if stream.is_work_queue() && error.code < 500 => {
            Err(BindError::Misconfigured(format!(
                "the stream {} has retention `workqueue`, which delivers each message to one group only: {error}; give it \
                 retention `limits` or `interest`, or the group a stream of its own",
                stream.config.name
            )))
        }
        Err(error) => Err(error.into()),
    }
}

async fn send_config(
    jetstream: &JetStream,
    stream: &StreamInfo,
    name: &str,
    config: &Map<String, Value>,
    action: &str,
) -> Result<DurableInfo, RequestError> {
    let stream = &stream.config.name;
    let body = json!({ "stream_name": stream, "config": config, "action": action });
    jetstream.api(&format!("CONSUMER.CREATE.{stream}.{name}"), &body).await
}

/// Warns when the stream's limit lets fewer messages be in flight than the handler could take.
fn warn_of_limit(subscription: &Subscription, stream: &StreamInfo) {
    let limit = stream.config.consumer_limits.max_ack_pending;
    if !subscription.ordered && limit > 0 && limit.unsigned_abs() < subscription.max_in_flight as u64 {
        tracing::warn!(
            stream = stream.config.name,
            most = limit,
            wanted = subscription.max_in_flight,
            "the stream's `max_ack_pending` limits the handler's messages in flight"
        );
    }
}

/// Warns when the database has records of a group whose consumer is gone.
fn warn_of_lost_position(subscription: &Subscription, stream: &StreamInfo, checkpoint: Option<&Checkpoint>) {
    if subscription.known && checkpoint.is_none() && subscription.start == StartPosition::New {
        tracing::warn!(
            group = subscription.group,
            subject = subscription.subject,
            stream = stream.config.name,
            "the database has records of the group, but its durable is gone; it starts with the first message of the stream and \
             not with new ones, so that nothing is skipped: what was handled is deduplicated by message id"
        );
    }
}
