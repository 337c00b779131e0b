//! What those who run the program see and set: configuration, telemetry, health.

mod capture;
mod config;
mod docs;
mod embedded;
mod guide;
mod health;
mod metrics;
mod traces;
