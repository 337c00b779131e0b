//! The `#[inbox_handler]` attribute of `inbox-runtime`. Use it through that crate, where it is documented.
//!
//! ```text
//! (group = "billing", …)  ─▶ args  ─▶ Args ───┐
//!                                             ├─▶ expand ─▶ the function as written + const _: () = { … };
//! async fn on_order(…) …  ─▶ model ─▶ Handler ┘
//! ```
//!
//! The attribute and the function are checked independently and all errors are reported at once. The function is
//! emitted whatever is wrong, so that what calls it doesn't fail too.

mod args;
mod errors;
mod expand;
mod model;
mod types;

use proc_macro2::TokenStream;
use quote::quote;

use crate::{args::Args, errors::Errors, model::Handler};

/// Registers an async function as the handler of a subject for a consumer group.
///
/// ```text
/// #[inbox_handler(group = "billing", subject = "order.created")]
/// async fn create_invoice(tx: &mut SqliteConnection, Json(order): Json<OrderCreated>) -> Result<(), sqlx::Error>
/// ```
///
/// The one `&mut` argument, in any position, is the connection with the open transaction, and tells the database. Every
/// other argument is made from the delivery. The function stays as it is and can be called directly.
///
/// | key | value | default |
/// |---|---|---|
/// | `group` | a name, or the path of a `const` that holds one | required |
/// | `subject` | a subject with the wildcards `*` and `>`, or the path of a `const` | required |
/// | `ack` | `"exactly_once"`, `"at_least_once"`, `"at_most_once"` | `"exactly_once"` |
/// | `commit` | with `ack = "at_least_once"`: `"on_success"`, `"on_persist"` | `"on_success"` |
/// | `id` | `"header:NAME"`, `"json:/pointer"`, `"position"` | the usual headers, else the position |
/// | `start` | `"first"`, `"new"`, `"2026-01-31T00:00:00Z"` (UTC), `"sequence:1234"` | `"first"` |
/// | `timeout` | a duration, as in `"30s"` | `"5m"` |
/// | `max_attempts` | a number from 1, or `"unlimited"` | `20` |
/// | `backoff` | two durations, as in `"1s..5m"`, or one | `"1s..5m"` |
/// | `concurrency` | a number from 1 to 1024 | `1` |
/// | `stream` | the name of the stream that holds the subject, on a broker that has streams | found by the subject |
/// | `ordered` | `true`: each message waits until the one before it is settled | `false` |
/// | `crate` | the path of the runtime crate where it has another name | `::inbox_runtime` |
#[proc_macro_attribute]
pub fn inbox_handler(args: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    handler(args.into(), &item.into()).into()
}

fn handler(args: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let args = errors.take(args::parse(args));
    let handler = errors.take(model::parse(item.clone()));
    let both = args.zip(handler);
    if let Some((args, handler)) = &both {
        errors.take(check_together(args, handler));
    }
    let registration = match errors.finish(both) {
        Ok((args, handler)) => expand::expand(&args, &handler),
        Err(error) => error.into_compile_error(),
    };
    quote! { #item #registration }
}

/// Checks what neither the attribute nor the signature tells alone.
fn check_together(args: &Args, handler: &Handler) -> syn::Result<()> {
    if !args.ack.claims() || handler.has_transaction() {
        return Ok(());
    }
    let message = "`exactly_once` needs the transaction that it commits: add the argument `tx: &mut SqliteConnection` \
                   (or `&mut PgConnection`), or choose `ack = \"at_least_once\"`";
    Err(syn::Error::new(
        args.ack_span.unwrap_or_else(|| handler.ident.span()),
        message,
    ))
}
