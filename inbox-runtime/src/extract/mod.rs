//! What a handler can take: the trait that makes an argument from a delivery, and the arguments that come with it.

use std::{
    any::{Any, TypeId, type_name},
    collections::HashMap,
    fmt,
    ops::Deref,
    sync::Arc,
};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::{
    contain::dispose,
    delivery::{Delivery, Headers},
};

mod envelope;
mod header;
mod meta;
mod outbox;

pub use envelope::{Envelope, VersionedEnvelope};
pub use header::{Header, HeaderName};
pub use meta::{Meta, MetaBuilder};
pub(crate) use outbox::Collector;
pub use outbox::Outbox;

/// An argument that is made from the delivery. Implement it for your own types.
///
/// It reads memory only: it runs before the transaction begins, and what it rejects is dead-lettered without one.
///
/// ```
/// use inbox_runtime::{DeliveryContext, FromDelivery, Rejection};
///
/// struct Tenant(String);
///
/// impl FromDelivery for Tenant {
///     fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
///         match context.delivery().headers.get("tenant") {
///             Some(name) => Ok(Self(String::from_utf8_lossy(name).into_owned())),
///             None => Err(Rejection::new("the header `tenant` is missing")),
///         }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a handler argument",
    label = "not made from a delivery",
    note = "a handler takes `Json<T>`, `Option<Json<T>>`, `Bytes`, `State<S>`, `Meta`, `Header<H>`, `Outbox`, `Result<_, Rejection>` of these, and types that implement `FromDelivery`",
    note = "the transaction is taken as `&mut SqliteConnection` or `&mut PgConnection`"
)]
pub trait FromDelivery: Sized + Send + 'static {
    /// Whether it collects messages for the outbox, which only a handler with a transaction can take. A type that contains an
    /// [`Outbox`] says so by `const PUBLISHES: bool = true`.
    const PUBLISHES: bool = false;

    /// Makes the argument.
    ///
    /// # Errors
    ///
    /// A [`Rejection`] when this message can't give one: no redelivery can mend that, so it is
    /// dead-lettered.
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection>;

    /// Says at the start of the program what would be missing at every message.
    ///
    /// # Errors
    ///
    /// What is missing and what to write, for the list of start errors.
    fn check(states: &States) -> Result<(), String> {
        let _ = states;
        Ok(())
    }
}

/// What an argument is made from.
#[derive(Debug)]
pub struct DeliveryContext<'a> {
    delivery: &'a Delivery,
    meta: &'a Meta,
    states: &'a States,
    collector: Collect<'a>,
}

/// Where an [`Outbox`] collects: with the others of its call, or by itself in the test of an extractor.
#[derive(Debug)]
enum Collect<'a> {
    Call(&'a Collector),
    Alone(Collector),
}

impl<'a> DeliveryContext<'a> {
    /// Puts a context together, for the test of an extractor.
    ///
    /// ```
    /// use inbox_runtime::{Delivery, DeliveryContext, FromDelivery, Json, Meta, States};
    ///
    /// let mut delivery = Delivery::new("order.created", "1");
    /// delivery.payload = Some("[1, 2]".into());
    /// let (meta, states) = (Meta::builder().build(), States::default());
    /// let Json(numbers) = Json::<Vec<u8>>::from_delivery(&DeliveryContext::new(&delivery, &meta, &states))?;
    /// assert_eq!(numbers, [1, 2]);
    /// # Ok::<(), inbox_runtime::Rejection>(())
    /// ```
    #[must_use]
    pub const fn new(delivery: &'a Delivery, meta: &'a Meta, states: &'a States) -> Self {
        Self {
            delivery,
            meta,
            states,
            collector: Collect::Alone(Collector::new()),
        }
    }

    /// The context of a call whose arguments collect there.
    pub(crate) const fn of_call(
        delivery: &'a Delivery,
        meta: &'a Meta,
        states: &'a States,
        collector: &'a Collector,
    ) -> Self {
        Self {
            delivery,
            meta,
            states,
            collector: Collect::Call(collector),
        }
    }

    const fn collector(&self) -> &Collector {
        match &self.collector {
            Collect::Call(collector) => collector,
            Collect::Alone(collector) => collector,
        }
    }

    /// The delivery as the broker handed it over.
    #[must_use]
    pub const fn delivery(&self) -> &'a Delivery {
        self.delivery
    }

    /// What is known about the message besides its payload.
    #[must_use]
    pub const fn meta(&self) -> &'a Meta {
        self.meta
    }

    /// The state of that type, if the program was given one.
    #[must_use]
    pub fn state<S: Clone + Send + Sync + 'static>(&self) -> Option<S> {
        self.states.get()
    }
}

/// The shared values that a program gave to its handlers, one of each type.
#[derive(Clone, Default)]
pub struct States(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl States {
    /// Adds a value; one of the same type is replaced.
    pub fn insert<S: Clone + Send + Sync + 'static>(&mut self, state: S) {
        self.0.insert(TypeId::of::<S>(), Arc::new(state));
    }

    /// The value of that type.
    #[must_use]
    pub fn get<S: Clone + Send + Sync + 'static>(&self) -> Option<S> {
        self.0.get(&TypeId::of::<S>())?.downcast_ref::<S>().cloned()
    }

    fn has<S: 'static>(&self) -> bool {
        self.0.contains_key(&TypeId::of::<S>())
    }
}

impl Drop for States {
    /// A destructor of theirs that panics must not take the inbox with it that is stopping.
    fn drop(&mut self) {
        for (_, state) in self.0.drain() {
            dispose("a state", state);
        }
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("States")
            .field("len", &self.0.len())
            .finish_non_exhaustive()
    }
}

/// Why a message can't be handed to its handler. It is dead-lettered with this text.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    message: String,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Rejection {
    /// A rejection that says why.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// A rejection that also has a cause.
    #[must_use]
    pub fn with_source(
        message: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            message: message.into(),
            source: Some(source.into()),
        }
    }
}

/// The payload as JSON.
///
/// A payload that isn't a `T` is rejected with the path of the field that is wrong. A null payload is rejected too; take
/// `Option<Json<T>>` where it has a meaning.
///
/// The field is public, so that a unit test can call the handler: `create_invoice(&mut tx, Json(order)).await`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T> Deref for Json<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: DeserializeOwned + Send + 'static> FromDelivery for Json<T> {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        match &context.delivery.payload {
            Some(payload) => parse_json(payload).map(Self),
            None => Err(Rejection::new(
                "the payload is null; take `Option<Json<_>>` to handle messages without one",
            )),
        }
    }
}

impl<T: DeserializeOwned + Send + 'static> FromDelivery for Option<Json<T>> {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        context
            .delivery
            .payload
            .as_ref()
            .map(|payload| parse_json(payload).map(Json))
            .transpose()
    }
}

fn parse_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Rejection> {
    let mut deserializer = serde_json::Deserializer::from_slice(payload);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let path = error.path().to_string();
        let place = if path == "." {
            String::new()
        } else {
            format!(" at `{path}`")
        };
        Rejection::with_source(
            format!("the payload is not the expected JSON{place}"),
            error.into_inner(),
        )
    })?;
    deserializer
        .end()
        .map_err(|error| Rejection::with_source("the payload goes on after its JSON value", error))?;
    Ok(value)
}

/// The payload as it is; a null payload gives no bytes.
impl FromDelivery for Bytes {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        Ok(context.delivery.payload.clone().unwrap_or_default())
    }
}

/// The payload as it is, or `None` when it is null.
impl FromDelivery for Option<Bytes> {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        Ok(context.delivery.payload.clone())
    }
}

impl FromDelivery for Headers {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        Ok(context.delivery.headers.clone())
    }
}

/// A value that the program shares with its handlers: `.state(value)` at the builder, `State<S>` in the handler.
///
/// A handler whose state nobody gave is a start error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State<S>(pub S);

impl<S> Deref for State<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: Clone + Send + Sync + 'static> FromDelivery for State<S> {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        let state = context
            .states
            .get()
            .ok_or_else(|| Rejection::new(missing_state::<S>()))?;
        Ok(Self(state))
    }

    fn check(states: &States) -> Result<(), String> {
        if states.has::<S>() {
            Ok(())
        } else {
            Err(missing_state::<S>())
        }
    }
}

fn missing_state<S>() -> String {
    let name = type_name::<S>();
    format!("it takes `State<{name}>`, but the program gave none; add `.state(…)` to `Inbox::builder()`")
}

/// Lets the handler decide what to do with a message that its extractor rejects.
impl<T: FromDelivery> FromDelivery for Result<T, Rejection> {
    const PUBLISHES: bool = T::PUBLISHES;

    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        Ok(T::from_delivery(context))
    }

    fn check(states: &States) -> Result<(), String> {
        T::check(states)
    }
}

/// What the start of the program asks of one argument.
#[derive(Clone, Copy, Debug)]
pub struct ArgCheck {
    /// Checks that it can be made; the error says what is missing.
    pub(crate) check: fn(&States) -> Result<(), String>,
    /// Whether it collects messages for the outbox.
    pub(crate) publishes: bool,
}

/// The two functions of an argument's type, without its bound.
#[derive(Debug)]
pub struct Arg<T> {
    /// Makes the argument.
    pub decode: fn(&DeliveryContext<'_>) -> Result<T, Rejection>,
    /// Checks at the start that it can be made.
    pub check: ArgCheck,
}

/// Carries the bound on an argument's type, so that a wrong one is reported at the type and once.
#[must_use]
pub const fn arg<T: FromDelivery>() -> Arg<T> {
    Arg {
        decode: T::from_delivery,
        check: ArgCheck {
            check: T::check,
            publishes: T::PUBLISHES,
        },
    }
}

/// As [`arg`], of a handler without a transaction.
///
/// # Panics
///
/// When the program is compiled, if the argument needs one.
#[must_use]
pub const fn arg_without_tx<T: FromDelivery>() -> Arg<T> {
    assert!(
        !T::PUBLISHES,
        "a handler that takes `Outbox` publishes in its transaction: let it take that too, as in `tx: &mut PgConnection`"
    );
    arg::<T>()
}
