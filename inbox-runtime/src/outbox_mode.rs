//! Which part of the outbox a program takes.

/// Which part of the outbox a program takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutboxMode {
    /// Its handlers may publish, and it relays what is in its databases to its broker. The default.
    #[default]
    Both,
    /// Its handlers may publish; another program relays. Health has a warning when none seems to.
    Write,
    /// It relays, and needs no handlers; those that it has may publish.
    Relay,
    /// Neither: a handler that takes an [`Outbox`](crate::Outbox) is a start error.
    Off,
}

impl OutboxMode {
    /// The mode as it is written in `INBOX_OUTBOX`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Write => "write",
            Self::Relay => "relay",
            Self::Off => "off",
        }
    }

    /// Whether handlers that publish may run in a program of that mode.
    #[must_use]
    pub const fn has_handlers(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// Whether a program of that mode relays.
    #[must_use]
    pub const fn relays(self) -> bool {
        matches!(self, Self::Both | Self::Relay)
    }
}
