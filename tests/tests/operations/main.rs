//! What those who run the program see and set: configuration, telemetry, health.

mod config;
mod docs;
