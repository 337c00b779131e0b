//! The `#[inbox_handler]` attribute of `inbox-runtime`. Use it through that crate, where it is documented.

/// See the re-export in `inbox-runtime`.
#[proc_macro_attribute]
pub fn inbox_handler(_args: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    item
}
