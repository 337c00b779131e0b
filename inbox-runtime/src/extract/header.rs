//! A single header as an argument.

use std::{fmt, marker::PhantomData};

use super::{DeliveryContext, FromDelivery, Rejection};

/// Names the header that [`Header`] reads.
pub trait HeaderName: Send + 'static {
    /// The name; compared without regard to ASCII case.
    const NAME: &'static str;
}

/// The value of one header as text. A message without it is rejected; take `Option<Header<H>>` where it may be missing.
///
/// ```
/// use inbox_runtime::{Header, HeaderName};
///
/// struct Tenant;
/// impl HeaderName for Tenant {
///     const NAME: &'static str = "tenant";
/// }
///
/// async fn on_order(tenant: Header<Tenant>) {
///     println!("for {tenant}");
/// }
/// let _ = on_order(Header::new("acme"));
/// ```
pub struct Header<H> {
    value: String,
    name: PhantomData<fn() -> H>,
}

impl<H: HeaderName> Header<H> {
    /// A header with that value, for a unit test.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self {
            value: value.into(),
            name: PhantomData,
        }
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// The value, owned.
    #[must_use]
    pub fn into_value(self) -> String {
        self.value
    }

    fn find(context: &DeliveryContext<'_>) -> Result<Option<Self>, Rejection> {
        let Some(value) = context.delivery().headers.get(H::NAME) else {
            return Ok(None);
        };
        match std::str::from_utf8(value) {
            Ok(value) => Ok(Some(Self::new(value))),
            Err(error) => Err(Rejection::with_source(
                format!("the header `{}` is not UTF-8", H::NAME),
                error,
            )),
        }
    }
}

impl<H: HeaderName> FromDelivery for Header<H> {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        Self::find(context)?.ok_or_else(|| Rejection::new(format!("the header `{}` is missing", H::NAME)))
    }
}

impl<H: HeaderName> FromDelivery for Option<Header<H>> {
    fn from_delivery(context: &DeliveryContext<'_>) -> Result<Self, Rejection> {
        Header::find(context)
    }
}

impl<H> fmt::Debug for Header<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Header").field(&self.value).finish()
    }
}

impl<H> fmt::Display for Header<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.value)
    }
}
