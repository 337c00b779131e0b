//! Collects errors, so that all of them are reported at once.

use proc_macro2::Span;

/// The errors so far.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    /// Adds an error.
    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Takes a value out of its result, and the error into the collection.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    /// The value, unless there are errors.
    pub(crate) fn finish<T>(self, value: Option<T>) -> syn::Result<T> {
        match (self.0, value) {
            (Some(error), _) => Err(error),
            (None, Some(value)) => Ok(value),
            // Not reached: what isn't there was reported. An error all the same, so that no handler is lost in silence.
            (None, None) => Err(syn::Error::new(Span::call_site(), "this handler can't be registered")),
        }
    }
}
